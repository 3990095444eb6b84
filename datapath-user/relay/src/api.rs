//! What the relay needs from its owner, and what it tells.

use std::{
    future::Future,
    io,
    net::{SocketAddr, TcpStream},
    pin::Pin,
    time::Duration,
};

use control_api::ids::{DomainName, NodeRef};
pub use control_api::session::{FlowState, Lane};
use datapath_net::thread::HALT_POLL_US;
pub use datapath_wire::Reason;
use russh::keys::{Certificate, PrivateKey, PublicKey};

/// What the traits' methods return.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The accepting end of flows: `rlark-node` implements it.
pub trait Deliver: Send + Sync + 'static {
    /// A peer's pod `src` wants `dst`. Checks that `src` is a pod of `domain` on `peer`
    /// ([`Reason::SourceForged`] if not) and `dst` one on this node ([`Reason::NotHere`]), and
    /// returns a connection made in the target's namespace with `src` as its source.
    ///
    /// Polled on a lane's thread: it must not block, and a future that is dropped (deadline, reset
    /// by the opener) must leave nothing behind. The relay itself limits it to
    /// [`RelayConfig::deliver_timeout`] and refuses with [`Reason::Timeout`] then. The tokio runtime
    /// that polls it has I/O and time enabled. The stream must be non-blocking
    /// and have TCP_NODELAY and, so that the application is told the truth if this process is killed, SO_LINGER 0.
    fn deliver<'a>(
        &'a self,
        domain: &'a DomainName,
        peer: &'a NodeRef,
        src: SocketAddr,
        dst: SocketAddr,
    ) -> BoxFuture<'a, Result<TcpStream, Reason>>;

    /// An IP packet from a peer, whatever it holds: the owner checks that it comes from a pod of
    /// `domain` on `peer` and is for one on this node, and drops it otherwise. Must not block. Does
    /// nothing unless implemented.
    fn packet(&self, domain: &DomainName, peer: &NodeRef, packet: &[u8]) {
        let _: (&DomainName, &NodeRef, &[u8]) = (domain, peer, packet);
    }

    /// Virtual addresses of this node's pods at which a TCP socket began to listen, or the last one ended, since the last call; and
    /// which of both is so now. Asked before anything leaves, so that a peer to whom a pod tells a port can connect to it at
    /// once: without news it must cost next to nothing. Must not block. None unless implemented.
    fn turned(&self) -> Vec<(DomainName, SocketAddr, bool)> {
        Vec::new()
    }

    /// The peer says so of one of its pods: the owner checks that the address is that of a pod on `peer`. What the pod sent
    /// afterwards comes when this has returned. Must not block. Does nothing unless implemented.
    fn peer_listens(&self, domain: &DomainName, peer: &NodeRef, said: Listening) {
        let _: (&DomainName, &NodeRef, Listening) = (domain, peer, said);
    }

    /// Told on the opening side when a flow to `dst` was refused by the peer, so that the owner can
    /// remember it for a second. Must not block. Does nothing unless implemented.
    fn refused(&self, domain: &DomainName, dst: SocketAddr, reason: Reason) {
        let _: (&DomainName, SocketAddr, Reason) = (domain, dst, reason);
    }

    /// Whether [`Deliver::tell`] is wanted now. Asked at the beginning and end of every flow: it must cost nothing.
    fn listens(&self) -> bool {
        false
    }

    /// Told of what begins and ends, while somebody listens. Called on a lane's thread: it must not block. Does nothing unless
    /// implemented.
    fn tell(&self, told: Told) {
        drop(told);
    }
}

/// Whether a virtual address is listened at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listening {
    /// A greater one is a later word of the same node.
    pub sequence: u64,
    pub at: SocketAddr,
    pub open: bool,
}

