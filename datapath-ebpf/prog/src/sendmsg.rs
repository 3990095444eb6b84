//! Datagrams of sockets that are not connected, or to another destination than they are connected to: the verdict as for
//! connect().

use aya_ebpf::{macros::cgroup_sock_addr, programs::SockAddrContext};

use crate::{
    address::{get6, mapped, port, set6},
    verdict::{Act, Call, Verdict, decide, refuse},
};

#[cgroup_sock_addr(sendmsg4)]
pub fn rl_sendmsg4(ctx: SockAddrContext) -> i32 {
    // SAFETY: the kernel gives a live context.
    let addr = unsafe { &mut *ctx.sock_addr };
    let verdict = decide(&ctx, mapped(addr.user_ip4), port(addr.user_port), Call::Send);
    match verdict.act {
        // Landing is for streams.
        Act::Pass | Act::Land => 1,
        Act::Deny => refuse(verdict.errno),
        Act::Direct => {
            let Verdict { to, source, own, .. } = verdict;
            addr.user_ip4 = to[3];
            // A program that names its source (IP_PKTINFO) names the VIP; on the site's network it has the real address.
            let named = addr.msg_src_ip4;
            if named == own[3] || (named == 0 && source != [0; 4]) {
                addr.msg_src_ip4 = source[3];
            }
            1
        }
    }
}

#[cgroup_sock_addr(sendmsg6)]
pub fn rl_sendmsg6(ctx: SockAddrContext) -> i32 {
    // SAFETY: the kernel gives a live context.
    let addr = unsafe { &mut *ctx.sock_addr };
    let verdict = decide(&ctx, get6!(addr.user_ip6), port(addr.user_port), Call::Send);
    match verdict.act {
        // Landing is for streams.
        Act::Pass | Act::Land => 1,
        Act::Deny => refuse(verdict.errno),
        Act::Direct => {
            let Verdict { to, source, own, .. } = verdict;
            set6!(addr.user_ip6, to);
            let named = get6!(addr.msg_src_ip6);
            if named == own || (named == [0; 4] && source != [0; 4]) {
                set6!(addr.msg_src_ip6, source);
            }
            1
        }
    }
}
