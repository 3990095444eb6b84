//! What this node serves to the hub inside its session: routes and ports in, dials in, flows, probes and its own ports out.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::{
    Json, Router,
    body::Body,
    extract::State,
    http::StatusCode,
    routing::{get, post},
};
use control_api::{
    direct::{DirectOffer, ExpectRequest},
    ids::{DomainName, NodeRef},
    session::{DialRequest, Flow, Lane, ProbeReport, ProbeRequest, Refusal, RouteUpdate, machine},
};
use datapath_relay::{Path, Relay};
use futures::{StreamExt as _, TryStreamExt as _};
use tokio::{
    io::AsyncBufReadExt as _,
    sync::{Semaphore, watch},
};
use tokio_util::{io::StreamReader, task::TaskTracker};

use crate::{
    carriers,
    direct::{Direct, addresses, expected::Meeting},
    keeper::{Keeper, chain},
    mirror::Mirror,
    observe::Observer,
    plan::table::UpdateError,
    report::{self, Open},
};

/// The hub sends a line every second.
const SILENCE: Duration = Duration::from_secs(45);
/// One line; a snapshot of some ten thousand members.
const MAX_LINE: usize = 64 << 20;
/// Carriers that may be pairing at a time; more are told to come later.
const MAX_DIALS: usize = 64;

#[derive(Clone)]
struct App {
    keeper: Keeper,
    relay: Relay,
    observer: Arc<Observer>,
    mirror: Arc<Mirror>,
    open: watch::Receiver<Arc<Open>>,
    relay_address: Arc<str>,
    direct: Direct,
    dials: Arc<Semaphore>,
    tasks: TaskTracker,
    /// The newest route stream; an older one that lingers after a reconnect must not write.
    stream: Arc<AtomicU64>,
}

/// The routes of the session. `ports`: those of others in, our own out; `relay_address` is `host:port` of the hub's splice, `direct` what
/// goes past it; `tasks` owns the dials under way.
pub fn router(
    keeper: Keeper,
    relay: Relay,
    observer: Arc<Observer>,
    ports: (Arc<Mirror>, watch::Receiver<Arc<Open>>),
    (relay_address, direct): (&str, Direct),
    tasks: TaskTracker,
) -> Router {
    let (mirror, open) = ports;
    let app = App {
        keeper,
        relay,
        observer,
        mirror,
        open,
        relay_address: relay_address.into(),
        direct,
        dials: Arc::new(Semaphore::new(MAX_DIALS)),
        tasks,
        stream: Arc::default(),
    };
    Router::new()
        .route(machine::ROUTES, post(routes))
        .route(machine::REPORT, get(report))
        .route(machine::DIAL, post(dial))
        .route(machine::EXPECT, post(expect))
        .route(machine::FLOWS, get(flows))
        .route(machine::PROBE, post(probe))
        .with_state(app)
}

type Refused = (StatusCode, Json<Refusal>);

fn refuse(status: StatusCode, reason: &str, message: impl Into<String>) -> Refused {
    (status, Json(Refusal { reason: reason.to_owned(), message: message.into() }))
}

/// Applies the stream line by line. The answer ends it: the hub then opens a new one, which begins
/// with a snapshot.
async fn routes(State(app): State<App>, body: Body) -> Result<StatusCode, Refused> {
    let generation = app.stream.fetch_add(1, Ordering::SeqCst) + 1;
    let _end = End { app: &app, generation };
    let bytes = body.into_data_stream().map_err(std::io::Error::other).boxed();
    let mut reader = StreamReader::new(bytes);
    let (mut line, mut first) = (Vec::new(), true);
    loop {
        line.clear();
        let bad = |why: String| refuse(StatusCode::BAD_REQUEST, "route-stream", why);
        let read = read_line(&mut reader, &mut line);
        let n = tokio::time::timeout(SILENCE, read)
            .await
            .map_err(|_late| refuse(StatusCode::REQUEST_TIMEOUT, "silent", "no line for 45 s"))?
            .map_err(|e| bad(e.to_string()))?;
        if n == 0 {
            return Ok(StatusCode::OK);
        }
        if app.stream.load(Ordering::SeqCst) != generation {
            return Err(refuse(StatusCode::CONFLICT, "superseded", "a newer route stream is open"));
        }
        let update: RouteUpdate = serde_json::from_slice(&line).map_err(|e| bad(e.to_string()))?;
        if first && !matches!(update, RouteUpdate::Snapshot { .. }) {
            return Err(bad("the first line is not a snapshot".to_owned()));
        }
        if std::mem::take(&mut first) {
            app.mirror.forget_all();
        }
        app.mirror.confirmed();
        // The keeper works through all it has with every update: these are none of its business.
        match update {
            RouteUpdate::KeepAlive => continue,
            RouteUpdate::Ports { domain, uid, ports } => {
                app.mirror.say(domain, uid, ports);
                continue;
            }
            RouteUpdate::Peers { peers } => {
                app.direct.peers.replace(peers);
                continue;
            }
            RouteUpdate::Peer { node, machine } => {
                app.direct.peers.say(node, machine);
                continue;
            }
            _ => {}
        }
        let result = app.keeper.update(update).await;
        let result = result
            .map_err(|e| refuse(StatusCode::SERVICE_UNAVAILABLE, "shutting-down", e.to_string()))?;
        let lost = |e: &UpdateError| matches!(e, UpdateError::UnknownDomain { .. });
        if let Some(e) = result.err().and_then(|all| all.into_iter().find(lost)) {
            return Err(refuse(StatusCode::CONFLICT, "out-of-step", e.to_string()));
        }
    }
}

