//! The listener on 8443: TLS, who is calling, and where the connection goes.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Router,
    extract::Request,
    response::{IntoResponse as _, Response},
};
use control_api::session::{SESSION_ALPN, hub::ENROLL};
use control_hub::{Caller, Hub, Member};
use control_identity::{peer::Peer, principal::Principal};
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::conn::auto,
    service::TowerToHyperService,
};
use rustls::ServerConfig;
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::timeout,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use crate::metrics::Metrics;

const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long open requests may go on once the server is to stop. Watches end at once.
const DRAIN: Duration = Duration::from_secs(5);
/// Under the usual limit of descriptors, so that a flood cannot starve the store of them.
const MAX_CONNECTIONS: usize = 16_384;

/// What every connection needs.
#[derive(Clone)]
pub(crate) struct Edge {
    pub(crate) tls: Arc<ServerConfig>,
    pub(crate) app: Router,
    pub(crate) hub: Hub,
    pub(crate) metrics: Metrics,
}

impl Edge {
    /// Accepts until `stop`, then lets open requests finish.
    pub(crate) async fn serve(self, listener: TcpListener, stop: CancellationToken) {
        let mut connections = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                () = stop.cancelled() => break,
                Some(_) = connections.join_next(), if !connections.is_empty() => continue,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((_, remote)) if connections.len() >= MAX_CONNECTIONS => {
                    tracing::warn!(%remote, "too many connections, closing the newest");
                }
                Ok((stream, remote)) => {
                    connections.spawn(self.clone().connection(stream, remote, stop.clone()));
                }
                Err(error) => {
                    // Out of descriptors, most likely: wait for some to be freed.
                    tracing::warn!(%error, "accepting a connection failed");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
        let drained = timeout(DRAIN, async { while connections.join_next().await.is_some() {} });
        if drained.await.is_err() {
            tracing::info!(open = connections.len(), "closing connections that did not finish");
        }
    }

    async fn connection(self, stream: TcpStream, remote: SocketAddr, stop: CancellationToken) {
        self.metrics.connection();
        let handshake = async {
            stream.set_nodelay(true)?;
            TlsAcceptor::from(Arc::clone(&self.tls)).accept(stream).await
        };
        let stream = match timeout(HANDSHAKE, handshake).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => {
                self.metrics.handshake_failure();
                // A port scan or a load balancer's check is nothing to tell about.
                if error.kind() == io::ErrorKind::UnexpectedEof {
                    tracing::debug!(%remote, "connection without a handshake");
                } else {
                    tracing::info!(%remote, %error, "TLS handshake failed");
                }
                return;
            }
            Err(_elapsed) => {
                self.metrics.handshake_failure();
                return;
            }
        };
        let peer = match peer_of(&stream) {
            Ok(peer) => peer,
            Err(error) => return tracing::warn!(%remote, %error, "client certificate refused"),
        };
        if stream.get_ref().1.alpn_protocol() == Some(SESSION_ALPN) {
            Box::pin(self.session(stream, peer, remote, stop)).await;
        } else {
            self.requests(stream, Caller { peer, remote }, stop).await;
        }
    }

    async fn session(
        &self,
        stream: TlsStream<TcpStream>,
        peer: Option<Peer>,
        remote: SocketAddr,
        stop: CancellationToken,
    ) {
        let Some(peer) = peer else {
            return tracing::info!(%remote, "a session without a client certificate was refused");
        };
        if let Err(error) = self.hub.serve_session(stream, peer, remote, stop).await {
            let cause = std::error::Error::source(&error).map(ToString::to_string);
            tracing::info!(%remote, %error, ?cause, "session ended");
        }
    }

    async fn requests(self, stream: TlsStream<TcpStream>, caller: Caller, stop: CancellationToken) {
        let principal = principal_of(&caller);
        let member = caller.peer.as_ref().and_then(Member::of);
        let (hub, inner, standing) = (self.hub.clone(), self.app, member.clone());
        let app = tower::service_fn(move |mut request: Request<hyper::body::Incoming>| {
            request.extensions_mut().insert(caller.clone());
            request.extensions_mut().insert(principal.clone());
            let (hub, inner, standing) = (hub.clone(), inner.clone(), standing.clone());
            async move {
                if let Some(member) = standing.filter(|_| request.uri().path() != ENROLL)
                    && !hub.admits(&member).await
                {
                    return Ok(removed(&member));
                }
                inner.oneshot(request.map(axum::body::Body::new)).await
            }
        });
        let mut builder = auto::Builder::new(TokioExecutor::new());
        builder.http1().timer(TokioTimer::new()).header_read_timeout(HANDSHAKE);
        builder
            .http2()
            .timer(TokioTimer::new())
            .keep_alive_interval(Duration::from_secs(30))
            .max_concurrent_streams(1024);
        let service = TowerToHyperService::new(app);
        // With upgrades: exec and port forwarding need them.
        let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
        tokio::pin!(connection);
        let removal = async {
            match &member {
                // A first call in vain is answered; from then on, and for open watches, the end is
                // the connection's.
                Some(member) if self.hub.admits(member).await => self.hub.removal(member).await,
                _ => std::future::pending().await,
            }
        };
        let end = tokio::select! {
            end = connection.as_mut() => end,
            () = removal => return tracing::info!("connection of a removed machine closed"),
            () = stop.cancelled() => {
                connection.as_mut().graceful_shutdown();
                match timeout(DRAIN / 2, connection).await {
                    Ok(end) => end,
                    Err(_watches_are_endless) => Ok(()),
                }
            }
        };
        if let Err(error) = end {
            tracing::debug!(%error, "connection ended");
        }
    }
}

/// The answer to a machine that does not stand: a Kubernetes Status, which is a refusal of the hub
/// as well (`reason` and `message`).
fn removed(member: &Member) -> Response {
    let status = serde_json::json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": member.removed(), "reason": "machine-removed", "code": 403,
    });
    (http::StatusCode::FORBIDDEN, axum::Json(status)).into_response()
}

/// The verified client certificate's content.
fn peer_of(
    stream: &TlsStream<TcpStream>,
) -> Result<Option<Peer>, control_identity::peer::PeerError> {
    let certificates = stream.get_ref().1.peer_certificates();
    certificates.and_then(|chain| chain.first()).map(Peer::parse).transpose()
}

/// For everything but renewal an expired certificate is none.
fn principal_of(caller: &Caller) -> Principal {
    match &caller.peer {
        Some(peer) if !peer.expired(std::time::SystemTime::now()) => peer.principal.clone(),
        _ => Principal::Anonymous,
    }
}
