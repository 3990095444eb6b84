//! Pods on the host network: a cgroup in the machine's own namespace instead of a namespace. No guard stands there and no route may
//! be made, so where other pods are landed these are sent to the relay's port, and [`CROSSINGS`] says what was asked for, or who comes.
//!
//! Which cgroup a task is in is asked where the task calls. Socket events also come without one: they go by what the socket's
//! storage remembers of the call before.

use aya_ebpf::{
    EbpfContext,
    bindings::{
        BPF_F_CURRENT_NETNS, BPF_SK_STORAGE_GET_F_CREATE, bpf_sock_tuple,
        bpf_sock_tuple__bindgen_ty_1, bpf_sock_tuple__bindgen_ty_1__bindgen_ty_1,
        bpf_sock_tuple__bindgen_ty_1__bindgen_ty_2, sockaddr,
    },
    helpers::generated::{
        bpf_bind, bpf_get_current_ancestor_cgroup_id, bpf_sk_lookup_tcp, bpf_sk_release, bpf_sk_storage_get,
    },
    programs::{SockAddrContext, SockOpsContext},
};

use crate::{
    address::{get6, is_v4, mapped, network_port},
    layout::{
        CROSSING_IN, CROSSING_OUT, Crossing, Dest, End, Face, HOST_DEPTH, HOST_KEY, Ip, NAME_BOUND, NAME_NONE, NAME_RELAYED, NAME_VIP, POD_HOST,
        POD_MACHINE, Pod, RELAY_MARK,
    },
    maps::{ASKED, CROSSINGS, HOST_PODS, PODS, netns},
    name::{face, remember},
};

const AF_INET: u32 = 2;
const AF_INET6: u16 = 10;

#[inline(always)]
pub fn is_host(pod: &Pod) -> bool {
    pod.flags & POD_HOST != 0
}

/// What a pod's listeners and flows are kept under.
#[inline(always)]
pub fn key(ctx: &impl EbpfContext, pod: &Pod) -> u64 {
    if is_host(pod) { HOST_KEY | pod.cgroup } else { netns(ctx) }
}

/// The innermost pod whose cgroup the calling task is in or below.
#[inline(always)]
pub fn current() -> Option<&'static Pod> {
    let mut innermost = None;
    for level in 1..=i32::from(HOST_DEPTH) {
        // SAFETY: takes a number.
        let id = unsafe { bpf_get_current_ancestor_cgroup_id(level) };
        if id == 0 {
            break;
        }
        // SAFETY: as for `maps::pod`.
        if let Some(pod) = unsafe { HOST_PODS.get(id) } {
            innermost = Some(pod);
        }
    }
    innermost
}

#[inline(always)]
pub fn loopback(family_of: &Ip) -> Ip {
    if is_v4(family_of) { mapped(u32::from_be_bytes([127, 0, 0, 1]).to_be()) } else { [0, 0, 0, 1u32.to_be()] }
}

/// The source that a direct connection must have for its far end to know it; all zero: as it comes.
#[inline(always)]
pub fn source(pod: &Pod, face: &Face) -> Ip {
    if is_host(pod) { face.real } else { [0; 4] }
}

/// Chooses the source address of a socket that has none, as the peer's namespace may be behind a bridge with an address of its own.
/// Refused, or the program chose: then the far end sees that one.
#[inline(always)]
pub fn speak_from(ctx: &SockAddrContext, ip: &Ip) {
    // SAFETY: a field of the live context.
    let addr = unsafe { &*ctx.sock_addr };
    // SAFETY: as above.
    let sk = unsafe { addr.__bindgen_anon_1.sk };
    if sk.is_null() || *ip == [0; 4] {
        return;
    }
    if addr.family == AF_INET {
        // SAFETY: checked above.
        if unsafe { (*sk).src_ip4 } != 0 {
            return;
        }
        let mut at = [AF_INET, ip[3], 0, 0];
        // SAFETY: a `sockaddr_in`: family and no port in the first word.
        unsafe { bpf_bind(ctx.sock_addr, (&raw mut at).cast::<sockaddr>(), 16) };
    } else {
        let own = get6!((*sk).src_ip6);
        if own != [0; 4] && own != mapped(0) {
            return;
        }
        let mut at = [AF_INET6 as u32, 0, ip[0], ip[1], ip[2], ip[3], 0];
        // SAFETY: a `sockaddr_in6`: family and no port, flow, address, scope.
        unsafe { bpf_bind(ctx.sock_addr, (&raw mut at).cast::<sockaddr>(), 28) };
    }
}