/// How to reach peers: `rlark-node` implements it.
pub trait Paths: Send + Sync + 'static {
    /// A fresh TCP connection whose other end calls [`crate::Relay::accept`] (hub: ticket and
    /// 7443, after `PAIRED\n`; direct: 7400). Called again, with jittered backoff, as long as a
    /// flow waits; limited to [`RelayConfig::dial_timeout`]. Polled on a lane's thread: it must
    /// not block.
    fn dial<'a>(
        &'a self,
        domain: &'a DomainName,
        peer: &'a NodeRef,
        lane: Lane,
    ) -> BoxFuture<'a, io::Result<Path>>;

    /// All ways to the peer, side by side: whichever stands first is used, and a direct one that
    /// comes later takes over what the hub's carries. Limited and called like [`Paths::dial`],
    /// which is all there is unless this is implemented.
    fn race<'a>(
        &'a self,
        domain: &'a DomainName,
        peer: &'a NodeRef,
        lane: Lane,
    ) -> BoxFuture<'a, io::Result<Race<'a>>> {
        let hub = self.dial(domain, peer, lane);
        Box::pin(async move { Ok(Race { hub, direct: None }) })
    }

    /// The direct way alone, while the hub's carrier stands: after [`crate::Relay::offer`] and
    /// [`crate::Relay::probe_direct`], and every [`RelayConfig::direct_every`].
    /// [`io::ErrorKind::Unsupported`] when the peer listens nowhere: it is not asked again until
    /// there is an offer.
    fn dial_direct<'a>(
        &'a self,
        domain: &'a DomainName,
        peer: &'a NodeRef,
        lane: Lane,
    ) -> BoxFuture<'a, io::Result<Path>> {
        let _: (&DomainName, &NodeRef, Lane) = (domain, peer, lane);
        Box::pin(async { Err(io::ErrorKind::Unsupported.into()) })
    }
}

/// The ways to a peer. Nothing is dialled before it is polled.
pub struct Race<'a> {
    pub hub: BoxFuture<'a, io::Result<Path>>,
    pub direct: Option<BoxFuture<'static, io::Result<Path>>>,
}

impl std::fmt::Debug for Race<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Race").field("direct", &self.direct.is_some()).finish_non_exhaustive()
    }
}

/// Over what a carrier runs; the first word of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Via {
    Hub,
    Direct,
}

impl Via {
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Hub => "hub",
            Self::Direct => "direct",
        }
    }
}

/// A TCP connection to a peer's relay, not yet authenticated.
#[derive(Debug)]
pub struct Path {
    pub stream: TcpStream,
    pub via: Via,
}

impl Path {
    #[must_use]
    pub fn hub(stream: TcpStream) -> Self {
        Self { stream, via: Via::Hub }
    }
    #[must_use]
    pub fn direct(stream: TcpStream) -> Self {
        Self { stream, via: Via::Direct }
    }
}

/// Proof of membership in one Domain.
pub struct DomainIdentity {
    /// Made on this node and never sent.
    pub key: PrivateKey,
    /// For `key`, with this node's [`NodeRef`] as its only principal. Its type (user or host) does
    /// not matter: the Domain's CA signs nothing else.
    pub certificate: Certificate,
    /// The Domain's certificate authority.
    pub ca: PublicKey,
}

impl std::fmt::Debug for DomainIdentity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DomainIdentity")
            .field("principals", &self.certificate.valid_principals())
            .field("valid_before", &self.certificate.valid_before())
            .finish_non_exhaustive()
    }
}

