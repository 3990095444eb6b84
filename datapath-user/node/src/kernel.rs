//! The seam between this node's decisions and the machine: everything that needs root, a real
//! kernel or another network namespace. [`real`] is the machine; tests put a double here and
//! nowhere else.

#[cfg(test)]
mod contract;
#[cfg(test)]
pub(crate) mod fake;
pub mod real;

use std::{
    io,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use control_api::{ports::Ports, session::ProbeHop};
use datapath_net::packet::Tap;
use futures::{future::BoxFuture, stream::BoxStream};
use rustix::io::Errno;
use tokio::net::TcpListener;

pub use datapath_loader::seen::End as DirectEnd;

pub use crate::plan::desired::is_host;
use crate::plan::{
    desired::{DomainId, Pod, Way},
    diff::Op,
};

/// What the machine refused.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    #[error("network namespace {path}")]
    Netns {
        path: PathBuf,
        #[source]
        source: Cause,
    },
    #[error("cgroup {path}")]
    Cgroup {
        path: PathBuf,
        #[source]
        source: Cause,
    },
    #[error("pod {uid}: {step}")]
    Pod {
        uid: String,
        step: &'static str,
        #[source]
        source: Cause,
    },
    #[error("map {map}")]
    Map {
        map: &'static str,
        #[source]
        source: Cause,
    },
    #[error("{what}")]
    Probe {
        what: String,
        #[source]
        source: Cause,
    },
}

impl KernelError {
    /// Whether it may pass without anybody doing anything: the machine is out of descriptors or memory.
    #[must_use]
    pub fn is_shortage(&self) -> bool {
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(self);
        while let Some(e) = cause {
            let errno = e.downcast_ref::<io::Error>().and_then(Errno::from_io_error);
            if matches!(errno, Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM)) {
                return true;
            }
            cause = e.source();
        }
        false
    }

    /// What of a request it concerns: a refusal's reason.
    #[must_use]
    pub const fn about(&self) -> &'static str {
        match self {
            Self::Netns { .. } => "netns",
            Self::Cgroup { .. } => "cgroup",
            Self::Pod { .. } | Self::Map { .. } | Self::Probe { .. } => "kernel",
        }
    }
}

/// The cause below, of whichever mechanism.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// A pod to be set up inside its namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Join {
    pub uid: String,
    pub netns: PathBuf,
    /// Of a pod on the host network.
    pub cgroup: Option<PathBuf>,
    pub cookie: u64,
    pub pod: Pod,
}

/// An open connection that the hooks sent directly, as its pods see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectFlow {
    /// The connecting socket's cookie.
    pub id: u64,
    /// Of the namespace that it is in.
    pub cookie: u64,
    pub domain: DomainId,
    pub from: SocketAddr,
    pub to: SocketAddr,
    /// False while the first packet has no answer.
    pub established: bool,
    pub rtt: Option<Duration>,
    /// Segments sent again; `None`: not known.
    pub retransmits: Option<u64>,
    /// From the connecting side, and to it.
    pub bytes_out: u64,
    pub bytes_in: u64,
    pub age: Duration,
}

/// What the hooks see while they are asked to tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// A call of process `pid`, in the pod with that namespace, failed with `errno`.
    Refused {
        cookie: u64,
        udp: bool,
        to: SocketAddr,
        reason: &'static str,
        errno: u32,
        pid: u32,
    },
    Opened(DirectFlow),
    Ended(DirectFlow, DirectEnd),
    /// So many found no room.
    Lost(u64),
}

/// How often the programs decided something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    pub domain: DomainId,
    /// `pass`, `deny`, `direct` or `relay`.
    pub verdict: &'static str,
    pub reason: &'static str,
    pub count: u64,
}

/// [`Socket::at`] of a listener on `::` that takes no IPv4.
pub use datapath_loader::ANY_V6_ONLY;

/// A socket that peers may reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Socket {
    /// Of its pod's namespace.
    pub cookie: u64,
    /// UDP: bound to the VIP, and the address says nothing. TCP: listening.
    pub udp: bool,
    pub at: SocketAddr,
}

/// What the hooks tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changed {
    /// One such socket came or went.
    Socket(Socket),
    /// Too much at once: all must be looked at again.
    All,
}

