//! What relay, hooks and this node's own checks know, as events with the names that people know. Pure.

use std::net::SocketAddr;

use control_api::{
    events::{CarrierChange, Refused, Refuser, What},
    ids::DomainName,
    session::{Flow, FlowState, Protocol},
};
use datapath_relay::{FlowStats, Reason, Told};

use crate::{
    keeper::View,
    kernel::{DirectEnd, Seen},
    observe,
};

/// A refusal by this node's own checks.
#[derive(Clone, Copy, Debug)]
pub struct Refusal<'a> {
    pub domain: &'a DomainName,
    pub protocol: Protocol,
    pub from: SocketAddr,
    pub to: SocketAddr,
    pub reason: &'a str,
}

impl Refusal<'_> {
    /// Names from the routes.
    #[must_use]
    pub fn event(self, view: &View) -> What {
        What::Refused(refused(view, self, Refuser::Node))
    }
}

fn refused(view: &View, r: Refusal<'_>, by: Refuser) -> Refused {
    let domain = view.table.domain(r.domain);
    Refused {
        domain: r.domain.clone(),
        protocol: r.protocol,
        from_pod: observe::named(domain, String::new(), r.from.ip()),
        from: r.from,
        to_pod: observe::named(domain, String::new(), r.to.ip()),
        to: r.to,
        reason: r.reason.to_owned(),
        errno: None,
        by,
        pid: None,
    }
}

/// What the relay tells.
#[must_use]
pub fn told(view: &View, told: Told) -> What {
    let change = |domain, peer, name, why: &str| CarrierChange {
        domain,
        peer,
        carrier: name,
        why: why.to_owned(),
    };
    match told {
        Told::Opened(f) => What::Opened(observe::relayed(view, f)),
        Told::Ended(f) if f.stood => What::Closed(observe::relayed(view, f)),
        Told::Ended(f) => never_stood(view, &f),
        Told::Refused { domain, src, dst, reason } => Refusal {
            domain: &domain,
            protocol: Protocol::Tcp,
            from: src,
            to: dst,
            reason: reason.as_str(),
        }
        .event(view),
        Told::CarrierUp { domain, peer, name } => What::CarrierUp(change(domain, peer, name, "")),
        Told::CarrierDown { domain, peer, name, why } => {
            What::CarrierDown(change(domain, peer, name, why))
        }
    }
}

fn never_stood(view: &View, f: &FlowStats) -> What {
    let reason = f.reason.unwrap_or(Reason::Reset).as_str();
    let refusal =
        Refusal { domain: &f.domain, protocol: Protocol::Tcp, from: f.src, to: f.dst, reason };
    What::Refused(refused(view, refusal, if f.outgoing { Refuser::Peer } else { Refuser::Node }))
}

/// What the hooks saw; `None` when it concerns a Domain or a pod that has just left.
pub(super) fn seen(view: &View, seen: Seen) -> Option<What> {
    match seen {
        Seen::Refused { cookie, udp, to, reason, errno, pid } => {
            let pod = view.pods.values().find(|p| p.attached.netns_cookie == cookie)?;
            let refusal = Refusal {
                domain: &pod.attached.domain,
                protocol: if udp { Protocol::Udp } else { Protocol::Tcp },
                from: SocketAddr::new(pod.vip_towards(to.ip()), 0),
                to,
                reason,
            };
            let refused = refused(view, refusal, Refuser::Kernel);
            Some(What::Refused(Refused { errno: Some(errno), pid: Some(pid), ..refused }))
        }
        Seen::Opened(f) => observe::direct(view, &f).map(What::Opened),
        Seen::Ended(f, end) => {
            let flow = observe::direct(view, &f)?;
            Some(match end {
                DirectEnd::InOrder => What::Closed(Flow { state: FlowState::Closed, ..flow }),
                DirectEnd::Reset => {
                    let reason = Reason::Reset.as_str().to_owned();
                    What::Closed(Flow { state: FlowState::Reset, reason, ..flow })
                }
                DirectEnd::NeverStood => {
                    let refusal = Refusal {
                        domain: &flow.domain,
                        protocol: Protocol::Tcp,
                        from: flow.from,
                        to: flow.to,
                        reason: "no-answer",
                    };
                    What::Refused(refused(view, refusal, Refuser::Peer))
                }
            })
        }
        Seen::Lost(events) => Some(What::Lost { events }),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{deliver::tests::view, kernel::DirectFlow};

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_refusal_in_the_kernel_says_who_asked() {
        let refused = |cookie| Seen::Refused {
            cookie,
            udp: false,
            to: at("10.2.0.2:80"),
            reason: "no_listener",
            errno: 111,
            pid: 42,
        };
        let Some(What::Refused(r)) = seen(&view(), refused(77)) else { panic!() };
        assert_eq!((r.from_pod.as_str(), r.to_pod.as_str()), ("pod-here", "pod-far"));
        assert_eq!((r.from, r.errno, r.pid), (at("10.2.0.1:0"), Some(111), Some(42)));
        assert_eq!(r.by, Refuser::Kernel);
        assert_eq!(seen(&view(), refused(78)), None, "a pod that left");
    }

    #[test]
    fn the_end_of_a_direct_flow_says_how_and_how_much() {
        let mut view = view();
        let domain = view.ids.assign(&"d".parse().unwrap());
        let flow = DirectFlow {
            id: 1,
            cookie: 77,
            domain,
            from: at("10.2.0.1:5"),
            to: at("10.2.0.3:80"),
            established: true,
            rtt: Some(Duration::from_micros(50)),
            retransmits: Some(2),
            bytes_out: 8,
            bytes_in: 9,
            age: Duration::from_secs(3),
        };
        let end = |end| seen(&view, Seen::Ended(flow.clone(), end)).unwrap();
        let What::Closed(f) = end(DirectEnd::InOrder) else { panic!() };
        assert_eq!((f.state, f.bytes_out, f.bytes_in, f.age_ms), (FlowState::Closed, 8, 9, 3000));
        assert_eq!((f.to_pod.as_str(), f.retransmits), ("pod-elsewhere", Some(2)));
        let What::Closed(f) = end(DirectEnd::Reset) else { panic!() };
        assert_eq!((f.state, f.reason.as_str()), (FlowState::Reset, "reset"));
        let What::Refused(r) = end(DirectEnd::NeverStood) else { panic!() };
        assert_eq!((r.reason.as_str(), r.by), ("no-answer", Refuser::Peer));
    }
}
