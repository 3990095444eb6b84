//! What a reader of events is told: refusals inside a call, and the beginning and end of direct connections. While nobody reads, each of
//! these costs a look at one word, and packets cost nothing.

use core::intrinsics::{AtomicOrdering::Relaxed, atomic_xadd};

use aya_ebpf::{
    helpers::{bpf_get_current_pid_tgid, bpf_ktime_get_ns},
    programs::{SockAddrContext, SockOpsContext},
};

use crate::{
    host::key,
    layout::{
        DirectFlow, Ip, Pod, Port, Reason, SEEN_CLOSED, SEEN_OPENED, SEEN_REFUSED, SEEN_RESET, STATE_ESTABLISHED, Seen, WATCH_LOST,
        WATCH_UNTIL,
    },
    maps::{WATCH, WATCHED},
};

const TCP: u32 = 6;
const UDP: u32 = 17;
const SOCK_STREAM: u32 = 1;
const FIN_WAIT2: u32 = 5;
const TIME_WAIT: u32 = 6;
const LAST_ACK: u32 = 9;
const CLOSING: u32 = 11;

#[inline(always)]
fn watched() -> bool {
    // SAFETY: a helper without arguments.
    WATCHED.get(WATCH_UNTIL).is_some_and(|until| *until != 0 && *until > unsafe { bpf_ktime_get_ns() })
}

#[inline(always)]
fn tell(seen: &Seen) {
    if WATCH.output::<Seen>(seen, 0).is_err()
        && let Some(lost) = WATCHED.get_ptr_mut(WATCH_LOST)
    {
        // SAFETY: an array's element.
        unsafe { atomic_xadd::<u64, u64, { Relaxed }>(lost, 1) };
    }
}

/// A call of the current process, one of the pod's, is refused.
#[inline(always)]
pub fn refused(ctx: &SockAddrContext, pod: &Pod, to: &Port, reason: Reason, errno: u32) {
    if !watched() {
        return;
    }
    // SAFETY: a field of the live context.
    let stream = unsafe { (*ctx.sock_addr).type_ } == SOCK_STREAM;
    tell(&Seen {
        netns: key(ctx, pod),
        kind: SEEN_REFUSED,
        domain: to.domain,
        reason: reason as u32,
        errno,
        pid: (bpf_get_current_pid_tgid() >> 32) as u32,
        protocol: if stream { TCP } else { UDP },
        destination: to.ip,
        destination_port: to.port,
        ..NOTHING
    });
}

#[inline(always)]
pub fn opened(ctx: &SockOpsContext, key: u64, flow: &DirectFlow) {
    if watched() {
        let mut seen = of_flow(ctx, key, flow);
        seen.kind = SEEN_OPENED;
        tell(&seen);
    }
}

/// The connection left state `from` for good.
#[inline(always)]
pub fn closed(ctx: &SockOpsContext, key: u64, flow: &DirectFlow, from: u32) {
    if !watched() {
        return;
    }
    let mut seen = of_flow(ctx, key, flow);
    let in_order = matches!(from, FIN_WAIT2 | TIME_WAIT | LAST_ACK | CLOSING);
    seen.kind = if in_order { SEEN_CLOSED } else { SEEN_RESET };
    seen.errno = flow.state;
    if flow.state == STATE_ESTABLISHED {
        // SAFETY: fields of the live context.
        let (out, inward) = unsafe { ((*ctx.ops).bytes_acked, (*ctx.ops).bytes_received) };
        // The kernel counts SYN and FIN as a byte each.
        let fin = in_order as u64;
        seen.bytes_out = out.saturating_sub(1 + fin);
        seen.bytes_in = inward.saturating_sub(fin);
    }
    tell(&seen);
}

#[inline(always)]
fn of_flow(ctx: &SockOpsContext, key: u64, flow: &DirectFlow) -> Seen {
    Seen {
        cookie: key,
        netns: flow.netns,
        started: flow.started,
        domain: flow.domain,
        protocol: TCP,
        source: flow.source,
        destination: flow.destination,
        source_port: flow.source_port,
        destination_port: flow.destination_port,
        // SAFETY: a field of the live context.
        srtt_us: unsafe { (*ctx.ops).srtt_us } >> 3,
        // SAFETY: a field of the live context.
        retransmits: unsafe { (*ctx.ops).total_retrans },
        ..NOTHING
    }
}

const NONE: Ip = [0; 4];
const NOTHING: Seen = Seen {
    cookie: 0,
    netns: 0,
    started: 0,
    bytes_out: 0,
    bytes_in: 0,
    kind: 0,
    domain: 0,
    reason: 0,
    errno: 0,
    pid: 0,
    protocol: 0,
    source: NONE,
    destination: NONE,
    source_port: 0,
    destination_port: 0,
    srtt_us: 0,
    retransmits: 0,
};
