//! getsockname(): a direct connection's own end is the VIP, not the site's address.

use aya_ebpf::{macros::cgroup_sock_addr, programs::SockAddrContext};

use crate::{
    address::{get6, is_v4, mapped, set6},
    name::own,
};

#[cgroup_sock_addr(getsockname4)]
pub fn rl_getsockname4(ctx: SockAddrContext) -> i32 {
    // SAFETY: the kernel gives a live context.
    let addr = unsafe { &mut *ctx.sock_addr };
    // SAFETY: a field of the live context.
    let sk = unsafe { addr.__bindgen_anon_1.sk };
    if sk.is_null() {
        return 1;
    }
    // SAFETY: checked above.
    let far = mapped(unsafe { (*sk).dst_ip4 });
    if let Some(ip) = own(&ctx, mapped(addr.user_ip4), far) {
        addr.user_ip4 = ip[3];
    }
    1
}

#[cgroup_sock_addr(getsockname6)]
pub fn rl_getsockname6(ctx: SockAddrContext) -> i32 {
    // SAFETY: the kernel gives a live context.
    let addr = unsafe { &mut *ctx.sock_addr };
    // SAFETY: a field of the live context.
    let sk = unsafe { addr.__bindgen_anon_1.sk };
    if sk.is_null() {
        return 1;
    }
    let local = get6!(addr.user_ip6);
    let far = if is_v4(&local) {
        // SAFETY: checked above.
        mapped(unsafe { (*sk).dst_ip4 })
    } else {
        get6!((*sk).dst_ip6)
    };
    if let Some(ip) = own(&ctx, local, far) {
        set6!(addr.user_ip6, ip);
    }
    1
}