/// Whether the relay listens on the pod's landing port: while the node is away anyone on the machine may have taken the port.
#[inline(always)]
pub fn relay_listens(ctx: &SockAddrContext, pod: &Pod, at: &Ip) -> bool {
    let dport = network_port(pod.landing) as u16;
    let (mut tuple, size) = if is_v4(at) {
        let ipv4 = bpf_sock_tuple__bindgen_ty_1__bindgen_ty_1 { saddr: at[3], daddr: at[3], sport: 0, dport };
        (bpf_sock_tuple { __bindgen_anon_1: bpf_sock_tuple__bindgen_ty_1 { ipv4 } }, 12)
    } else {
        let ipv6 = bpf_sock_tuple__bindgen_ty_1__bindgen_ty_2 { saddr: *at, daddr: *at, sport: 0, dport };
        (bpf_sock_tuple { __bindgen_anon_1: bpf_sock_tuple__bindgen_ty_1 { ipv6 } }, 36)
    };
    // SAFETY: the live context and a tuple of that size.
    unsafe {
        let sk = bpf_sk_lookup_tcp(ctx.as_ptr(), &raw mut tuple, size, BPF_F_CURRENT_NETNS as u64, 0);
        if sk.is_null() {
            return false;
        }
        let marked = (*sk).mark == RELAY_MARK;
        bpf_sk_release(sk.cast());
        marked
    }
}

/// bind() of a pod's socket: whose it is will be asked when it listens. The VIP is no interface's here: the socket is bound to what
/// leads to the VIP instead.
#[inline(always)]
pub fn binding(ctx: &SockAddrContext, pod: &Pod, ip: Ip, port: u32) -> Option<Ip> {
    // SAFETY: a field of the live context.
    let sk = unsafe { (*ctx.sock_addr).__bindgen_anon_1.sk };
    // SAFETY: checked first. A second bind() fails, and changes nothing.
    if sk.is_null() || unsafe { (*sk).src_port } != 0 {
        return None;
    }
    let face = face(pod, &ip);
    // A family that the Domain does not have has no VIP, and its any-address is that of IPv6.
    let to_vip = ip != [0; 4] && ip == face.vip;
    let kind = if to_vip { NAME_BOUND } else { NAME_NONE };
    remember(ctx, Dest { ip, port, kind, cgroup: pod.cgroup });
    to_vip.then(|| if face.real == [0; 4] { loopback(&ip) } else { face.real })
}

/// Whose socket an event is about.
pub struct Owner {
    pub pod: &'static Pod,
    /// As [`key`].
    pub key: u64,
    /// What the socket remembers; of pods with a namespace only their connects.
    pub dest: Option<&'static Dest>,
}

#[inline(always)]
pub fn owner(ctx: &SockOpsContext) -> Option<Owner> {
    let netns = netns(ctx);
    // SAFETY: as for `maps::pod`.
    let pod = unsafe { PODS.get(netns) }?;
    let dest = stored(ctx);
    if pod.flags & POD_MACHINE == 0 {
        return Some(Owner { pod, key: netns, dest });
    }
    let cgroup = dest?.cgroup;
    // SAFETY: as above.
    let pod = unsafe { HOST_PODS.get(cgroup) }?;
    Some(Owner { pod, key: key(ctx, pod), dest })
}

