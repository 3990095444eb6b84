//! connect(): the verdict is carried out here. `connect6` also sees v4-mapped destinations of IPv6 sockets.

use aya_ebpf::{macros::cgroup_sock_addr, programs::SockAddrContext};

use crate::{
    address::{get6, mapped, network_port, port, set6},
    host::speak_from,
    verdict::{Call, Verdict, decide, refuse},
};

#[cgroup_sock_addr(connect4)]
pub fn rl_connect4(ctx: SockAddrContext) -> i32 {
    // SAFETY: the kernel gives a live context.
    let addr = unsafe { &mut *ctx.sock_addr };
    match decide(&ctx, mapped(addr.user_ip4), port(addr.user_port), Call::Connect) {
        Verdict::Pass => 1,
        Verdict::Deny(errno) => refuse(errno),
        Verdict::Direct { real, source, .. } => {
            speak_from(&ctx, &source);
            addr.user_ip4 = real[3];
            1
        }
        Verdict::Land(at, port) => {
            addr.user_ip4 = at[3];
            addr.user_port = network_port(port);
            1
        }
    }
}

#[cgroup_sock_addr(connect6)]
pub fn rl_connect6(ctx: SockAddrContext) -> i32 {
    // SAFETY: the kernel gives a live context.
    let addr = unsafe { &mut *ctx.sock_addr };
    match decide(&ctx, get6!(addr.user_ip6), port(addr.user_port), Call::Connect) {
        Verdict::Pass => 1,
        Verdict::Deny(errno) => refuse(errno),
        Verdict::Direct { real, source, .. } => {
            speak_from(&ctx, &source);
            set6!(addr.user_ip6, real);
            1
        }
        Verdict::Land(at, port) => {
            set6!(addr.user_ip6, at);
            addr.user_port = network_port(port);
            1
        }
    }
}