/// Limits and times. `Default` is what the product runs with.
#[derive(Clone, Debug)]
pub struct RelayConfig {
    /// This node; the principal of its certificates.
    pub node: NodeRef,
    /// How long the interactive lane waits awake for the next message before it sleeps (the bulk lane a
    /// quarter of it); 0: not at all.
    pub halt_poll: Duration,
    /// Flows with the same local pod address, either direction, per Domain. Of this and of the next two one pod and one
    /// peer get three quarters each, so that no one uses up what the others need.
    pub flows_per_pod: usize,
    pub flows_total: usize,
    /// File descriptors that all flows may have together; what else is admitted by [`crate::Relay::admit`] counts too.
    pub descriptors: usize,
    /// A flow's receive window at first, and at most (bytes).
    pub window: u64,
    pub window_max: u64,
    /// How much the windows of all flows may exceed their first size together (bytes).
    pub window_total: u64,
    /// After this many bytes (both directions) a flow moves to the bulk lane.
    pub bulk_after: u64,
    /// A flow whose peer was not heard for so long, because there is no carrier, is reset. More than a minute, so
    /// that an outage of a minute leaves time to make carriers again.
    pub resume_within: Duration,
    /// An unanswered open is reset after this.
    pub open_timeout: Duration,
    pub deliver_timeout: Duration,
    pub dial_timeout: Duration,
    /// Until TCP connection, keys, certificates and HELLO are done.
    pub handshake_timeout: Duration,
    /// The longest pause between two dials that somebody answered or that took long.
    pub backoff_max: Duration,
    /// And between two that cost nothing: nobody listens, or there is no way. This one decides how soon flows go on
    /// when the hub is back.
    pub backoff_closed: Duration,
    /// PING every so often; a carrier that is silent for `dead_after` is closed.
    pub ping_every: Duration,
    pub dead_after: Duration,
    /// A carrier without flows is closed after this.
    pub idle_carrier: Duration,
    /// And so is one through the hub after this, while a direct one of its lane stands.
    pub spare_carrier: Duration,
    /// How often a direct way that failed is tried again, about.
    pub direct_every: Duration,
    /// How long an offered direct way may wait for the peer's own attempt.
    pub offer_delay: Duration,
    /// For how long a peer that was cut off gets no direct carrier: longer than a ticket and a
    /// handshake last together.
    pub cut_for: Duration,
    /// How many ended flows [`crate::Relay::flows`] remembers.
    pub history: usize,
}

impl RelayConfig {
    #[must_use]
    pub fn new(node: NodeRef) -> Self {
        Self {
            node,
            halt_poll: Duration::from_micros(HALT_POLL_US.into()),
            flows_per_pod: 98_304,
            flows_total: 200_000,
            descriptors: usize::MAX,
            window: 256 << 10,
            window_max: 16 << 20,
            window_total: 256 << 20,
            bulk_after: 1 << 20,
            resume_within: Duration::from_secs(75),
            open_timeout: Duration::from_secs(30),
            deliver_timeout: Duration::from_secs(140),
            dial_timeout: Duration::from_secs(5),
            handshake_timeout: Duration::from_secs(10),
            backoff_max: Duration::from_secs(1),
            backoff_closed: Duration::from_millis(200),
            ping_every: Duration::from_secs(5),
            dead_after: Duration::from_secs(15),
            idle_carrier: Duration::from_secs(300),
            spare_carrier: Duration::from_secs(10),
            direct_every: Duration::from_secs(300),
            offer_delay: Duration::from_secs(2),
            cut_for: Duration::from_secs(60),
            history: 256,
        }
    }
}

/// A flow to open: the application's connection has landed here.
#[derive(Clone, Debug)]
pub struct OpenRequest {
    pub domain: DomainName,
    /// Where the target's pod runs.
    pub peer: NodeRef,
    /// The client's virtual address and port, and the target's.
    pub src: SocketAddr,
    pub dst: SocketAddr,
    /// For display only.
    pub from_pod: String,
    pub to_pod: String,
}

/// One flow, living or recently ended.
#[derive(Clone, Debug)]
pub struct FlowStats {
    /// Unique within this process.
    pub id: u64,
    pub domain: DomainName,
    pub peer: NodeRef,
    pub src: SocketAddr,
    pub dst: SocketAddr,
    /// Empty on the accepting side, which is not told the names.
    pub from_pod: String,
    pub to_pod: String,
    /// Such as `hub:site-b/n1:bulk`; `-` while the flow has none.
    pub carrier: String,
    pub state: FlowState,
    /// From the connecting side to the accepting one, and back (bytes).
    pub bytes_out: u64,
    pub bytes_in: u64,
    /// The carrier's smoothed round-trip time, once measured.
    pub rtt: Option<Duration>,
    /// Segments of the carrier that the kernel sent again, all its flows' together; while it has one.
    pub retransmits: Option<u64>,
    pub age: Duration,
    /// Whether this node is the connecting side.
    pub outgoing: bool,
    /// Whether the far end ever accepted it.
    pub stood: bool,
    /// Why it failed.
    pub reason: Option<Reason>,
}

