//! Prometheus metrics and health, on an address of the operator's choice. No label names a flow or
//! a pod: what grows with traffic is in `rlark flows`.

use std::sync::Arc;

use axum::{Router, extract::State, http::header, response::IntoResponse, routing::get};
use prometheus_client::{
    encoding::text::encode,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

use datapath_relay::Via;

use crate::observe::Observer;

type Labels = Vec<(&'static str, String)>;

/// `GET /metrics` and `GET /healthz`.
pub fn router(observer: Arc<Observer>) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(|| async { "ok\n" }))
        .with_state(observer)
}

async fn metrics(State(of): State<Arc<Observer>>) -> impl IntoResponse {
    let content = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, content)], render(&of))
}

/// The sources count by themselves; every scrape makes a fresh registry of their values.
fn render(of: &Observer) -> String {
    let mut registry = Registry::with_prefix("rlark_node");
    kernel(of, &mut registry);
    relay(of, &mut registry);
    let pods = Gauge::<i64>::default();
    pods.set(amount(of.keeper.view().pods.len()));
    registry.register("pods", "Pods attached on this node", pods);
    let refusals = Family::<Labels, Counter>::default();
    for (reason, n) in of.refusal_counts() {
        refusals.get_or_create(&vec![("reason", reason)]).inc_by(n);
    }
    registry.register("refusals", "Refused, reset and lost connections by reason", refusals);
    let mut text = String::new();
    match encode(&mut text, &registry) {
        Ok(()) => text,
        // Writing to a String does not fail; an empty scrape would be noticed.
        Err(e) => format!("# {e}\n"),
    }
}

fn kernel(of: &Observer, registry: &mut Registry) {
    let decisions = Family::<Labels, Counter>::default();
    for c in of.kernel.counts() {
        let labels = vec![("verdict", c.verdict.to_owned()), ("reason", c.reason.to_owned())];
        decisions.get_or_create(&labels).inc_by(c.count);
    }
    registry.register("decisions", "What the kernel's programs decided", decisions);
    let direct = Gauge::<i64>::default();
    direct.set(amount(of.kernel.direct_flows().len()));
    registry.register("direct_flows", "Open direct flows from pods of this node", direct);
}

fn relay(of: &Observer, registry: &mut Registry) {
    let c = of.relay.counters();
    let gauges = [
        ("relayed_flows", "Open relayed flows", c.flows_now),
        ("carriers", "Standing carriers", c.carriers_now),
    ];
    for (name, help, value) in gauges {
        let gauge = Gauge::<i64>::default();
        gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        registry.register(name, help, gauge);
    }
    let paths = Family::<Labels, Gauge>::default();
    for via in [Via::Hub, Via::Direct] {
        let n = of.relay.carriers().iter().filter(|c| c.via == via).count();
        paths.get_or_create(&vec![("path", via.as_str().to_owned())]).set(amount(n));
    }
    registry.register("carriers_by_path", "Standing carriers, through the hub and direct", paths);
    let counters = [
        ("flows_opened", "Relayed flows opened by pods of this node", c.flows_opened),
        ("flows_accepted", "Relayed flows accepted for pods of this node", c.flows_accepted),
        ("flows_closed", "Relayed flows that ended in order", c.flows_closed),
        ("flows_resumed", "Relayed flows resumed on another carrier", c.flows_resumed),
        ("flows_moved", "Relayed flows moved to another lane", c.flows_moved),
        (
            "flows_upgraded",
            "Relayed flows moved from the hub to a direct carrier",
            c.flows_upgraded,
        ),
        ("carriers_up", "Carriers established", c.carriers_up),
        ("carriers_lost", "Carriers lost", c.carriers_lost),
        ("dials_failed", "Attempts to reach a peer that failed", c.dials_failed),
        ("peers_refused", "Peers that could not prove who they are", c.peers_refused),
    ];
    for (name, help, value) in counters {
        let counter = Counter::<u64>::default();
        counter.inc_by(value);
        registry.register(name, help, counter);
    }
}

fn amount(n: usize) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}
