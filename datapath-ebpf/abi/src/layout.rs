//! The map layouts. Change [`LAYOUT`] with every change of a size, an order or a meaning: pinned maps of
//! another layout are never adopted.
//!
//! Addresses are four words in network order; IPv4 is stored v4-mapped (`::ffff:a.b.c.d`), so both
//! families share one code path. Ports are in host order, in a word of their own.

/// Version of everything in this file; names the pin directory.
pub const LAYOUT: u32 = 5;

/// An address: the 16 bytes of its IPv6 form, as words in memory order.
pub type Ip = [u32; 4];

/// How many pods of one machine can have a guard at a time; each has a landing slot.
pub const MAX_GUARDS: u32 = 1024;

/// [`Vip::verdict`]: refuse with [`Vip::errno`].
pub const VERDICT_DENY: u32 = 0;
/// [`Vip::verdict`]: rewrite the destination to [`Vip::real`].
pub const VERDICT_DIRECT: u32 = 1;
/// [`Vip::verdict`]: leave the destination; the pod's guard lands it on the relay's listener.
pub const VERDICT_RELAY: u32 = 2;

/// [`Vip::check`]: connect without knowing whether anyone listens.
pub const CHECK_NONE: u32 = 0;
/// [`Vip::check`]: refuse unless the listener mirror has the port in [`Vip::netns`].
pub const CHECK_LISTENERS: u32 = 1;
/// [`Vip::check`]: refuse unless the mirror of another machine has the port under [`Vip::netns`], while that is known and
/// fresh ([`MIRROR_FRESH_UNTIL`]).
pub const CHECK_MIRROR: u32 = 2;

/// [`Pod::flags`]: only the ports in `PORTS` may be reached in the pod's Domain.
pub const POD_PORTS: u32 = 1;
/// [`Pod::flags`]: no pod, but the machine's own namespace, where pods on the host network are known by their cgroups (`HOST_PODS`).
pub const POD_MACHINE: u32 = 2;
/// [`Pod::flags`]: a pod on the host network.
pub const POD_HOST: u32 = 4;

/// With a cgroup's id, what stands for a pod on the host network where others have their namespace's cookie ([`Listener::netns`],
/// [`Vip::netns`], [`DirectFlow::netns`]). Cookies are counted from one, and never come that far.
pub const HOST_KEY: u64 = 1 << 63;
/// A pod's cgroup is at most so deep below the root; what its tasks make below it may be deeper.
pub const HOST_DEPTH: u8 = 16;

/// [`Listener::origin`]: seen by the hooks, which count it down again.
pub const ORIGIN_HOOK: u32 = 0;
/// [`Listener::origin`]: written by user space, which takes it out again.
pub const ORIGIN_USER: u32 = 1;

/// Index in `MIRROR`: until when (CLOCK_MONOTONIC, nanoseconds) what is known of other machines' listeners counts.
pub const MIRROR_FRESH_UNTIL: u32 = 0;
/// Index in `MIRROR`: how many events found no room.
pub const MIRROR_LOST: u32 = 1;

/// Index in `WATCHED`: until when (CLOCK_MONOTONIC, nanoseconds) somebody reads `WATCH`.
pub const WATCH_UNTIL: u32 = 0;
/// Index in `WATCHED`: how much of it found no room.
pub const WATCH_LOST: u32 = 1;

/// [`Seen::kind`]: a call was refused.
pub const SEEN_REFUSED: u32 = 1;
/// [`Seen::kind`]: a direct connection stands.
pub const SEEN_OPENED: u32 = 2;
/// [`Seen::kind`]: one ended in order.
pub const SEEN_CLOSED: u32 = 3;
/// [`Seen::kind`]: one ended by a reset, or never stood ([`Seen::errno`] is its [`DirectFlow::state`]).
pub const SEEN_RESET: u32 = 4;

/// [`Dest::kind`]: the socket's last connect was to no member of the Domain.
pub const NAME_NONE: u32 = 0;
/// [`Dest::kind`]: the socket asked for a VIP and was rewritten.
pub const NAME_VIP: u32 = 1;
/// [`Dest::kind`]: the socket asked for a member's real address and shall see that one.
pub const NAME_PLAIN: u32 = 2;
/// [`Dest::kind`]: a socket of a pod on the host network asked for a VIP and was sent to the relay's port.
pub const NAME_RELAYED: u32 = 3;
/// [`Dest::kind`]: a socket of a pod on the host network was bound to the pod's VIP, and is bound to a real address instead.
pub const NAME_BOUND: u32 = 4;

/// `FEATURES` bit: `bpf_set_retval` exists in connect hooks (Linux 5.18); else a refusal is EPERM.
pub const FEATURE_RETVAL: u32 = 1;
/// `FEATURES` bit: `bpf_sk_lookup.ingress_ifindex` exists (Linux 5.17); else the guard goes by source.
pub const FEATURE_INGRESS: u32 = 2;