/// What the node asks of the machine. Methods without a future are quick (map access).
pub trait Kernel: Send + Sync + 'static {
    /// Whether hooks decide inside connect(). Without them nothing is direct, nobody knows who listens in this machine's pods, and
    /// none of them is on the host network.
    fn steers(&self) -> bool;

    /// By what the kernel knows the pod: its namespace, or, in the machine's own, its cgroup ([`is_host`]).
    ///
    /// # Errors
    /// A path does not name what it should, the machine's namespace comes without a cgroup or another one with it, or there are no
    /// hooks that would know it by that.
    fn identify(&self, netns: &Path, cgroup: Option<&Path>) -> Result<u64, KernelError>;

    /// Sets the pod up, in this order: landing listener, guard, `rl0` with its routes. Idempotent.
    /// The listener accepts what the guard lands; its connections' local address is the peer that
    /// the pod wanted to reach. For a pod on the host network there are only listeners, one per address family, and
    /// [`Kernel::asked`] tells the peer.
    fn join(&self, join: Join) -> BoxFuture<'_, Result<Vec<TcpListener>, KernelError>>;

    /// Undoes [`Kernel::join`] in the opposite order: without the route nothing is misdelivered
    /// when the guard goes. A namespace that is gone is success.
    fn leave(&self, join: Join) -> BoxFuture<'_, Result<(), KernelError>>;

    /// Carries out one map operation. [`Op::WriteHosts`] is the keeper's own.
    ///
    /// # Errors
    /// The map is full or gone.
    fn apply(&self, op: &Op) -> Result<(), KernelError>;

    /// Brings the maps to empty of everything that `keep` does not hold; for pinned maps that an
    /// earlier process left.
    ///
    /// # Errors
    /// A map cannot be read.
    fn sweep(&self, keep: &crate::plan::desired::Desired) -> Result<(), KernelError>;

    /// What the map holds for a VIP, for the probe.
    fn way(&self, domain: DomainId, vip: IpAddr) -> Option<Way>;

    /// Connects inside the pod's namespace: to deliver (bound to `from`) or to probe. The future
    /// needs a tokio runtime with I/O and time, any; dropped, it leaves nothing. Non-blocking mode.
    fn connect(
        &self,
        cookie: u64,
        from: Option<IpAddr>,
        to: SocketAddr,
        within: Duration,
    ) -> BoxFuture<'_, io::Result<std::net::TcpStream>>;

    /// What a pod on the host network wanted to reach with a connection that its listener accepted from `from`; told once. `None`: the
    /// connection is not the pod's.
    fn asked(&self, cookie: u64, from: SocketAddr) -> Option<SocketAddr>;

    /// What the pod sends that is no stream, from now on. Must be called inside the runtime that reads it.
    ///
    /// # Errors
    /// The pod has not joined, or its interface is gone.
    fn tap(&self, cookie: u64) -> io::Result<Tap>;

    /// Delivers an IP packet to the pod, at its own address `to`.
    ///
    /// # Errors
    /// The packet is lost.
    fn inject(&self, cookie: u64, to: IpAddr, packet: &[u8]) -> io::Result<()>;

    /// Kernel features and machine-wide attachments.
    fn checks(&self) -> Vec<ProbeHop>;

    /// What stands in one pod: guard, `rl0`, routes.
    fn pod_checks(&self, join: Join) -> BoxFuture<'_, Vec<ProbeHop>>;

    /// Open flows that the hooks sent directly.
    fn direct_flows(&self) -> Vec<DirectFlow>;

    /// What the programs have counted since they were loaded.
    fn counts(&self) -> Vec<Count>;

    /// For a second, connects to `to` get the errno that the far end gave.
    fn remember_refusal(&self, domain: DomainId, to: SocketAddr, errno: i32);

    /// Makes `new` all that is known of the ports of a pod of another machine, `old` being what was known; `None`: unknown.
    ///
    /// # Errors
    /// The map is full; the ports are then unknown.
    fn mirror(
        &self,
        number: u64,
        old: Option<&Ports>,
        new: Option<&Ports>,
    ) -> Result<(), KernelError>;

    /// What is known of other machines' ports counts for this long from now.
    fn trust_mirror(&self, within: Duration);

    /// Of which sockets something changed from now on; the first caller has it. Must be called inside a runtime.
    fn changes(&self) -> Option<BoxStream<'static, Changed>>;

    /// TCP sockets that began to listen or ended since the last call, from when [`Kernel::changes`] was called; which of both,
    /// [`Kernel::is_open`] says. Whatever a pod did after it called listen() finds the socket here or in an earlier answer. Quick,
    /// most of all when there are none.
    fn turned(&self) -> Vec<Socket>;

    /// All sockets of this machine's pods that listen, and those of UDP that are bound to a VIP.
    fn sockets(&self) -> Vec<Socket>;

    /// Whether that socket is there now.
    fn is_open(&self, socket: &Socket) -> bool;

    /// A member spoke from a socket that is bound to its VIP: what is sent to it for a while goes there.
    fn answer_on_vip(&self, domain: DomainId, member: SocketAddr, ttl: Duration);

    /// What the hooks see while [`Kernel::watch`] holds; the first caller has it. Must be called inside a runtime.
    fn seen(&self) -> Option<BoxStream<'static, Seen>>;

    /// The hooks tell what they see for this long from now; zero: no longer.
    fn watch(&self, within: Duration);

    /// Sends an echo request inside the pod's namespace, from its address to another, and waits for the answer.
    fn echo(
        &self,
        cookie: u64,
        from: IpAddr,
        to: IpAddr,
        within: Duration,
    ) -> BoxFuture<'_, io::Result<Duration>>;

    /// Before the process ends for good: takes out what is not pinned. `joins` are all pods.
    fn shut_down(&self, joins: Vec<Join>) -> BoxFuture<'_, ()>;
}
