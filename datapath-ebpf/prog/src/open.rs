//! What is known of the far end before it is asked: whether anyone listens there, and what it refused a moment ago. The hooks ask,
//! and where there are none the guard.

use aya_ebpf::helpers::bpf_ktime_get_ns;

use crate::{
    address::{is_v4, mapped},
    layout::{ANY_V6_ONLY, CHECK_LISTENERS, CHECK_MIRROR, Ip, Listener, ORIGIN_HOOK, Port, Vip},
    maps::{REFUSED, listening, mirror_is_fresh, mirrored},
};

const TCP: u32 = 6;

pub const OPEN: u32 = 0;
pub const CLOSED: u32 = 1;
pub const UNKNOWN: u32 = 2;

/// Whether anyone in the peer's namespace listens where this connection would arrive.
#[inline(always)]
pub fn open(vip: &Vip, ip: Ip, port: u32) -> u32 {
    if port == 0 {
        return CLOSED;
    }
    if vip.check == CHECK_MIRROR {
        if mirrored(vip.netns, port, TCP) {
            return OPEN;
        }
        let known = mirrored(vip.netns, 0, TCP) && mirror_is_fresh();
        return if known { CLOSED } else { UNKNOWN };
    }
    let mut at = Listener { netns: vip.netns, ip: [0; 4], port, origin: ORIGIN_HOOK };
    if vip.check != CHECK_LISTENERS {
        return UNKNOWN;
    }
    if listening(at) {
        return OPEN;
    }
    at.ip = vip.real;
    if listening(at) {
        return OPEN;
    }
    at.ip = if is_v4(&ip) { mapped(0) } else { ANY_V6_ONLY };
    if listening(at) {
        return OPEN;
    }
    at.ip = ip;
    if listening(at) { OPEN } else { CLOSED }
}

/// The errno that the far end gave a moment ago, or zero.
#[inline(always)]
pub fn lately_refused(at: &Port) -> u32 {
    // SAFETY: entries are written whole.
    let Some(refusal) = (unsafe { REFUSED.get(at) }) else { return 0 };
    // SAFETY: a helper without arguments.
    if refusal.until > unsafe { bpf_ktime_get_ns() } { refusal.errno } else { 0 }
}