/// However the newest stream ends, by an answer or with its connection: nobody tells of ports then.
struct End<'a> {
    app: &'a App,
    generation: u64,
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        if self.app.stream.load(Ordering::SeqCst) == self.generation {
            self.app.mirror.distrust();
        }
    }
}

/// Reads up to and with the next line feed; 0 at the end.
async fn read_line(
    reader: &mut (impl tokio::io::AsyncBufRead + Unpin),
    line: &mut Vec<u8>,
) -> std::io::Result<usize> {
    loop {
        let available = reader.fill_buf().await?;
        if available.is_empty() {
            return Ok(line.len());
        }
        let end = available.iter().position(|b| *b == b'\n');
        let used = end.map_or(available.len(), |at| at + 1);
        line.extend_from_slice(available.get(..used).unwrap_or_default());
        reader.consume(used);
        if end.is_some() {
            return Ok(line.len());
        }
        if line.len() > MAX_LINE {
            return Err(std::io::Error::other("a line is longer than 64 MiB"));
        }
    }
}

async fn report(State(app): State<App>) -> Body {
    // The first line is the ports' snapshot: the first stream is asked first.
    let relayed_only = !app.observer.kernel.steers();
    let ports = report::lines(app.open, relayed_only);
    let all = futures::stream::select(ports, addresses::lines(app.direct.own));
    std::future::ready(Body::from_stream(all)).await
}

impl App {
    /// Refuses a peer that has no pod in the Domain.
    fn check_peer(&self, domain: &DomainName, peer: &NodeRef) -> Result<(), Refused> {
        let view = self.keeper.view();
        let known = view.table.domain(domain).is_some_and(|d| d.members().any(|m| m.node == *peer));
        if known {
            return Ok(());
        }
        let why = format!("{peer} has no pod in Domain {domain}");
        Err(refuse(StatusCode::FORBIDDEN, "unknown-peer", why))
    }

    /// The peer may come to our port, and we perhaps to its.
    fn offered(&self, domain: &DomainName, peer: &NodeRef, lane: Lane, offer: &DirectOffer) {
        if let Some(expected) = &self.direct.expected {
            let meeting = Meeting { domain: domain.clone(), peer: peer.clone(), lane };
            if !expected.expect(std::time::Instant::now(), &offer.ticket, meeting) {
                tracing::debug!(%peer, "too many direct carriers are expected");
            }
        }
        self.relay.offer(domain, peer, &offer.addresses);
    }
}

async fn expect(
    State(app): State<App>,
    Json(request): Json<ExpectRequest>,
) -> Result<StatusCode, Refused> {
    app.check_peer(&request.domain, &request.peer)?;
    app.offered(&request.domain, &request.peer, request.lane, &request.offer);
    std::future::ready(Ok(StatusCode::ACCEPTED)).await
}

async fn dial(
    State(app): State<App>,
    Json(request): Json<DialRequest>,
) -> Result<StatusCode, Refused> {
    app.check_peer(&request.domain, &request.peer)?;
    let Ok(permit) = Arc::clone(&app.dials).try_acquire_owned() else {
        let why = "too many carriers are being paired";
        return Err(refuse(StatusCode::TOO_MANY_REQUESTS, "busy", why));
    };
    let offer = request.ticket.direct.as_ref();
    if let Some(offer) = offer {
        app.offered(&request.domain, &request.peer, request.lane, offer);
    }
    // A peer that reached us directly leaves the hub.
    let may_leave = offer.is_some() && app.direct.expected.is_some();
    app.tasks.spawn(async move {
        let _permit = permit;
        let paired = carriers::pair(&app.relay_address, &request.ticket).await;
        let stream = match paired.map(tokio::net::TcpStream::into_std) {
            Ok(Ok(stream)) => stream,
            Ok(Err(e)) => return tracing::warn!(peer = %request.peer, error = %e, "carrier lost"),
            Err(e) if may_leave => {
                return tracing::debug!(peer = %request.peer, error = chain(&e), "no carrier");
            }
            Err(e) => {
                return tracing::warn!(peer = %request.peer, error = chain(&e), "no carrier");
            }
        };
        let DialRequest { domain, peer, lane, .. } = &request;
        if let Err(e) = app.relay.accept(domain, peer, *lane, Path::hub(stream)) {
            tracing::warn!(%domain, %peer, error = chain(&e), "carrier refused");
        }
    });
    Ok(StatusCode::ACCEPTED)
}

async fn flows(State(app): State<App>) -> Json<Vec<Flow>> {
    Json(app.observer.all_flows())
}

async fn probe(State(app): State<App>, Json(request): Json<ProbeRequest>) -> Json<ProbeReport> {
    Json(app.observer.probe(&request).await)
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
