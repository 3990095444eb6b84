//! The machine's end of its session: it dials the hub and serves HTTP/2 on that connection.
//!
//! Used by `rlark-agent` (pod logs) and `rlark-node` (routes, dials, flows). See
//! [`control_api::session`] for the protocol.

use std::{
    io::ErrorKind,
    net::{IpAddr, UdpSocket},
    sync::Arc,
    time::Duration,
};

use axum::Router;
use hyper::server::conn::http2;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use crate::{
    ca::SERVER_NAME,
    client::{self, ConnectError},
    digest,
    machine::Identity,
};

/// Whether the hub can reach this machine now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionState {
    Connecting,
    Connected,
}

const FIRST_PAUSE: Duration = Duration::from_millis(100);
/// After attempts that somebody answered or that took long.
const LAST_PAUSE: Duration = Duration::from_secs(5);
/// After attempts that cost nothing, because nobody listens or there is no way: peers wait for this machine's session
/// to make carriers with it, so nothing but this pause may stand between the hub's return and a session.
const CLOSED_PAUSE: Duration = Duration::from_millis(200);
/// A connection that lasted this long was good: the next attempt is made soon again.
const GOOD: Duration = Duration::from_secs(10);
const PING_EVERY: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(10);

/// When to look whether the way to the hub is still there: whoever notices that this machine's addresses or routes
/// changed says so.
#[derive(Clone, Debug, Default)]
pub struct Moved(Arc<Notify>);

impl Moved {
    /// Addresses or routes of this machine changed.
    pub fn tell(&self) {
        self.0.notify_waiters();
    }
}

/// Keeps a session until `stop`: serves `app` to the hub, reconnects with a jittered pause of at
/// most 5 s (0.2 s while nobody listens at the hub's address), and connects anew when the certificate was renewed. `state` tells what stands.
pub async fn run(
    identity: Identity,
    app: Router,
    state: watch::Sender<SessionState>,
    stop: CancellationToken,
) {
    roaming(identity, app, state, Moved::default(), stop).await;
}

/// As [`run`], on a machine whose addresses are watched: when `moved` says that they changed, a session whose own
/// address is gone is replaced at once, and the next attempt is not waited for.
pub async fn roaming(
    identity: Identity,
    app: Router,
    state: watch::Sender<SessionState>,
    moved: Moved,
    stop: CancellationToken,
) {
    let mut pause = FIRST_PAUSE;
    loop {
        let started = Instant::now();
        let end = tokio::select! {
            () = stop.cancelled() => return,
            end = once(&identity, app.clone(), &state, &moved) => end,
        };
        state.send_replace(SessionState::Connecting);
        let closed = end.as_ref().is_err_and(ConnectError::is_closed);
        match end {
            Ok(End::Renewed) => continue,
            Ok(End::Moved) => {
                tracing::info!(server = %identity.server(), "the session's own address is gone");
                pause = FIRST_PAUSE;
                continue;
            }
            Ok(End::Closed(error)) => {
                tracing::info!(server = %identity.server(), error, "the session ended");
            }
            Err(error) => {
                let cause = std::error::Error::source(&error).map(ToString::to_string);
                tracing::warn!(%error, ?cause, "no session with the server");
            }
        }
        if started.elapsed() > GOOD {
            pause = FIRST_PAUSE;
        }
        pause = pause.min(if closed { CLOSED_PAUSE } else { LAST_PAUSE });
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(jitter(pause)) => {}
            () = moved.0.notified() => pause = FIRST_PAUSE,
        }
        pause *= 2;
    }
}

enum End {
    /// The certificate changed; the hub takes the new connection of the same key for the old one.
    Renewed,
    /// This machine has no longer the address from which it dialled.
    Moved,
    Closed(Option<String>),
}

async fn once(
    identity: &Identity,
    app: Router,
    state: &watch::Sender<SessionState>,
    moved: &Moved,
) -> Result<End, ConnectError> {
    let mut changed = identity.changed();
    changed.mark_unchanged();
    let stream = client::connect(identity.server(), SERVER_NAME, identity.session_config()).await?;
    let own = stream.get_ref().0.local_addr().ok().map(|a| a.ip());
    let connection = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_TIMEOUT)
        .max_concurrent_streams(1024)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(app));
    tracing::info!(server = %identity.server(), machine = %identity.machine(), "session connected");
    state.send_replace(SessionState::Connected);
    tokio::select! {
        end = connection => Ok(End::Closed(end.err().map(|e| e.to_string()))),
        _ = changed.changed() => Ok(End::Renewed),
        () = gone(own, moved) => Ok(End::Moved),
    }
}

/// Resolves once a change took the address from this machine.
async fn gone(own: Option<IpAddr>, moved: &Moved) {
    let Some(own) = own else { return std::future::pending().await };
    loop {
        let told = moved.0.notified();
        tokio::pin!(told);
        told.as_mut().enable();
        // What changed before this look was not told.
        if UdpSocket::bind((own, 0)).is_err_and(|e| e.kind() == ErrorKind::AddrNotAvailable) {
            return;
        }
        told.await;
    }
}

/// Between half of `pause` and all of it, so that a fleet does not return in step.
fn jitter(pause: Duration) -> Duration {
    let share = digest::random::<1>().map_or(128, |[b]| u32::from(b));
    pause / 2 + pause / 2 * share / 255
}
