//! The two ends of a pair, each suited to its own path for as long as the pair lasts.

use std::{
    future::Future,
    net::TcpStream as StdStream,
    os::fd::{AsFd as _, OwnedFd},
};

use datapath_net::{
    path::{self, Path},
    sockets::{self, Tuning},
};
use tokio::{net::TcpStream, time::MissedTickBehavior};

/// Chooses now; the future looks again, for ever. Call it inside the runtime that polls the future.
pub(super) fn suit(ends: [&TcpStream; 2]) -> impl Future<Output = ()> + Send + use<> {
    let mut watched: Vec<(StdStream, Path)> = ends.into_iter().filter_map(watch).collect();
    async move {
        let mut look = tokio::time::interval(path::LOOK_EVERY);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            look.tick().await;
            watched.retain_mut(|(socket, path)| match path.look(&*socket) {
                Ok(true) => {
                    tracing::info!(peer = ?socket.peer_addr().ok(), "the path became long or lossy");
                    false
                }
                Ok(false) => true,
                Err(_) => false,
            });
        }
    }
}

fn watch(end: &TcpStream) -> Option<(StdStream, Path)> {
    // A machine that is gone without a word must not hold its end for a quarter of an hour.
    let chosen = sockets::keep_alive(end, Tuning::default()).and_then(|()| {
        let path = Path::choose(end)?;
        let double: OwnedFd = end.as_fd().try_clone_to_owned()?;
        Ok((StdStream::from(double), path))
    });
    chosen
        .inspect_err(|error| tracing::debug!(%error, "a carrier keeps the machine's settings"))
        .ok()
}
