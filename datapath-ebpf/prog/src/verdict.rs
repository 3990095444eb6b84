//! The decision about a destination, once per connect() or unconnected send. Pure reading of maps, apart from the
//! counters and the socket's memory of what it asked for.

use aya_ebpf::{
    helpers::{bpf_ktime_get_ns, bpf_set_retval},
    programs::SockAddrContext,
};

use crate::{
    address::{contains, get6, is_v4, mapped},
    device::release,
    host::{self, is_host, loopback, relay_listens},
    layout::{
        CHECK_LISTENERS, CHECK_MIRROR, Dest, FEATURE_RETVAL, Face, Ip, NAME_PLAIN, NAME_RELAYED, NAME_VIP, POD_PORTS, Pod, Port, Reason,
        VERDICT_DIRECT, VERDICT_RELAY, Vip, VipKey,
    },
    maps::{UDP_SEEN, VIPS, count, feature, mirrored, pod, port_allowed, udp_on_vip, vip_of},
    name::{aside, face, forget, remember},
    open::{CLOSED, UNKNOWN, lately_refused, open},
    watch,
};

const EACCES: u32 = 13;
const ENETUNREACH: u32 = 101;
const ECONNREFUSED: u32 = 111;
const EHOSTUNREACH: u32 = 113;
const SOCK_STREAM: u32 = 1;
const UDP: u32 = 17;

/// What the program is doing.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Call {
    Connect,
    Send,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// The destination stays: not ours, the own VIP, or the guard lands it.
    Pass,
    /// With [`Verdict::errno`].
    Deny,
    /// To the member's real address; the port stays.
    Direct,
    /// On the host network: to the relay's address and port.
    Land,
}

/// Every field is always set. An enum's payload would be undefined in the other cases, and no verifier lets undefined words be copied,
/// which compilers do where cases meet.
pub struct Verdict {
    pub act: Act,
    pub errno: u32,
    pub to: Ip,
    pub port: u32,
    /// On the host network, of [`Act::Direct`]: the address to speak from.
    pub source: Ip,
    /// Of [`Act::Direct`]: the pod's own VIP.
    pub own: Ip,
}

impl Verdict {
    const PASS: Self = Self { act: Act::Pass, errno: 0, to: [0; 4], port: 0, source: [0; 4], own: [0; 4] };

    #[inline(always)]
    fn direct(pod: &Pod, vip: &Vip, face: &Face) -> Self {
        Self { act: Act::Direct, to: vip.real, source: host::source(pod, face), own: face.vip, ..Self::PASS }
    }
}

/// Decides about `ip:port` (host order) for the context's socket, and remembers it for the names that the socket is shown.
#[inline(always)]
pub fn decide(ctx: &SockAddrContext, ip: Ip, port: u32, call: Call) -> Verdict {
    let names = call == Call::Connect || !aside(ctx);
    let Some(pod) = pod(ctx) else { return Verdict::PASS };
    let domain = pod.domain;
    let face = face(pod, &ip);
    if !contains(face, &ip) {
        let plain = ip != face.real && vip_of(domain, ip).is_some();
        if names && plain {
            remember(ctx, Dest { ip, port, kind: NAME_PLAIN, cgroup: pod.cgroup });
        } else if names {
            forget(ctx);
        }
        count(domain, Reason::Outside);
        return Verdict::PASS;
    }
    let was_on_device = release(ctx, pod);
    // On the host network the VIP is no interface's: the way to it is one as to any other.
    if ip == face.vip && !is_host(pod) {
        if names {
            forget(ctx);
        }
        count(domain, Reason::OwnVip);
        return Verdict::PASS;
    }
    let at = Port { domain, ip, port };
    // SAFETY: user space replaces routes whole.
    let Some(vip) = (unsafe { VIPS.get(VipKey { domain, ip }) }) else {
        return deny(ctx, pod, &at, Reason::UnknownVip, EHOSTUNREACH);
    };
    if vip.verdict != VERDICT_DIRECT && vip.verdict != VERDICT_RELAY {
        return deny(ctx, pod, &at, Reason::Policy, if vip.errno == 0 { EACCES } else { vip.errno });
    }
    if pod.flags & POD_PORTS != 0 && !port_allowed(domain, port) && !is_answer(ctx, domain) {
        return deny(ctx, pod, &at, Reason::Port, EACCES);
    }
    // SAFETY: a field of the live context.
    if unsafe { (*ctx.sock_addr).type_ } == SOCK_STREAM {
        return stream(ctx, pod, vip, at);
    }
    if was_on_device && call == Call::Send {
        // This one datagram's way was chosen before the hook, by the device.
        count(domain, Reason::Datagram);
        return Verdict::PASS;
    }
    let verdict = datagram(ctx, pod, vip, at);
    if names && verdict.act == Act::Direct {
        remember(ctx, Dest { ip, port, kind: NAME_VIP, cgroup: pod.cgroup });
    } else if names {
        forget(ctx);
    }
    verdict
}

