//! bind() of UDP sockets to a VIP, and their end: the real address does not lead to such a socket, so what is sent to it must take
//! the way between sites also within one. TCP needs none of this: the guard finds the listener.

use aya_ebpf::{
    bindings::BPF_SK_STORAGE_GET_F_CREATE,
    helpers::generated::bpf_sk_storage_get,
    macros::cgroup_sock,
    programs::SockContext,
};

use crate::{
    address::{get6, mapped},
    layout::{Bound, Ip, Listener, ORIGIN_HOOK},
    maps::{BOUND, UDP_VIP, count_socket, netns, pod},
};

const UDP: u32 = 17;
const ALLOW: i32 = 1;

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
    let Some(pod) = pod(ctx) else { return };
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
