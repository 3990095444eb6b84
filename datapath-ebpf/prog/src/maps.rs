//! The maps, and the few ways the programs touch them. `pinned`: found by name in the loader's directory
//! (a private bpffs unless it was told to pin), which is how every pod's guard shares them.

use core::intrinsics::{AtomicOrdering::Relaxed, atomic_xadd};

use aya_ebpf::{
    EbpfContext,
    bindings::BPF_F_NO_PREALLOC,
    btf_maps::SkStorage,
    helpers::{bpf_get_netns_cookie, bpf_get_socket_cookie, bpf_ktime_get_ns},
    macros::{btf_map, map},
    maps::{Array, HashMap, LruHashMap, PerCpuHashMap, RingBuf, SockHash, SockMap},
};

use crate::{
    host,
    layout::{
        Bound, Counter, Crossing, Dest, DirectFlow, End, Event, Face, GuardPod, Ip, Listener, MAX_GUARDS, MIRROR_FRESH_UNTIL,
        MIRROR_LOST, Mirrored, ORIGIN_HOOK, ORIGIN_USER, POD_MACHINE, Pod, Port, PortBlock, Reason, Refusal, Vip, VipKey,
    },
};

const LAZY: u32 = BPF_F_NO_PREALLOC;
/// `bpf_map_update_elem` flag: only when absent.
const NOEXIST: u64 = 1;
const TCP: u32 = 6;

/// Namespace cookie → pod of this node.
#[map]
pub static PODS: HashMap<u64, Pod> = HashMap::pinned(4096, LAZY);
/// Cgroup id → pod of this node on the host network.
#[map]
pub static HOST_PODS: HashMap<u64, Pod> = HashMap::pinned(1024, LAZY);
/// Connections from and to such pods → what the other side is, until they are accepted.
#[map]
pub static CROSSINGS: LruHashMap<Crossing, End> = LruHashMap::pinned(16384, 0);
/// Virtual address → route.
#[map]
pub static VIPS: HashMap<VipKey, Vip> = HashMap::pinned(65536, LAZY);
/// Real address of a member in this site → its virtual address.
#[map]
pub static REAL: HashMap<VipKey, Ip> = HashMap::pinned(65536, LAZY);
/// Listeners in this node's pods → how many sockets.
#[map]
pub static LISTEN: HashMap<Listener, u64> = HashMap::pinned(65536, LAZY);
/// What other machines say of their pods' ports.
#[map]
pub static MIRRORED: HashMap<Mirrored, u8> = HashMap::pinned(131_072, LAZY);
/// UDP ports with sockets that are bound to the VIP alone → how many.
#[map]
pub static UDP_VIP: HashMap<Listener, u64> = HashMap::pinned(65536, LAZY);
/// Members that spoke from a socket bound to their VIP → until when they are answered there.
#[map]
pub static UDP_SEEN: LruHashMap<Port, u64> = LruHashMap::pinned(16384, 0);
/// See `MIRROR_FRESH_UNTIL`, `MIRROR_LOST`.
#[map]
pub static MIRROR: Array<u64> = Array::pinned(2, 0);
/// What changed in `LISTEN` and `UDP_VIP` by the hooks.
#[map]
pub static EVENTS: RingBuf = RingBuf::pinned(256 * 1024, 0);
/// What a reader of events is told, while `WATCHED` says that there is one.
#[map]
pub static WATCH: RingBuf = RingBuf::pinned(512 * 1024, 0);
/// See `WATCH_UNTIL`, `WATCH_LOST`.
#[map]
pub static WATCHED: Array<u64> = Array::pinned(2, 0);
/// Which ports a Domain allows.
#[map]
pub static PORTS: HashMap<PortBlock, u64> = HashMap::pinned(65536, LAZY);
/// What a far end refused a moment ago.
#[map]
pub static REFUSED: LruHashMap<Port, Refusal> = LruHashMap::pinned(4096, 0);
/// Live direct connections by socket cookie.
#[map]
pub static FLOWS: LruHashMap<u64, DirectFlow> = LruHashMap::pinned(32768, 0);
#[map]
pub static COUNTERS: PerCpuHashMap<Counter, u64> = PerCpuHashMap::pinned(4096, 0);
/// The relay's sockets, one slot per guard.
#[map]
pub static LANDING: SockMap = SockMap::pinned(MAX_GUARDS, 0);
/// Ports of peers to which a pod had relayed connections: sockets in its namespace count as bound to them.
#[map]
pub static LANDED: LruHashMap<Mirrored, u8> = LruHashMap::pinned(16384, 0);
/// Listeners that are bound to a VIP alone.
#[map]
pub static VIP_LISTENERS: SockHash<Listener> = SockHash::pinned(8192, 0);
/// What a socket asked to be connected to.
#[btf_map]
pub static ASKED: SkStorage<Dest> = SkStorage::new();
/// What a UDP socket that is bound to its VIP was counted under.
#[btf_map]
pub static BOUND: SkStorage<Bound> = SkStorage::new();

/// What this kernel can do; set before load, so that the verifier drops the calls it does not know.
#[unsafe(no_mangle)]
static FEATURES: u32 = 0;
/// The pod a guard is loaded for.
#[unsafe(no_mangle)]
static GUARD: GuardPod =
    GuardPod { netns: 0, domain: 0, slot: 0, decides: 0, pad: 0, v4: Face::ABSENT, v6: Face::ABSENT };

#[inline(always)]
pub fn feature(bit: u32) -> bool {
    // SAFETY: a read of our own static; volatile because the loader has changed it.
    unsafe { (&raw const FEATURES).read_volatile() & bit != 0 }
}

