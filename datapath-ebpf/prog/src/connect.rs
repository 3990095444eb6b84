//! connect(): the verdict is carried out here. `connect6` also sees v4-mapped destinations of IPv6 sockets.

use aya_ebpf::{macros::cgroup_sock_addr, programs::SockAddrContext};

use crate::{
    address::{get6, mapped, network_port, port, set6},
    host::speak_from,
    verdict::{Act, Call, decide, refuse},
};

#[cgroup_sock_addr(connect4)]
pub fn rl_connect4(ctx: SockAddrContext) -> i32 {
    // SAFETY: the kernel gives a live context.
    let addr = unsafe { &mut *ctx.sock_addr };
    let verdict = decide(&ctx, mapped(addr.user_ip4), port(addr.user_port), Call::Connect);
    match verdict.act {
        Act::Pass => 1,
        Act::Deny => refuse(verdict.errno),
        Act::Direct => {
            speak_from(&ctx, &verdict.source);
            addr.user_ip4 = verdict.to[3];
            1
        }
        Act::Land => {
            addr.user_ip4 = verdict.to[3];
            addr.user_port = network_port(verdict.port);
            1
        }
    }
}

#[cgroup_sock_addr(connect6)]
pub fn rl_connect6(ctx: SockAddrContext) -> i32 {
    // SAFETY: the kernel gives a live context.
    let addr = unsafe { &mut *ctx.sock_addr };
    let verdict = decide(&ctx, get6!(addr.user_ip6), port(addr.user_port), Call::Connect);
    match verdict.act {
        Act::Pass => 1,
        Act::Deny => refuse(verdict.errno),
        Act::Direct => {
            speak_from(&ctx, &verdict.source);
            set6!(addr.user_ip6, verdict.to);
            1
        }
        Act::Land => {
            set6!(addr.user_ip6, verdict.to);
            addr.user_port = network_port(verdict.port);
            1
        }
    }
}