/// A datagram from an allowed port may be the answer to one that came there.
#[inline(always)]
fn is_answer(ctx: &SockAddrContext, domain: u32) -> bool {
    // SAFETY: fields of the live context; the pointer is checked.
    unsafe {
        let addr = &*ctx.sock_addr;
        let sk = addr.__bindgen_anon_1.sk;
        addr.type_ != SOCK_STREAM && !sk.is_null() && port_allowed(domain, (*sk).src_port)
    }
}

/// Within a site the destination is rewritten; all else leaves by the interface that leads nowhere, where the node reads it:
/// what goes to another site, and what comes from or goes to a socket that is bound to its VIP.
#[inline(always)]
fn datagram(ctx: &SockAddrContext, pod: &Pod, vip: &Vip, to: Port) -> Verdict {
    let face = face(pod, &to.ip);
    if vip.verdict == VERDICT_DIRECT
        && !bound_to(ctx, &face.vip)
        && !bound_there(vip, to.port)
        && !seen_on_vip(&to)
    {
        count(pod.domain, Reason::Direct);
        return Verdict::direct(pod, vip, face);
    }
    if is_host(pod) {
        // No interface of the machine leads to the node.
        return deny(ctx, pod, &to, Reason::HostDatagram, ENETUNREACH);
    }
    count(pod.domain, Reason::Datagram);
    Verdict::PASS
}

/// Whether the peer has a socket on that port that is bound to its VIP.
#[inline(always)]
fn bound_there(vip: &Vip, port: u32) -> bool {
    match vip.check {
        CHECK_LISTENERS => udp_on_vip(vip.netns, port),
        CHECK_MIRROR => mirrored(vip.netns, port, UDP),
        _ => false,
    }
}

/// Whether that member spoke from its VIP a moment ago.
#[inline(always)]
fn seen_on_vip(at: &Port) -> bool {
    // SAFETY: a word that is written whole; a helper without arguments.
    unsafe { UDP_SEEN.get(at).is_some_and(|until| *until > bpf_ktime_get_ns()) }
}

#[inline(always)]
fn stream(ctx: &SockAddrContext, pod: &Pod, vip: &Vip, at: Port) -> Verdict {
    let Port { domain, ip, port } = at;
    let (face, cgroup) = (face(pod, &ip), pod.cgroup);
    let open = open(vip, ip, port);
    let direct = vip.verdict == VERDICT_DIRECT && !bound_to(ctx, &face.vip);
    // What other machines say of their listeners comes later than what pods tell each other ("connect to my port 40123"), by the
    // way over the hub. Where the peer's own kernel is asked anyway, it answers.
    let late = direct && vip.check == CHECK_MIRROR;
    if open == CLOSED && !late {
        return deny(ctx, pod, &at, Reason::NoListener, ECONNREFUSED);
    }
    if direct {
        remember(ctx, Dest { ip, port, kind: NAME_VIP, cgroup });
        count(domain, Reason::Direct);
        return Verdict::direct(pod, vip, face);
    }
    if open == UNKNOWN {
        let errno = lately_refused(&at);
        if errno != 0 {
            return deny(ctx, pod, &at, Reason::RecentlyRefused, errno);
        }
    }
    if is_host(pod) {
        let relay = loopback(&ip);
        if !relay_listens(ctx, pod, &relay) {
            return deny(ctx, pod, &at, Reason::NoRelay, ECONNREFUSED);
        }
        remember(ctx, Dest { ip, port, kind: NAME_RELAYED, cgroup });
        count(domain, Reason::Relay);
        return Verdict { act: Act::Land, to: relay, port: pod.landing, ..Verdict::PASS };
    }
    forget(ctx);
    count(domain, if vip.verdict == VERDICT_RELAY { Reason::Relay } else { Reason::BoundToVip });
    Verdict::PASS
}

/// A socket bound to its VIP would send that as source on the site's network, where no answer finds back.
#[inline(always)]
fn bound_to(ctx: &SockAddrContext, vip: &Ip) -> bool {
    // SAFETY: fields of the live context; the pointer is checked.
    let sk = unsafe { (*ctx.sock_addr).__bindgen_anon_1.sk };
    if sk.is_null() {
        return false;
    }
    if is_v4(vip) {
        // SAFETY: checked above.
        return mapped(unsafe { (*sk).src_ip4 }) == *vip;
    }
    get6!((*sk).src_ip6) == *vip
}

#[inline(always)]
fn deny(ctx: &SockAddrContext, pod: &Pod, at: &Port, reason: Reason, errno: u32) -> Verdict {
    count(at.domain, reason);
    watch::refused(ctx, pod, at, reason, errno);
    Verdict { act: Act::Deny, errno, ..Verdict::PASS }
}

/// The hook's return value for a refusal; the caller sees `errno`, or EPERM before Linux 5.18.
#[inline(always)]
pub fn refuse(errno: u32) -> i32 {
    if feature(FEATURE_RETVAL) {
        // SAFETY: takes a number.
        unsafe { bpf_set_retval(-(errno as i32)) };
    }
    0
}