/// The guard's pod, in the read-only section (152 bytes: not to be copied to the 512-byte stack).
#[inline(always)]
pub fn guarded() -> *const GuardPod {
    core::hint::black_box(&raw const GUARD)
}

#[inline(always)]
pub fn netns(ctx: &impl EbpfContext) -> u64 {
    // SAFETY: every hook of ours has a context this helper takes.
    unsafe { bpf_get_netns_cookie(ctx.as_ptr()) }
}

#[inline(always)]
pub fn cookie(ctx: &impl EbpfContext) -> u64 {
    // SAFETY: every hook of ours has a context this helper takes.
    unsafe { bpf_get_socket_cookie(ctx.as_ptr()) }
}

/// The pod whose namespace the socket is in, or whose cgroup the calling task: only where a task calls.
#[inline(always)]
pub fn pod(ctx: &impl EbpfContext) -> Option<&'static Pod> {
    // SAFETY: user space replaces values whole; a torn read concerns one connect at a change of address.
    let pod = unsafe { PODS.get(netns(ctx)) }?;
    if pod.flags & POD_MACHINE != 0 { host::current() } else { Some(pod) }
}

/// The pod whose namespace the socket is in.
#[inline(always)]
pub fn namespace_pod(ctx: &impl EbpfContext) -> Option<&'static Pod> {
    // SAFETY: as above.
    unsafe { PODS.get(netns(ctx)) }.filter(|pod| pod.flags & POD_MACHINE == 0)
}

/// The virtual address of a member's real one.
#[inline(always)]
pub fn vip_of(domain: u32, ip: Ip) -> Option<Ip> {
    // SAFETY: as for `pod`.
    unsafe { REAL.get(VipKey { domain, ip }) }.copied()
}

/// Whether the hooks or user space know a listener there.
#[inline(always)]
pub fn listening(at: Listener) -> bool {
    counted(&LISTEN, at)
}

/// Whether a UDP socket of `netns` is bound to the VIP and this port.
#[inline(always)]
pub fn udp_on_vip(netns: u64, port: u32) -> bool {
    counted(&UDP_VIP, Listener { netns, ip: [0; 4], port, origin: ORIGIN_HOOK })
}

#[inline(always)]
fn counted(map: &HashMap<Listener, u64>, mut at: Listener) -> bool {
    at.origin = ORIGIN_HOOK;
    // SAFETY: a counter read.
    if unsafe { map.get(at) }.is_some_and(|n| *n > 0) {
        return true;
    }
    at.origin = ORIGIN_USER;
    // SAFETY: as above.
    unsafe { map.get(at) }.is_some_and(|n| *n > 0)
}

#[inline(always)]
pub fn note_landing(netns: u64, port: u32) {
    let key = Mirrored { pod: netns, port, protocol: TCP };
    if LANDED.get_ptr(key).is_none() {
        let _ = LANDED.insert(key, 1, 0);
    }
}

/// Whether a connection of `netns` to that port of a peer ever landed, as far as is remembered.
#[inline(always)]
pub fn has_landed(netns: u64, port: u32) -> bool {
    LANDED.get_ptr(Mirrored { pod: netns, port, protocol: TCP }).is_some()
}

/// Whether its machine says that this is open.
#[inline(always)]
pub fn mirrored(pod: u64, port: u32, protocol: u32) -> bool {
    // SAFETY: the value says nothing.
    unsafe { MIRRORED.get(Mirrored { pod, port, protocol }) }.is_some()
}

/// Adds one to a count, or takes one away, and says so to user space.
#[inline(always)]
pub fn count_socket(map: &HashMap<Listener, u64>, at: &Listener, up: bool, protocol: u32) {
    if up && map.get_ptr(at).is_none() {
        let _ = map.insert(at, 0, NOEXIST);
    }
    if let Some(n) = map.get_ptr_mut(at) {
        // SAFETY: the entry stays valid for the length of the program.
        unsafe { atomic_xadd::<u64, u64, { Relaxed }>(n, if up { 1 } else { u64::MAX }) };
        // A pod that listens on another port each time would fill the map. What was never counted does not become the largest
        // number either.
        // SAFETY: as above.
        if !up && unsafe { n.read_volatile() }.cast_signed() <= 0 {
            let _ = map.remove(at);
        }
    }
    let event = Event { netns: at.netns, ip: at.ip, port: at.port, protocol };
    if EVENTS.output::<Event>(&event, 0).is_err()
        && let Some(lost) = MIRROR.get_ptr_mut(MIRROR_LOST)
    {
        // SAFETY: an array's element.
        unsafe { atomic_xadd::<u64, u64, { Relaxed }>(lost, 1) };
    }
}

/// Whether what is known of other machines' listeners is fresh.
#[inline(always)]
pub fn mirror_is_fresh() -> bool {
    // SAFETY: a helper without arguments.
    MIRROR.get(MIRROR_FRESH_UNTIL).is_some_and(|until| *until > unsafe { bpf_ktime_get_ns() })
}

/// Whether a Domain with a list of ports has this one.
#[inline(always)]
pub fn port_allowed(domain: u32, port: u32) -> bool {
    // SAFETY: user space replaces masks whole.
    let mask = unsafe { PORTS.get(PortBlock { domain, block: port >> 6 }) };
    mask.is_some_and(|mask| mask >> (port & 63) & 1 == 1)
}

#[inline(always)]
pub fn count(domain: u32, reason: Reason) {
    let key = Counter { domain, reason: reason as u32 };
    match COUNTERS.get_ptr_mut(key) {
        // SAFETY: this CPU's own cell.
        Some(n) => unsafe { *n += 1 },
        None => {
            let _ = COUNTERS.insert(key, 1, 0);
        }
    }
}
