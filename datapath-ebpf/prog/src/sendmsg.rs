//! Unconnected datagrams: an unknown or denied VIP fails at once; known ones are the guard's.

use aya_ebpf::{macros::cgroup_sock_addr, programs::SockAddrContext};

use crate::{
    address::{get6, mapped, port},
    verdict::{Verdict, decide, refuse},
};

#[cgroup_sock_addr(sendmsg4)]
pub fn rl_sendmsg4(ctx: SockAddrContext) -> i32 {
    // SAFETY: the kernel gives a live context.
    let addr = unsafe { &*ctx.sock_addr };
    match decide(&ctx, mapped(addr.user_ip4), port(addr.user_port)) {
        Verdict::Deny(errno) => refuse(errno),
        Verdict::Pass | Verdict::Direct(_) => 1,
    }
}

#[cgroup_sock_addr(sendmsg6)]
pub fn rl_sendmsg6(ctx: SockAddrContext) -> i32 {
    // SAFETY: the kernel gives a live context.
    let addr = unsafe { &*ctx.sock_addr };
    match decide(&ctx, get6!(addr.user_ip6), port(addr.user_port)) {
        Verdict::Deny(errno) => refuse(errno),
        Verdict::Pass | Verdict::Direct(_) => 1,
    }
}