/// `FEATURES` bit: `bpf_setsockopt` exists in sendmsg hooks (Linux 5.12); else a socket that is bound to the VIP's interface stays so.
pub const FEATURE_SETSOCKOPT: u32 = 4;

/// `SO_MARK` of the relay's sockets in a pod's namespace, which alone may be bound to other members' addresses.
pub const RELAY_MARK: u32 = 0x0072_6c00;

/// [`Listener::ip`] of a listener on `::` that takes no IPv4; no socket can listen on that address itself.
pub const ANY_V6_ONLY: Ip = [u32::MAX; 4];

/// [`DirectFlow::state`]: the connect left, no answer yet.
pub const STATE_SYN_SENT: u32 = 2;
/// [`DirectFlow::state`]: the connection stands.
pub const STATE_ESTABLISHED: u32 = 1;

/// Why a program did what it did; the key of a counter. Numbers are part of the layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Reason {
    /// Not in the Domain's network: untouched.
    Outside = 0,
    /// The pod's own VIP: untouched.
    OwnVip = 1,
    /// Rewritten to the real address.
    Direct = 2,
    /// Left for the relay.
    Relay = 3,
    /// A direct peer, but the socket is bound to the VIP: left for the relay.
    BoundToVip = 4,
    /// EHOSTUNREACH: no such VIP.
    UnknownVip = 5,
    /// The errno of a deny route.
    Policy = 6,
    /// ECONNREFUSED: the listener mirror has no such port.
    NoListener = 7,
    /// The errno the far end gave a moment ago.
    RecentlyRefused = 8,
    /// Guard: landed on the relay's socket.
    Landed = 9,
    /// Guard: dropped, no relay socket in the slot.
    NoRelay = 10,
    /// Guard: dropped, a packet for the Domain's network that did not come from this pod.
    Injected = 11,
    /// Guard: a member's direct connection was given to a listener that is bound to the VIP alone.
    VipListener = 12,
    /// A datagram to a known VIP: left for the node, which reads what leaves by `rl0`.
    Datagram = 13,
    /// EACCES: the Domain does not allow the port.
    Port = 14,
    /// EADDRNOTAVAIL: bind() to an address of the Domain's network that is not the pod's.
    ForeignAddress = 15,
    /// ENETUNREACH: a datagram of a pod on the host network to a member that it cannot reach directly.
    HostDatagram = 16,
}

/// A pod's place in one address family of its Domain.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Face {
    /// The pod's virtual address.
    pub vip: Ip,
    /// The pod's address on the site's network; all zero when it has none.
    pub real: Ip,
    /// The Domain's network, already masked.
    pub net: Ip,
    /// Its mask (IPv4: the first 96 bits are set).
    pub mask: Ip,
}

impl Face {
    /// No address of this family: `mask` makes every address zero and `net` is never zero.
    pub const ABSENT: Self = Self { vip: [0; 4], real: [0; 4], net: [u32::MAX; 4], mask: [0; 4] };
}

/// Value of `PODS`, where the key is the network namespace's cookie (`u64`), and of `HOST_PODS`, where it is the cgroup's id (`u64`).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pod {
    pub domain: u32,
    pub flags: u32,
    /// Index of the VIP's interface in the namespace.
    pub device: u32,
    /// Of a pod on the host network: the relay's port, on the loopback address of the machine's namespace.
    pub landing: u32,
    /// Of a pod on the host network: its key in `HOST_PODS`.
    pub cgroup: u64,
    pub v4: Face,
    pub v6: Face,
}

/// Key of `VIPS` (virtual address → [`Vip`]) and of `REAL` (real address → virtual [`Ip`]).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VipKey {
    pub domain: u32,
    pub ip: Ip,
}

/// Value of `VIPS`: the route of one virtual address.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vip {
    /// For the listener check: the peer's namespace when it is on this machine, else what stands for it in the mirror.
    pub netns: u64,
    pub verdict: u32,
    pub check: u32,
    /// For a deny route, positive.
    pub errno: u32,
    pub pad: u32,
    /// For a direct route.
    pub real: Ip,
}

/// Key of `LISTEN` and `UDP_VIP` (value: `u64` count) and of the VIP-bound listeners' socket hash.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Listener {
    pub netns: u64,
    /// All zero: any address of either family; the v4-mapped form of zero: any of IPv4. In `UDP_VIP` always all zero.
    pub ip: Ip,
    pub port: u32,
    pub origin: u32,
}

/// Key of `MIRRORED`: an open port of a pod of another machine. A map of its own, so that what others say takes no room from
/// this machine's listeners.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mirrored {
    /// [`Vip::netns`].
    pub pod: u64,
    /// Zero: the pod's ports are known.
    pub port: u32,
    /// IPPROTO_TCP or IPPROTO_UDP.
    pub protocol: u32,
}

/// What the hooks tell user space: look at this key of `LISTEN` (TCP) or `UDP_VIP` (UDP) again.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    pub netns: u64,
    pub ip: Ip,
    pub port: u32,
    /// IPPROTO_TCP or IPPROTO_UDP.
    pub protocol: u32,
}

