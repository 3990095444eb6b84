//! The guard of one pod: decides about every packet that finds no established socket in the pod's namespace.
//!
//! The Domain's network is a *local* route there, so without a verdict from here such a packet would reach the
//! pod's own listeners. It needs no hook: with the hooks gone, all that is sent to another member is landed on
//! the relay or dropped.
//!
//! On a machine that has no hooks it also refuses what they would have refused ([`refused`]).
//!
//! | destination | from the pod itself (`lo`) | from outside |
//! |---|---|---|
//! | own VIP | pass | drop |
//! | other address of the Domain | TCP: the relay's socket, or drop; else drop | drop |
//! | real address, listener bound to it or to any | pass | pass |
//! | real address, listener bound to the VIP alone | that one, when the source is a member | the same |
//! | the same, but the guard has no hold of it: older than the hooks, multipath TCP | the relay's socket | the same |

use aya_ebpf::{macros::sk_lookup, programs::SkLookupContext};

use crate::{
    address::{contains, get6, mapped},
    layout::{FEATURE_INGRESS, Face, Ip, Listener, ORIGIN_HOOK, POD_PORTS, Port, Reason, VERDICT_DIRECT, VERDICT_RELAY, VipKey},
    maps::{LANDING, PODS, VIP_LISTENERS, VIPS, count, feature, guarded, listening, note_landing, port_allowed, vip_of},
    open::{CLOSED, UNKNOWN, lately_refused, open},
};

const DROP: u32 = 0;
const PASS: u32 = 1;
const AF_INET: u32 = 2;
const TCP: u32 = 6;
/// The first interface of every network namespace.
const LOOPBACK: u32 = 1;

#[sk_lookup]
pub fn rl_guard(ctx: SkLookupContext) -> u32 {
    // SAFETY: the kernel gives a live context.
    let packet = unsafe { &*ctx.lookup };
    // SAFETY: our own read-only static.
    let guard = unsafe { &*guarded() };
    let (face, local, remote) = if packet.family == AF_INET {
        (&guard.v4, mapped(packet.local_ip4), mapped(packet.remote_ip4))
    } else {
        (&guard.v6, get6!(packet.local_ip6), get6!(packet.remote_ip6))
    };
    let domain = guard.domain;
    if contains(face, &local) {
        if inside(&ctx, face, &local, &remote) {
            if local == face.vip {
                return PASS;
            }
            if guard.decides != 0
                && packet.protocol == TCP
                && let Some(reason) = refused(guard.netns, local, packet.local_port)
            {
                count(domain, reason);
                return DROP;
            }
            note_landing(guard.netns, packet.local_port);
            return land(&ctx, domain, guard.slot);
        }
        // The site's network may overlap the Domain's.
        if local != face.real {
            count(domain, Reason::Injected);
            return DROP;
        }
    }
    if local == face.real && packet.protocol == TCP {
        let at = Listener { netns: guard.netns, ip: local, port: packet.local_port, origin: ORIGIN_HOOK };
        steer(&ctx, domain, at, face.vip, remote, guard.slot);
    }
    PASS
}

/// Where no hook was asked: what it would have refused. The kernel answers a dropped connection with a reset, so all of it is
/// ECONNREFUSED.
#[inline(always)]
fn refused(netns: u64, ip: Ip, port: u32) -> Option<Reason> {
    // SAFETY: user space replaces values whole.
    let pod = unsafe { PODS.get(netns) }?;
    let domain = pod.domain;
    // SAFETY: as above.
    let Some(vip) = (unsafe { VIPS.get(VipKey { domain, ip }) }) else {
        return Some(Reason::UnknownVip);
    };
    if vip.verdict != VERDICT_DIRECT && vip.verdict != VERDICT_RELAY {
        return Some(Reason::Policy);
    }
    if pod.flags & POD_PORTS != 0 && !port_allowed(domain, port) {
        return Some(Reason::Port);
    }
    match open(vip, ip, port) {
        CLOSED => Some(Reason::NoListener),
        UNKNOWN if lately_refused(&Port { domain, ip, port }) != 0 => Some(Reason::RecentlyRefused),
        _ => None,
    }
}

/// Whether the packet was made in this namespace.
#[inline(always)]
fn inside(ctx: &SkLookupContext, face: &Face, local: &Ip, remote: &Ip) -> bool {
    if feature(FEATURE_INGRESS) {
        // SAFETY: a field of the live context; volatile keeps the load in this branch.
        return unsafe { (&raw const (*ctx.lookup).ingress_ifindex).read_volatile() } == LOOPBACK;
    }
    *local == face.vip || *remote == face.vip || *remote == face.real
}

#[inline(always)]
fn land(ctx: &SkLookupContext, domain: u32, slot: u32) -> u32 {
    // SAFETY: a field of the live context.
    let tcp = unsafe { (*ctx.lookup).protocol } == TCP;
    if tcp && LANDING.redirect_sk_lookup(ctx, slot, 0).is_ok() {
        count(domain, Reason::Landed);
        PASS
    } else {
        count(domain, Reason::NoRelay);
        DROP
    }
}

/// Direct path: listeners of the real address or of any come first, as in the kernel; only then one that is
/// bound to the VIP alone, and only for members.
#[inline(always)]
fn steer(ctx: &SkLookupContext, domain: u32, mut at: Listener, vip: Ip, remote: Ip, slot: u32) {
    if listening(at) || vip_of(domain, remote).is_none() {
        return;
    }
    at.ip = vip;
    if VIP_LISTENERS.redirect_sk_lookup(ctx, at, 0).is_ok() {
        count(domain, Reason::VipListener);
    } else if listening(at) && LANDING.redirect_sk_lookup(ctx, slot, 0).is_ok() {
        count(domain, Reason::Landed);
    }
}
