//! Socket events: the mirror of listeners (inside listen(), so the next connect on this machine sees it), the
//! hash of listeners bound to a VIP alone, and the life of direct connections.

use aya_ebpf::{
    helpers::{bpf_ktime_get_ns, bpf_probe_read_kernel},
    macros::sock_ops,
    programs::SockOpsContext,
};

use crate::{
    address::{get6, is_v4, mapped},
    device::release_listener,
    host::{self, Owner, is_host, leaving, on_machine, owner},
    layout::{ANY_V6_ONLY, DirectFlow, Ip, Listener, NAME_BOUND, NAME_VIP, ORIGIN_HOOK, STATE_ESTABLISHED, STATE_SYN_SENT},
    maps::{FLOWS, LISTEN, VIP_LISTENERS, cookie, count_socket, vip_of},
    name::face,
    watch,
};

const TCP_CONNECT: u32 = 3;
/// Passively established.
const ACCEPTED: u32 = 5;
const STATE_CHANGED: u32 = 10;
const TCP_LISTEN: u32 = 11;
const WANT_STATE_CHANGES: i32 = 4;
const TCP_CLOSE: u32 = 7;
const TCP_LISTENING: u32 = 10;
const AF_INET: u32 = 2;
const AF_INET6: u16 = 10;
/// After four bits of `skc_reuse` and one of `skc_reuseport`.
const V6_ONLY: u8 = 1 << 5;
const TCP: u32 = 6;

#[sock_ops]
pub fn rl_sockops(ctx: SockOpsContext) -> u32 {
    match ctx.op() {
        TCP_CONNECT => connecting(&ctx),
        ACCEPTED => host::accepted(&ctx),
        TCP_LISTEN => listen(&ctx),
        // Accepted sockets inherit the flag: only the listener itself comes from LISTEN.
        STATE_CHANGED if ctx.arg(0) == TCP_LISTENING => {
            if let Some(owner) = owner(&ctx) {
                count_socket(&LISTEN, &listener(&ctx, &owner), false, TCP);
            }
        }
        STATE_CHANGED => changed(&ctx),
        _ => {}
    }
    0
}

#[inline(always)]
fn local(ctx: &SockOpsContext) -> Ip {
    if ctx.family() != AF_INET {
        return get6!((*ctx.ops).local_ip6);
    }
    mapped(ctx.local_ip4())
}

#[inline(always)]
fn listener(ctx: &SockOpsContext, owner: &Owner) -> Listener {
    let mut ip = local(ctx);
    if let Some(dest) = owner.dest
        && dest.kind == NAME_BOUND
    {
        ip = dest.ip;
    }
    if ip == [0; 4] && ctx.family() != AF_INET && is_v6_only(ctx) {
        ip = ANY_V6_ONLY;
    }
    Listener { netns: owner.key, ip, port: ctx.local_port(), origin: ORIGIN_HOOK }
}

/// `skc_ipv6only`, which no helper tells: `struct sock_common` has family, state and the byte with this bit at 16, 18 and 19
/// since Linux 3.13. A kernel with another layout is found out by the family, and its listeners are taken to be open for both.
#[inline(always)]
fn is_v6_only(ctx: &SockOpsContext) -> bool {
    // SAFETY: a field of the live context.
    let sk = unsafe { (*ctx.ops).__bindgen_anon_2.sk };
    if sk.is_null() {
        return false;
    }
    // SAFETY: reads kernel memory by value, or fails.
    let Ok(common) = (unsafe { bpf_probe_read_kernel(sk.cast::<[u8; 20]>()) }) else { return false };
    u16::from_ne_bytes([common[16], common[17]]) == AF_INET6 && common[19] & V6_ONLY != 0
}

/// Beside what other programs want to hear of this socket.
#[inline(always)]
fn want_state_changes(ctx: &SockOpsContext) {
    let _ = ctx.set_cb_flags(ctx.cb_flags().cast_signed() | WANT_STATE_CHANGES);
}

#[inline(always)]
fn listen(ctx: &SockOpsContext) {
    let Some(owner) = owner(ctx) else { return };
    let pod = owner.pod;
    want_state_changes(ctx);
    release_listener(ctx, pod);
    let at = listener(ctx, &owner);
    count_socket(&LISTEN, &at, true, TCP);
    if !is_host(pod) && at.ip != [0; 4] && (at.ip == pod.v4.vip || at.ip == pod.v6.vip) {
        // SAFETY: the live context. The kernel takes the socket out when it closes.
        let _ = VIP_LISTENERS.update(at, unsafe { &mut *ctx.ops }, 0);
    }
}

/// The source port is known and the SYN not sent yet.
#[inline(always)]
fn connecting(ctx: &SockOpsContext) {
    let owner = owner(ctx);
    if on_machine(ctx) {
        leaving(ctx, &owner);
    }
    let Some(owner) = owner else { return };
    let Some(asked) = owner.dest else { return };
    if asked.kind != NAME_VIP {
        return;
    }
    let pod = owner.pod;
    let mut flow = DirectFlow {
        netns: owner.key,
        // SAFETY: a helper without arguments.
        started: unsafe { bpf_ktime_get_ns() },
        domain: pod.domain,
        state: STATE_SYN_SENT,
        source: face(pod, &asked.ip).vip,
        destination: asked.ip,
        real: [0; 4],
        source_port: ctx.local_port(),
        destination_port: asked.port,
        srtt_us: 0,
        pad: 0,
    };
    flow.real =
        if is_v4(&asked.ip) { mapped(ctx.remote_ip4()) } else { get6!((*ctx.ops).remote_ip6) };
    // A name that fell out of REAL meanwhile is no reason to hide the flow, only a stale VIP is.
    if vip_of(pod.domain, flow.real).is_none() {
        return;
    }
    if FLOWS.insert(cookie(ctx), flow, 0).is_ok() {
        want_state_changes(ctx);
    }
}

#[inline(always)]
fn changed(ctx: &SockOpsContext) {
    let key = cookie(ctx);
    let Some(flow) = FLOWS.get_ptr_mut(key) else { return };
    match ctx.arg(1) {
        STATE_ESTABLISHED => {
            // SAFETY: the entry stays readable for the length of the program.
            let flow = unsafe { &mut *flow };
            flow.state = STATE_ESTABLISHED;
            // SAFETY: a field of the live context.
            flow.srtt_us = unsafe { (*ctx.ops).srtt_us } >> 3;
            watch::opened(ctx, key, flow);
        }
        TCP_CLOSE => {
            // SAFETY: as above.
            watch::closed(ctx, key, unsafe { &*flow }, ctx.arg(0));
            let _ = FLOWS.remove(key);
        }
        _ => {}
    }
}
