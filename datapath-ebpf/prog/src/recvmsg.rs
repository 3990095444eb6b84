//! recvfrom(), recvmsg(): the sender of a datagram is shown by its VIP, so that an answer goes back the way it came.

use aya_ebpf::{macros::cgroup_sock_addr, programs::SockAddrContext};

use crate::{
    address::{get6, mapped, set6},
    name::sender,
};

#[cgroup_sock_addr(recvmsg4)]
pub fn rl_recvmsg4(ctx: SockAddrContext) -> i32 {
    // SAFETY: the kernel gives a live context.
    let addr = unsafe { &mut *ctx.sock_addr };
    if let Some(ip) = sender(&ctx, mapped(addr.user_ip4)) {
        addr.user_ip4 = ip[3];
    }
    1
}

#[cgroup_sock_addr(recvmsg6)]
pub fn rl_recvmsg6(ctx: SockAddrContext) -> i32 {
    // SAFETY: the kernel gives a live context.
    let addr = unsafe { &mut *ctx.sock_addr };
    if let Some(ip) = sender(&ctx, get6!(addr.user_ip6)) {
        set6!(addr.user_ip6, ip);
    }
    1
}