/// What [`Deliver::tell`] tells.
#[derive(Clone, Debug)]
pub enum Told {
    /// Both ends stand.
    Opened(FlowStats),
    /// It ended, or never stood ([`FlowStats::stood`]).
    Ended(FlowStats),
    /// It was refused before there was a flow.
    Refused {
        domain: DomainName,
        src: SocketAddr,
        dst: SocketAddr,
        reason: Reason,
    },
    CarrierUp {
        domain: DomainName,
        peer: NodeRef,
        name: String,
    },
    CarrierDown {
        domain: DomainName,
        peer: NodeRef,
        name: String,
        why: &'static str,
    },
}

/// Why a packet was lost before it left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
pub enum PacketLoss {
    #[error("no identity in the Domain")]
    NoIdentity,
    #[error("longer than a frame holds")]
    TooLarge,
    #[error("the peer takes no packets, or is gone")]
    NoPeer,
    #[error("the carrier has as many waiting as it may")]
    QueueFull,
}

impl PacketLoss {
    /// A stable metric label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NoIdentity => "no_identity",
            Self::TooLarge => "too_large",
            Self::NoPeer => "no_peer",
            Self::QueueFull => "queue_full",
        }
    }
}

/// Totals since the start of the process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    pub flows_opened: u64,
    pub flows_accepted: u64,
    /// Ended in order, both ways.
    pub flows_closed: u64,
    /// Refused, reset or lost, by reason; every reason is listed.
    pub flows_failed: Vec<(Reason, u64)>,
    pub carriers_up: u64,
    pub carriers_lost: u64,
    pub dials_failed: u64,
    /// Peers that could not prove who they should be.
    pub peers_refused: u64,
    pub flows_resumed: u64,
    pub flows_moved: u64,
    /// From the hub to a direct carrier.
    pub flows_upgraded: u64,
    /// Segments that the kernel sent again on carriers, ended ones included.
    pub carrier_retransmits: u64,
    /// Packets that waited for a carrier in vain.
    pub packets_stale: u64,
    pub flows_now: u64,
    pub carriers_now: u64,
}

/// What [`crate::Relay::directs`] tells of one peer.
#[derive(Clone, Debug)]
pub struct DirectStats {
    pub domain: DomainName,
    pub peer: NodeRef,
    /// Whether a direct carrier stands.
    pub stands: bool,
    /// Why the last attempt at one came to nothing, if there was one.
    pub failure: Option<String>,
}

/// What [`crate::Relay::carriers`] tells.
#[derive(Clone, Debug)]
pub struct CarrierStats {
    pub name: String,
    pub domain: DomainName,
    pub peer: NodeRef,
    pub lane: Lane,
    pub via: Via,
    pub rtt: Option<Duration>,
    /// Segments that the kernel sent again.
    pub retransmits: u64,
    pub age: Duration,
    pub flows: usize,
}

/// Why an operation of [`crate::Relay`] was not done.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    #[error("starting the thread of the {lane} lane")]
    Thread {
        lane: &'static str,
        #[source]
        source: io::Error,
    },
    #[error("no identity for domain {domain}")]
    NoIdentity { domain: DomainName },
    #[error("the certificate for domain {domain} is not for this node's key or name: {why}")]
    BadIdentity { domain: DomainName, why: &'static str },
    #[error("no path to {peer} for domain {domain}: {source}")]
    Path {
        domain: DomainName,
        peer: NodeRef,
        /// In the text: it says what failed.
        source: io::Error,
    },
    #[error("carrier with {peer} for domain {domain}: {why}")]
    Carrier { domain: DomainName, peer: NodeRef, why: String },
}

impl RelayError {
    /// The attempt cost nobody anything: nobody listens there, or there is no way to it.
    pub(crate) fn is_closed(&self) -> bool {
        use io::ErrorKind::{
            AddrNotAvailable, ConnectionRefused, HostUnreachable, NetworkDown, NetworkUnreachable,
        };
        let Self::Path { source, .. } = self else { return false };
        matches!(
            source.kind(),
            ConnectionRefused
                | NetworkUnreachable
                | HostUnreachable
                | NetworkDown
                | AddrNotAvailable
        )
    }
}
