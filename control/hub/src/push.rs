//! Sends a node its routes: one endless request body of JSON lines in its session.

use std::{convert::Infallible, time::Duration};

use axum::body::Body;
use bytes::Bytes;
use control_api::{
    ids::NodeRef,
    session::{DomainRoutes, RouteUpdate, machine},
};
use http::Request;
use hyper::client::conn::http2::SendRequest;
use tokio::{
    sync::{broadcast::error::RecvError, mpsc},
    time::{MissedTickBehavior, interval},
};

use crate::{
    Hub,
    network::diff,
    peers::ToldPeers,
    ports::{Changed, Told},
    relayed::hide,
};

const KEEP_ALIVE: Duration = Duration::from_secs(1);
/// Updates that the connection has not taken yet. When they are full we wait, and the next
/// difference is made against the newest table: a slow node skips states, it does not pile them up.
const QUEUE: usize = 64;

/// Runs until the stream ends; then the session is closed, so that the node starts over with a
/// snapshot.
pub(crate) async fn routes(hub: &Hub, node: &NodeRef, mut sender: SendRequest<Body>) {
    let (lines, receiver) = mpsc::channel::<Bytes>(QUEUE);
    let stream = futures::stream::unfold(receiver, |mut r| async move {
        r.recv().await.map(|line| (Ok::<_, Infallible>(line), r))
    });
    let request = Request::post(format!("http://machine{}", machine::ROUTES))
        .header(http::header::CONTENT_TYPE, "application/x-ndjson")
        .body(Body::from_stream(stream));
    let request = match request {
        Ok(request) => request,
        Err(error) => return tracing::error!(%error, "the route request cannot be made"),
    };
    let answered = async {
        match sender.send_request(request).await {
            // A node may answer at once and read on; only an error status ends the stream.
            Ok(answer) if answer.status().is_success() => {
                use http_body_util::BodyExt as _;
                answer.into_body().collect().await.map(|_| ()).map_err(|e| e.to_string())
            }
            Ok(answer) => Err(format!("answered {}", answer.status())),
            Err(e) => Err(e.to_string()),
        }
    };
    tokio::select! {
        end = answered => tracing::info!(%node, ?end, "the route stream ended"),
        () = feed(hub, node, &lines) => {}
    }
}

/// Writes the snapshot, differences and keep-alives until nobody reads any more.
async fn feed(hub: &Hub, node: &NodeRef, lines: &mpsc::Sender<Bytes>) {
    let mut network = hub.inner.network.subscribe();
    let mut told: Option<Vec<DomainRoutes>> = None;
    let mut ports = hub.inner.open_ports.subscribe();
    let mut told_ports = Told::default();
    let mut relayed = hub.inner.relayed.subscribe();
    let mut standing = hub.inner.standing.changes();
    let mut told_peers = ToldPeers::default();
    let mut keep_alive = interval(KEEP_ALIVE);
    keep_alive.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let current = network.borrow_and_update().clone();
        if let Some(current) = current {
            let mut view = current.view(node);
            hide(&relayed.borrow_and_update(), node, &mut view);
            let mut updates = match &told {
                None => vec![RouteUpdate::Snapshot { domains: view.clone() }],
                Some(told) => diff(told, &view),
            };
            updates.extend(told_peers.news(hub, node, &view));
            updates.extend(told_ports.all(hub, node, &view));
            for update in &updates {
                if !send(lines, update).await {
                    return;
                }
            }
            told = Some(view);
        }
        // Until the table changes, or more of the ports than can be followed.
        loop {
            tokio::select! {
                changed = network.changed() => match changed {
                    Ok(()) => break,
                    Err(_) => return,
                },
                changed = relayed.changed() => match changed {
                    Ok(()) => break,
                    Err(_) => return,
                },
                change = ports.recv() => match (change, &told) {
                    (Ok(Changed(key)), Some(view)) => {
                        let line = told_ports.one(hub, node, view, &key);
                        if let Some(line) = line && !send(lines, &line).await {
                            return;
                        }
                    }
                    (Ok(_), None) => {}
                    (Err(RecvError::Lagged(_)), _) => break,
                    (Err(RecvError::Closed), _) => return,
                },
                changed = standing.changed() => match (changed, &told) {
                    (Ok(()), Some(view)) => {
                        for line in told_peers.news(hub, node, view) {
                            if !send(lines, &line).await {
                                return;
                            }
                        }
                    }
                    (Ok(()), None) => {}
                    (Err(_), _) => return,
                },
                _ = keep_alive.tick() => {
                    // Before the snapshot nothing else may be said.
                    if told.is_some() && !send(lines, &RouteUpdate::KeepAlive).await {
                        return;
                    }
                }
            }
        }
    }
}

async fn send(lines: &mpsc::Sender<Bytes>, update: &RouteUpdate) -> bool {
    match serde_json::to_vec(update) {
        Ok(mut line) => {
            line.push(b'\n');
            lines.send(line.into()).await.is_ok()
        }
        Err(error) => {
            tracing::error!(%error, "a route update cannot be encoded");
            false
        }
    }
}
