//! Datagrams of sockets that are not connected, or to another destination than they are connected to: the verdict as for
//! connect().

use aya_ebpf::{macros::cgroup_sock_addr, programs::SockAddrContext};

use crate::{
    address::{get6, mapped, port, set6},
    verdict::{Call, Verdict, decide, refuse},
};

#[cgroup_sock_addr(sendmsg4)]
pub fn rl_sendmsg4(ctx: SockAddrContext) -> i32 {
    // SAFETY: the kernel gives a live context.
    let addr = unsafe { &mut *ctx.sock_addr };
    match decide(&ctx, mapped(addr.user_ip4), port(addr.user_port), Call::Send) {
        Verdict::Pass => 1,
        Verdict::Deny(errno) => refuse(errno),
        Verdict::Direct { real, source, own } => {
            addr.user_ip4 = real[3];
            // A program that names its source (IP_PKTINFO) names the VIP; on the site's network it has the real address.
            let named = addr.msg_src_ip4;
            if named == own[3] || (named == 0 && source != [0; 4]) {
                addr.msg_src_ip4 = source[3];
            }
            1
        }
        // Streams only.
        Verdict::Land(..) => 1,
    }
}

#[cgroup_sock_addr(sendmsg6)]
pub fn rl_sendmsg6(ctx: SockAddrContext) -> i32 {
    // SAFETY: the kernel gives a live context.
    let addr = unsafe { &mut *ctx.sock_addr };
    match decide(&ctx, get6!(addr.user_ip6), port(addr.user_port), Call::Send) {
        Verdict::Pass => 1,
        Verdict::Deny(errno) => refuse(errno),
        Verdict::Direct { real, source, own } => {
            set6!(addr.user_ip6, real);
            let named = get6!(addr.msg_src_ip6);
            if named == own || (named == [0; 4] && source != [0; 4]) {
                set6!(addr.msg_src_ip6, source);
            }
            1
        }
        Verdict::Land(..) => 1,
    }
}
