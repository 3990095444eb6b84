//! Which names a socket is shown: what it asked for, and the VIPs of members behind real addresses.

use aya_ebpf::programs::SockAddrContext;

use crate::{
    address::{contains, is_v4, mapped},
    host::is_host,
    layout::{Dest, Face, Ip, NAME_NONE, NAME_PLAIN, NAME_RELAYED, NAME_VIP, Pod},
    maps::{ASKED, pod, vip_of},
};

const SOCK_DGRAM: u32 = 2;

#[inline(always)]
pub fn face<'p>(pod: &'p Pod, ip: &Ip) -> &'p Face {
    if is_v4(ip) { &pod.v4 } else { &pod.v6 }
}

/// Remembers what the socket asked for.
#[inline(always)]
pub fn remember(ctx: &SockAddrContext, mut dest: Dest) {
    // SAFETY: the context's socket is live during the hook.
    let stored = unsafe { ASKED.get_or_insert_ptr_mut(ctx, Some(&mut dest)) };
    if !stored.is_null() {
        // SAFETY: checked; storage lives as long as the socket. An older entry is overwritten here.
        unsafe { *stored = dest };
    }
}

/// A socket may be connected again: what it asked before no longer names its peer.
#[inline(always)]
pub fn forget(ctx: &SockAddrContext) {
    // SAFETY: the context's socket is live during the hook.
    if let Some(stored) = unsafe { ASKED.get_ptr_mut(ctx).as_mut() } {
        stored.kind = NAME_NONE;
    }
}

/// In sendmsg: a single datagram to another destination than the socket is connected to. Its peer keeps its name.
#[inline(always)]
pub fn aside(ctx: &SockAddrContext) -> bool {
    // SAFETY: fields of the live context; the pointer is checked.
    unsafe {
        let addr = &*ctx.sock_addr;
        let sk = addr.__bindgen_anon_1.sk;
        addr.type_ == SOCK_DGRAM && !sk.is_null() && (*sk).dst_port != 0
    }
}

/// What the socket itself asked for, if a hook took note.
#[inline(always)]
fn asked(ctx: &SockAddrContext) -> Option<Dest> {
    // SAFETY: the context's socket is live during the hook.
    unsafe { ASKED.get_ptr_mut(ctx).as_ref() }.copied().filter(|d| d.kind != NAME_NONE)
}

/// The peer to show instead of `ip`; `None`: as it is.
#[inline(always)]
pub fn peer(ctx: &SockAddrContext, ip: Ip) -> Option<(Ip, Option<u32>)> {
    let pod = pod(ctx)?;
    match asked(ctx) {
        Some(d) if d.kind == NAME_VIP || d.kind == NAME_RELAYED => Some((d.ip, Some(d.port))),
        Some(_) => None,
        // An accepted socket. A pod that talks to itself over its real address sees that one.
        None if ip == face(pod, &ip).real => None,
        None => vip_of(pod.domain, ip).map(|vip| (vip, None)),
    }
}

/// The sender to show instead of `ip`; `None`: as it is. A socket that spoke to a member's real address last sees that one.
#[inline(always)]
pub fn sender(ctx: &SockAddrContext, ip: Ip) -> Option<Ip> {
    let pod = pod(ctx)?;
    if ip == face(pod, &ip).real || asked(ctx).is_some_and(|d| d.kind == NAME_PLAIN && d.ip == ip) {
        return None;
    }
    vip_of(pod.domain, ip)
}

/// The own address to show instead of `local` on a socket whose far end is `far`; `None`: as it is.
#[inline(always)]
pub fn own(ctx: &SockAddrContext, local: Ip, far: Ip) -> Option<Ip> {
    let pod = pod(ctx)?;
    let face = face(pod, &local);
    let asked = asked(ctx);
    // On the host network a socket may be at the loopback address instead.
    if is_host(pod) && asked.is_some_and(|d| d.kind != NAME_PLAIN) {
        return (local != [0; 4] && local != mapped(0)).then_some(face.vip);
    }
    // Only the real address is ever in the VIP's place; a relayed or loopback socket is right by itself.
    if local != face.real || contains(face, &local) {
        return None;
    }
    let shown = match asked {
        Some(d) => d.kind != NAME_PLAIN,
        None => far != face.real && vip_of(pod.domain, far).is_some(),
    };
    shown.then_some(face.vip)
}