/// Record of `WATCH`: what a reader of events is told.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The socket's, of a connection.
    pub cookie: u64,
    pub netns: u64,
    /// CLOCK_MONOTONIC, nanoseconds; of a connection.
    pub started: u64,
    /// At the end of a connection.
    pub bytes_out: u64,
    pub bytes_in: u64,
    pub kind: u32,
    pub domain: u32,
    /// [`Reason`] of a refusal.
    pub reason: u32,
    /// Of a refusal; else see [`SEEN_RESET`].
    pub errno: u32,
    /// Of a refusal: the process that asked.
    pub pid: u32,
    /// IPPROTO_TCP or IPPROTO_UDP.
    pub protocol: u32,
    /// Of a connection.
    pub source: Ip,
    pub destination: Ip,
    pub source_port: u32,
    pub destination_port: u32,
    pub srtt_us: u32,
    pub retransmits: u32,
}

/// Per-socket storage of UDP sockets that are bound to a VIP: what to count down when they go.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    pub netns: u64,
    pub port: u32,
    pub pad: u32,
}

/// Key of `PORTS` (value: a `u64` bit mask): 64 ports of a Domain, beginning at `64 * block`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortBlock {
    pub domain: u32,
    pub block: u32,
}

/// Key of `REFUSED` and of `UDP_SEEN` (value: `u64` CLOCK_MONOTONIC, nanoseconds).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port {
    pub domain: u32,
    pub ip: Ip,
    pub port: u32,
}

/// Value of `REFUSED`: what the far end answered, for a while.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// CLOCK_MONOTONIC, nanoseconds.
    pub until: u64,
    pub errno: u32,
    pub pad: u32,
}

/// Per-socket storage: what the application asked to be connected to; of a pod on the host network also whose the socket is.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dest {
    pub ip: Ip,
    pub port: u32,
    pub kind: u32,
    /// Of a pod on the host network: [`Pod::cgroup`]; its events are told without a task to ask for its cgroup.
    pub cgroup: u64,
}

/// Key of `CROSSINGS`: a connection within the machine's namespace from or to a pod, before it is accepted.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crossing {
    /// The connecting end.
    pub ip: Ip,
    pub port: u32,
    /// The port that accepts.
    pub to: u32,
    /// [`CROSSING_OUT`] or [`CROSSING_IN`].
    pub way: u32,
}

/// [`Crossing::way`]: a pod to the relay; the value is what it asked for.
pub const CROSSING_OUT: u32 = 0;
/// [`Crossing::way`]: the relay, or another pod of the machine's namespace, to a pod; the value is who is there.
pub const CROSSING_IN: u32 = 1;

/// Value of `CROSSINGS`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    pub ip: Ip,
    pub port: u32,
    /// Of the pod: [`Pod::cgroup`], in two words, low one first.
    pub cgroup: [u32; 2],
}

/// Value of `FLOWS`: a live direct connection; the key is the socket's cookie (`u64`).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectFlow {
    pub netns: u64,
    /// CLOCK_MONOTONIC, nanoseconds.
    pub started: u64,
    pub domain: u32,
    pub state: u32,
    pub source: Ip,
    pub destination: Ip,
    pub real: Ip,
    pub source_port: u32,
    pub destination_port: u32,
    pub srtt_us: u32,
    pub pad: u32,
}

/// Key of `COUNTERS` (value: `u64` per CPU).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Counter {
    pub domain: u32,
    pub reason: u32,
}

/// The global of one pod's guard: socket lookup has no namespace cookie, so each pod's instance carries it.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuardPod {
    pub netns: u64,
    pub domain: u32,
    /// Index in `LANDING`.
    pub slot: u32,
    /// One: there are no hooks, so it refuses what they would have refused.
    pub decides: u32,
    pub pad: u32,
    pub v4: Face,
    pub v6: Face,
}

// Maps compare and copy bytes: a hole would be an uninitialised part of a key.
const _: () = {
    assert!(size_of::<Face>() == 64);
    assert!(size_of::<Pod>() == 24 + 2 * 64);
    assert!(size_of::<VipKey>() == 20);
    assert!(size_of::<Vip>() == 8 + 4 * 4 + 16);
    assert!(size_of::<Listener>() == 8 + 16 + 8);
    assert!(size_of::<Mirrored>() == 16);
    assert!(size_of::<Event>() == 8 + 16 + 8);
    assert!(size_of::<Seen>() == 5 * 8 + 6 * 4 + 32 + 4 * 4);
    assert!(size_of::<Bound>() == 16);
    assert!(size_of::<PortBlock>() == 8);
    assert!(size_of::<Port>() == 24);
    assert!(size_of::<Refusal>() == 16);
    assert!(size_of::<Dest>() == 32);
    assert!(size_of::<Crossing>() == 28);
    assert!(size_of::<End>() == 28);
    assert!(size_of::<DirectFlow>() == 16 + 8 + 48 + 16);
    assert!(size_of::<Counter>() == 8);
    assert!(size_of::<GuardPod>() == 24 + 128);
};
