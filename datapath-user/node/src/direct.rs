//! Direct carriers: past the hub, where this machine's port 7400 (off unless `--direct-port` is
//! given) can be reached by a peer, or a peer's by this machine.
//!
//! * `expected`: the tickets with which peers may come, as the hub told us.
//! * `listener`: the port; a stranger costs it one short read.
//! * `dial`: to a peer that listens.
//! * `addresses`: where we listen, for the hub; and when to try again.
//! * `peers`: which machines are behind the peers, so that one that was removed is cut off.

pub mod addresses;
pub mod dial;
pub mod expected;
pub mod listener;
pub mod peers;

use std::{net::SocketAddr, sync::Arc};

use tokio::sync::watch;

use self::{addresses::Own, expected::Expected, peers::Peers};

/// What the session needs of it. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Direct {
    /// `None`: this machine does not listen.
    pub expected: Option<Arc<Expected>>,
    pub peers: Arc<Peers>,
    pub own: watch::Receiver<Arc<Own>>,
}

/// The hub is not believed blindly either.
pub(crate) fn candidates(own: &Own, offered: &[SocketAddr]) -> Vec<SocketAddr> {
    let all = control_api::direct::tidy(offered.iter().copied());
    // Private ranges repeat: an address of our own is not the peer.
    all.into_iter().filter(|a| !own.ips.contains(&a.ip())).collect()
}