#[inline(always)]
fn stored(ctx: &SockOpsContext) -> Option<&'static Dest> {
    // SAFETY: a field of the live context.
    let sk = unsafe { (*ctx.ops).__bindgen_anon_2.sk };
    if sk.is_null() {
        return None;
    }
    let map = (&raw const ASKED).cast_mut().cast();
    // SAFETY: a checked socket and our own map; flags 0 only looks. Null, or storage that lives as long as the socket.
    unsafe { bpf_sk_storage_get(map, sk.cast(), core::ptr::null_mut(), 0).cast::<Dest>().as_ref() }
}

/// Whether the socket is in the machine's own namespace, and pods are.
#[inline(always)]
pub fn on_machine(ctx: &SockOpsContext) -> bool {
    // SAFETY: as for `maps::pod`.
    unsafe { PODS.get(netns(ctx)) }.is_some_and(|pod| pod.flags & POD_MACHINE != 0)
}

/// A connection leaves a socket of the machine's namespace. What it asked for is noted before the SYN is when it goes to the relay, and
/// who it is when it goes to a pod of this very namespace, whose address says nothing. Whatever else leaves from the same address and
/// port makes older notes void, so that they never speak for a stranger.
#[inline(always)]
pub fn leaving(ctx: &SockOpsContext, owner: &Option<Owner>) {
    let v4 = ctx.family() == AF_INET;
    let ip = if v4 { mapped(ctx.local_ip4()) } else { get6!((*ctx.ops).local_ip6) };
    let to = u32::from_be(ctx.remote_port());
    let mut key = Crossing { ip, port: ctx.local_port(), to, way: CROSSING_OUT };
    if let Some(Owner { pod, dest: Some(dest), .. }) = owner {
        let cgroup = [dest.cgroup as u32, (dest.cgroup >> 32) as u32];
        let face = face(pod, &dest.ip);
        let far = if v4 { mapped(ctx.remote_ip4()) } else { get6!((*ctx.ops).remote_ip6) };
        if dest.kind == NAME_RELAYED {
            let _ = CROSSINGS.insert(key, End { ip: dest.ip, port: dest.port, cgroup }, 0);
            return;
        }
        if dest.kind == NAME_VIP && far == face.real {
            key.way = CROSSING_IN;
            let _ = CROSSINGS.insert(key, End { ip: face.vip, port: key.port, cgroup }, 0);
            return;
        }
    }
    // SAFETY: a field of the live context.
    let sk = unsafe { (*ctx.ops).__bindgen_anon_2.sk };
    // SAFETY: checked first. Of the relay's own the node has taken note.
    if !sk.is_null() && unsafe { (*sk).mark } == RELAY_MARK {
        return;
    }
    let _ = CROSSINGS.remove(key);
    key.way = CROSSING_IN;
    let _ = CROSSINGS.remove(key);
}

/// A connection was accepted: one of which somebody took note shall be seen to come from the peer.
#[inline(always)]
pub fn accepted(ctx: &SockOpsContext) {
    if !on_machine(ctx) {
        return;
    }
    let ip = if ctx.family() == AF_INET { mapped(ctx.remote_ip4()) } else { get6!((*ctx.ops).remote_ip6) };
    let port = u32::from_be(ctx.remote_port());
    let key = Crossing { ip, port, to: ctx.local_port(), way: CROSSING_IN };
    // SAFETY: entries are written whole.
    let Some(end) = (unsafe { CROSSINGS.get(key) }) else { return };
    let cgroup = end.cgroup[0] as u64 | (end.cgroup[1] as u64) << 32;
    let mut dest = Dest { ip: end.ip, port: end.port, kind: NAME_VIP, cgroup };
    // SAFETY: a field of the live context.
    let sk = unsafe { (*ctx.ops).__bindgen_anon_2.sk };
    if !sk.is_null() {
        let map = (&raw const ASKED).cast_mut().cast();
        // SAFETY: a checked socket and our own map. Without memory the socket shows the relay's address.
        unsafe { bpf_sk_storage_get(map, sk.cast(), (&raw mut dest).cast(), BPF_SK_STORAGE_GET_F_CREATE.into()) };
    }
    let _ = CROSSINGS.remove(key);
}
