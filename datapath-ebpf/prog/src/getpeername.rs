//! getpeername() and the address that accept() returns (the kernel asks the same hook).

use aya_ebpf::{macros::cgroup_sock_addr, programs::SockAddrContext};

use crate::{
    address::{get6, mapped, network_port, set6},
    name::peer,
};

#[cgroup_sock_addr(getpeername4)]
pub fn rl_getpeername4(ctx: SockAddrContext) -> i32 {
    // SAFETY: the kernel gives a live context.
    let addr = unsafe { &mut *ctx.sock_addr };
    if let Some((ip, port)) = peer(&ctx, mapped(addr.user_ip4)) {
        addr.user_ip4 = ip[3];
        if let Some(port) = port {
            addr.user_port = network_port(port);
        }
    }
    1
}

#[cgroup_sock_addr(getpeername6)]
pub fn rl_getpeername6(ctx: SockAddrContext) -> i32 {
    // SAFETY: the kernel gives a live context.
    let addr = unsafe { &mut *ctx.sock_addr };
    if let Some((ip, port)) = peer(&ctx, get6!(addr.user_ip6)) {
        set6!(addr.user_ip6, ip);
        if let Some(port) = port {
            addr.user_port = network_port(port);
        }
    }
    1
}
