//! The hub: where machines enrol, keep their sessions, learn their routes and find each other.
//!
//! It owns the registry of live sessions, the table of the virtual networks and the relay's
//! tickets; everything durable (tokens, machines, Domain authorities) are objects of the API
//! server, reached through a kube client. `rlark-server` mounts [`Hub::router`] on 8443, hands it
//! accepted sessions ([`Hub::serve_session`]) and the relay's connections ([`Hub::serve_relay`]),
//! and runs [`Hub::run`].

mod carriers;
mod direct;
mod domain_ca;
mod enrol;
mod fanout;
mod logs;
mod machines;
mod network;
mod peers;
mod policy;
mod ports;
mod push;
mod refuse;
mod relay;
mod relayed;
mod sessions;
mod standing;
mod tokens;
mod watch;

use std::{
    net::SocketAddr,
    sync::{Arc, Weak},
};

use control_identity::{ca::Authority, peer::Peer};
use kube::Client;
use tokio_util::sync::CancellationToken;

pub use datapath_net::thread::HALT_POLL_US;
pub use logs::{LogError, LogQuery};
pub use network::{Network, NetworkDomain, diff};
pub use policy::{Policy, routes};
pub use sessions::SessionError;
pub use standing::Member;
pub use watch::WatchError;

use crate::{
    domain_ca::DomainAuthorities, machines::Machines, network::Published, sessions::Sessions,
    standing::Standing, tokens::Tokens,
};

/// Who is at the other end of a connection; the server's accept loop puts it into each request's
/// extensions. `peer` is `None` without a client certificate.
#[derive(Clone, Debug)]
pub struct Caller {
    pub peer: Option<Peer>,
    pub remote: SocketAddr,
}

/// The hub; cheap to clone.
#[derive(Clone)]
pub struct Hub {
    inner: Arc<Inner>,
}

/// A hub seen from what the hub itself depends on (the API server's `pods/log`), so that the two
/// do not keep each other alive.
#[derive(Clone)]
pub struct WeakHub {
    inner: Weak<Inner>,
}

impl WeakHub {
    /// `None` once the hub is gone.
    #[must_use]
    pub fn upgrade(&self) -> Option<Hub> {
        self.inner.upgrade().map(|inner| Hub { inner })
    }
}

impl std::fmt::Debug for WeakHub {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("WeakHub")
    }
}

struct Inner {
    authority: Arc<Authority>,
    client: Client,
    tokens: Tokens,
    machines: Machines,
    sessions: Sessions,
    standing: Standing,
    domains: DomainAuthorities,
    network: Published,
    open_ports: ports::OpenPorts,
    addresses: direct::Addresses,
    relayed: relayed::Relayed,
    tickets: carriers::Tickets,
    relay: relay::Limits,
}

impl std::fmt::Debug for Hub {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hub").field("sessions", &self.inner.sessions.len()).finish_non_exhaustive()
    }
}

impl Hub {
    /// `client` must be allowed to do everything (in process, as an admin).
    #[must_use]
    pub fn new(authority: Arc<Authority>, client: Client) -> Self {
        Self {
            inner: Arc::new(Inner {
                tokens: Tokens::new(client.clone()),
                machines: Machines::new(client.clone()),
                sessions: Sessions::default(),
                standing: Standing::default(),
                domains: DomainAuthorities::new(client.clone()),
                network: Published::default(),
                open_ports: ports::OpenPorts::default(),
                addresses: direct::Addresses::default(),
                relayed: relayed::Relayed::default(),
                tickets: carriers::Tickets::default(),
                relay: relay::Limits::default(),
                authority,
                client,
            }),
        }
    }

    /// See [`WeakHub`].
    #[must_use]
    pub fn downgrade(&self) -> WeakHub {
        WeakHub { inner: Arc::downgrade(&self.inner) }
    }

    /// All routes the hub serves, each behind its policy.
    pub fn router(&self) -> axum::Router {
        routes().into_router(self.clone())
    }

    /// Watches Domains, Pods and machine records, publishes routes and knows who stands, until `stop`. The error means that the API
    /// server's objects cannot be had at all.
    pub async fn run(&self, stop: CancellationToken) -> Result<(), WatchError> {
        watch::run(self, stop).await
    }

    /// How many machines have a session now.
    #[must_use]
    pub fn session_count(&self) -> usize {
        self.inner.sessions.len()
    }

    /// How many relay connections wait for their other end, and how many are paired.
    #[must_use]
    pub fn relay_counts(&self) -> (usize, usize) {
        self.inner.relay.counts()
    }
}
