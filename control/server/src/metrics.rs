//! Metrics and health on a listener of their own, meant for loopback.

use std::{
    future::ready,
    sync::{Arc, atomic::AtomicU64},
};

use axum::{Router, extract::State, http::header, response::IntoResponse, routing::get};
use control_hub::Hub;
use prometheus_client::{
    encoding::text::encode,
    metrics::{counter::Counter, gauge::Gauge},
    registry::Registry,
};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// What the edge counts and the hub knows.
#[derive(Clone, Debug)]
pub(crate) struct Metrics {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    registry: Registry,
    sessions: Gauge,
    relay_waiting: Gauge,
    relay_pairs: Gauge,
    pub(crate) connections: Counter<u64, AtomicU64>,
    handshake_failures: Counter<u64, AtomicU64>,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let mut registry = Registry::with_prefix("rlark_server");
        let (sessions, relay_waiting, relay_pairs) =
            (Gauge::default(), Gauge::default(), Gauge::default());
        let (connections, handshake_failures) = (Counter::default(), Counter::default());
        registry.register("sessions", "Machines with a live session", sessions.clone());
        registry.register(
            "relay_waiting_connections",
            "Relay connections without a partner",
            relay_waiting.clone(),
        );
        registry.register("relay_pairs", "Carriers spliced by the relay", relay_pairs.clone());
        registry.register("connections", "TLS connections accepted", connections.clone());
        registry.register(
            "tls_handshake_failures",
            "Connections that failed in TLS",
            handshake_failures.clone(),
        );
        Self {
            inner: Arc::new(Inner {
                registry,
                sessions,
                relay_waiting,
                relay_pairs,
                connections,
                handshake_failures,
            }),
        }
    }

    pub(crate) fn connection(&self) {
        self.inner.connections.inc();
    }

    pub(crate) fn handshake_failure(&self) {
        self.inner.handshake_failures.inc();
    }

    fn render(&self, hub: &Hub) -> Result<String, std::fmt::Error> {
        let number = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        let (waiting, pairs) = hub.relay_counts();
        self.inner.sessions.set(number(hub.session_count()));
        self.inner.relay_waiting.set(number(waiting));
        self.inner.relay_pairs.set(number(pairs));
        let mut text = String::new();
        encode(&mut text, &self.inner.registry)?;
        Ok(text)
    }
}

/// Serves `/metrics`, `/healthz` and `/readyz`.
pub(crate) async fn serve(
    listener: TcpListener,
    metrics: Metrics,
    hub: Hub,
    stop: CancellationToken,
) -> std::io::Result<()> {
    let app = Router::new()
        .route("/metrics", get(scrape))
        .route("/healthz", get(|| ready("ok")))
        .route("/readyz", get(|| ready("ok")))
        .with_state((metrics, hub));
    axum::serve(listener, app).with_graceful_shutdown(stop.cancelled_owned()).await
}

async fn scrape(State((metrics, hub)): State<(Metrics, Hub)>) -> impl IntoResponse {
    let kind = (header::CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8");
    let text = metrics.render(&hub).map_err(|_fmt| http::StatusCode::INTERNAL_SERVER_ERROR);
    ready(text.map(|text| ([kind], text))).await
}
