//! bind(): an address of the Domain that is another's is none of the pod's, although the kernel takes it for local.
//!
//! bind() of UDP sockets to the VIP, and their end: the real address does not lead to such a socket, so what is sent to it must take
//! the way between sites also within one. TCP needs none of this: the guard finds the listener.

use aya_ebpf::{
    EbpfContext,
    bindings::BPF_SK_STORAGE_GET_F_CREATE,
    helpers::generated::{bpf_setsockopt, bpf_sk_storage_get},
    macros::{cgroup_sock, cgroup_sock_addr},
    programs::{SockAddrContext, SockContext},
};

use crate::{
    address::{contains, get6, mapped, port, set6},
    device::release,
    host::{self, is_host},
    layout::{Bound, FEATURE_SETSOCKOPT, Ip, Listener, ORIGIN_HOOK, Pod, Port, RELAY_MARK, Reason},
    maps::{BOUND, UDP_VIP, count, count_socket, feature, has_landed, namespace_pod, netns, pod},
    name::face,
    verdict::refuse,
    watch,
};

const SOCK_STREAM: u32 = 1;
const SOL_SOCKET: i32 = 1;
const SO_REUSEADDR: i32 = 2;
const UDP: u32 = 17;
const ALLOW: i32 = 1;
const EADDRNOTAVAIL: u32 = 99;

#[cgroup_sock_addr(bind4)]
pub fn rl_bind4(ctx: SockAddrContext) -> i32 {
    // SAFETY: the kernel gives a live context.
    let addr = unsafe { &mut *ctx.sock_addr };
    let Some(pod) = pod(&ctx) else { return ALLOW };
    let (ip, port) = (mapped(addr.user_ip4), port(addr.user_port));
    if !is_host(pod) {
        return binding(&ctx, pod, ip, port);
    }
    if let Some(at) = host::binding(&ctx, pod, ip, port) {
        addr.user_ip4 = at[3];
    }
    ALLOW
}

#[cgroup_sock_addr(bind6)]
pub fn rl_bind6(ctx: SockAddrContext) -> i32 {
    // SAFETY: the kernel gives a live context.
    let addr = unsafe { &mut *ctx.sock_addr };
    let Some(pod) = pod(&ctx) else { return ALLOW };
    let (ip, port) = (get6!(addr.user_ip6), port(addr.user_port));
    if !is_host(pod) {
        return binding(&ctx, pod, ip, port);
    }
    if let Some(at) = host::binding(&ctx, pod, ip, port) {
        set6!(addr.user_ip6, at);
    }
    ALLOW
}

#[inline(always)]
fn binding(ctx: &SockAddrContext, pod: &Pod, ip: Ip, port: u32) -> i32 {
    let face = face(pod, &ip);
    if ip == [0; 4] || ip == mapped(0) || ip == face.vip {
        release(ctx, pod);
        share(ctx, port);
        return ALLOW;
    }
    if !contains(face, &ip) || ip == face.real || is_relays(ctx) {
        return ALLOW;
    }
    count(pod.domain, Reason::ForeignAddress);
    watch::refused(ctx, pod, &Port { domain: pod.domain, ip, port }, Reason::ForeignAddress, EADDRNOTAVAIL);
    refuse(EADDRNOTAVAIL)
}

/// On the site's network a connection to a peer's port is no obstacle to listening on the same port. Here its landed end is bound
/// to that number, so the listener must be willing to share it (`SO_REUSEADDR`); it still conflicts with other listeners.
#[inline(always)]
fn share(ctx: &SockAddrContext, port: u32) {
    // SAFETY: a field of the live context.
    let stream = unsafe { (*ctx.sock_addr).type_ } == SOCK_STREAM;
    if stream && feature(FEATURE_SETSOCKOPT) && has_landed(netns(ctx), port) {
        let mut yes = 1u32;
        // SAFETY: the live context of a socket and four bytes. Refused (before Linux 6.1): bind() finds the port taken.
        unsafe { bpf_setsockopt(ctx.as_ptr(), SOL_SOCKET, SO_REUSEADDR, (&raw mut yes).cast(), 4) };
    }
}

/// The relay speaks to the pod from its peers' addresses. A pod with the right to set marks deceives only itself: what it
/// sends from there the guard and the far node refuse.
#[inline(always)]
fn is_relays(ctx: &SockAddrContext) -> bool {
    // SAFETY: fields of the live context; the pointer is checked.
    unsafe {
        let sk = (*ctx.sock_addr).__bindgen_anon_1.sk;
        !sk.is_null() && (*sk).mark == RELAY_MARK
    }
}

#[cgroup_sock(post_bind4)]
pub fn rl_post_bind4(ctx: SockContext) -> i32 {
    // SAFETY: the kernel gives a live context.
    let sock = unsafe { &*ctx.sock };
    if sock.protocol == UDP {
        bound(&ctx, mapped(sock.src_ip4), sock.src_port);
    }
    ALLOW
}

#[cgroup_sock(post_bind6)]
pub fn rl_post_bind6(ctx: SockContext) -> i32 {
    // SAFETY: the kernel gives a live context.
    let sock = unsafe { &*ctx.sock };
    if sock.protocol == UDP {
        bound(&ctx, get6!(sock.src_ip6), sock.src_port);
    }
    ALLOW
}

#[cgroup_sock(sock_release)]
pub fn rl_sock_release(ctx: SockContext) -> i32 {
    // SAFETY: null or storage that lives as long as the socket.
    if let Some(bound) = unsafe { storage(&ctx, core::ptr::null_mut(), 0).as_ref() } {
        count_socket(&UDP_VIP, &key(bound), false, UDP);
    }
    ALLOW
}

#[inline(always)]
fn bound(ctx: &SockContext, ip: Ip, port: u32) {
    let Some(pod) = namespace_pod(ctx) else { return };
    if ip != pod.v4.vip && ip != pod.v6.vip {
        return;
    }
    let mut entry = Bound { netns: netns(ctx), port, pad: 0 };
    // Without it the end of the socket would not be seen, and the port be taken for bound for good.
    if !storage(ctx, &raw mut entry, BPF_SK_STORAGE_GET_F_CREATE.into()).is_null() {
        count_socket(&UDP_VIP, &key(&entry), true, UDP);
    }
}

#[inline(always)]
fn storage(ctx: &SockContext, value: *mut Bound, flags: u64) -> *mut Bound {
    let map = (&raw const BOUND).cast_mut().cast();
    // SAFETY: the live context of a socket and our own map.
    unsafe { bpf_sk_storage_get(map, ctx.sock.cast(), value.cast(), flags) }.cast()
}

#[inline(always)]
fn key(bound: &Bound) -> Listener {
    Listener { netns: bound.netns, ip: [0; 4], port: bound.port, origin: ORIGIN_HOOK }
}
