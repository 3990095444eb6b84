//! The accepting end of flows: checks what a peer claims and connects in the target's namespace.

use std::{
    net::{SocketAddr, TcpStream},
    sync::{Arc, Mutex},
    time::Duration,
};

use control_api::ids::{DomainName, NodeRef};
use datapath_net::pace::LogPace;
use datapath_relay::{BoxFuture, Deliver, Listening, Reason, Told};

use crate::{
    events::{self, Feed},
    keeper::{Keeper, View},
    kernel::Kernel,
    mirror::Mirror,
    packets::Packets,
    refusals::Refusals,
    report,
};

/// The pod's own stack answers, or its backlog is full: then a SYN is sent again for two minutes (`tcp_syn_retries`), as any client's.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(135);

/// [`Deliver`] over this node's routes and kernel.
pub struct Delivery {
    keeper: Keeper,
    kernel: Arc<dyn Kernel>,
    refusals: Arc<Mutex<Refusals>>,
    packets: Arc<Packets>,
    feed: Arc<Feed>,
    mirror: Arc<Mirror>,
    said: LogPace,
}

impl std::fmt::Debug for Delivery {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Delivery(..)")
    }
}

impl Delivery {
    #[must_use]
    pub fn new(
        keeper: Keeper,
        kernel: Arc<dyn Kernel>,
        refusals: Arc<Mutex<Refusals>>,
        packets: Arc<Packets>,
        feed: Arc<Feed>,
        mirror: Arc<Mirror>,
    ) -> Self {
        Self { keeper, kernel, refusals, packets, feed, mirror, said: LogPace::default() }
    }

    async fn connect(
        &self,
        cookie: u64,
        src: SocketAddr,
        dst: SocketAddr,
    ) -> Result<TcpStream, Reason> {
        let stream = self.kernel.connect(cookie, Some(src.ip()), dst, CONNECT_TIMEOUT).await;
        stream.map_err(|e| match (e.raw_os_error(), e.kind()) {
            (_, std::io::ErrorKind::TimedOut) => Reason::Timeout,
            (Some(errno), _) => Reason::from_connect_errno(errno),
            (None, _) => Reason::HostUnreachable,
        })
    }
}

/// The namespace to deliver to, if the claim is true: `src` is a pod of the Domain on `peer`, and
/// `dst` one on this node.
///
/// # Errors
/// [`Reason::SourceForged`] or [`Reason::NotHere`].
pub fn check(
    view: &View,
    domain: &DomainName,
    peer: &NodeRef,
    src: SocketAddr,
    dst: SocketAddr,
) -> Result<u64, Reason> {
    let routes = view.table.domain(domain).ok_or(Reason::NotHere)?;
    match routes.holder(src.ip()) {
        Some(member) if member.node == *peer => {}
        _ => return Err(Reason::SourceForged),
    }
    let pod = view.local(domain, dst.ip()).ok_or(Reason::NotHere)?;
    Ok(pod.attached.netns_cookie)
}

/// Whether the Domain lets its pods be reached on that port; the connecting machine was to see to it.
#[must_use]
pub fn allows(view: &View, domain: &DomainName, dst: SocketAddr) -> bool {
    view.table.domain(domain).is_some_and(|d| d.allows(dst.port()))
}

impl Deliver for Delivery {
    fn deliver<'a>(
        &'a self,
        domain: &'a DomainName,
        peer: &'a NodeRef,
        src: SocketAddr,
        dst: SocketAddr,
    ) -> BoxFuture<'a, Result<TcpStream, Reason>> {
        Box::pin(async move {
            let view = self.keeper.view();
            let result = match check(&view, domain, peer, src, dst) {
                Ok(_) if !allows(&view, domain, dst) => Err(Reason::Denied),
                Ok(cookie) => self.connect(cookie, src, dst).await,
                Err(reason) => Err(reason),
            };
            if let Err(reason) = result {
                if let Some(unsaid) = self.said.may_say() {
                    tracing::info!(%domain, %peer, %src, %dst, %reason, unsaid, "flow from a peer refused");
                }
                Refusals::count(&self.refusals, reason);
            }
            result
        })
    }

    fn packet(&self, domain: &DomainName, peer: &NodeRef, packet: &[u8]) {
        self.packets.from_peer(domain, peer, packet);
    }

    fn turned(&self) -> Vec<(DomainName, SocketAddr, bool)> {
        let sockets = self.kernel.turned();
        if sockets.is_empty() {
            return Vec::new();
        }
        report::turned(&self.keeper.view(), &sockets, |socket| self.kernel.is_open(socket))
    }

    fn peer_listens(&self, domain: &DomainName, peer: &NodeRef, said: Listening) {
        let view = self.keeper.view();
        let holder = view.table.domain(domain).and_then(|d| d.holder(said.at.ip()));
        match holder {
            Some(member) if member.node == *peer => {
                self.mirror.heard(domain.clone(), member.uid.clone(), said);
            }
            _ => Refusals::count(&self.refusals, Reason::SourceForged),
        }
    }

    fn refused(&self, domain: &DomainName, dst: SocketAddr, reason: Reason) {
        if let Some(id) = self.keeper.view().ids.get(domain) {
            self.kernel.remember_refusal(id, dst, reason.errno());
        }
    }

    fn listens(&self) -> bool {
        self.feed.has_readers()
    }

    fn tell(&self, told: Told) {
        let view = self.keeper.view();
        self.feed.tell(|| events::told(&view, told));
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use control_api::{
        attach::{Attached, VirtualAddress},
        session::RouteUpdate,
    };

    use super::*;
    use crate::{
        keeper::LocalPod,
        kernel::Join,
        plan::{
            desired::{DomainId, Face, Pod},
            table::tests::{domain, member},
        },
    };

    /// Here is `s1/n1`, with the pod `here` of Domain `d`.
    pub(crate) fn view() -> View {
        let mut view = View::default();
        let members = vec![
            member("here", "10.2.0.1", "s1/n1", None),
            member("far", "10.2.0.2", "s2/n1", None),
            member("elsewhere", "10.2.0.3", "s1/n2", None),
        ];
        let other = vec![member("x", "10.2.0.9", "s2/n1", None)];
        let domains = vec![domain("d", "10.2.0.0/24", members), domain("e", "10.2.0.0/24", other)];
        view.table.apply(RouteUpdate::Snapshot { domains }).unwrap();
        let attached = Attached {
            uid: "here".into(),
            domain: "d".parse().unwrap(),
            addresses: vec![VirtualAddress { vip: "10.2.0.1".parse().unwrap(), prefix_len: 24 }],
            interface: "rl0".into(),
            netns_cookie: 77,
        };
        let pod = LocalPod {
            attached,
            domain_id: DomainId(1),
            join: Join {
                uid: "here".into(),
                netns: "/x".into(),
                cgroup: None,
                cookie: 77,
                pod: Pod {
                    domain: DomainId(1),
                    faces: vec![Face {
                        cidr: "10.2.0.0/24".parse().unwrap(),
                        vip: "10.2.0.1".parse().unwrap(),
                        real: None,
                    }],
                    restricted: false,
                },
            },
            hosts: None,
        };
        view.pods.insert("here".into(), Arc::new(pod));
        view
    }

    #[test]
    fn a_port_that_the_domain_does_not_list_is_not_reached() {
        let mut view = view();
        let (domain, at) = ("d".parse().unwrap(), |port| SocketAddr::from(([10, 2, 0, 1], port)));
        assert!(allows(&view, &domain, at(7001)), "no list");
        assert!(!allows(&view, &"nowhere".parse().unwrap(), at(7001)));
        restrict(&mut view, "7000-7001");
        let allowed = [6999, 7000, 7001, 7002].map(|port| allows(&view, &domain, at(port)));
        assert_eq!(allowed, [false, true, true, false]);
    }

    /// Lets Domain `d` of [`view`] be reached on these ports only.
    pub(crate) fn restrict(view: &mut View, ports: &str) {
        let RouteUpdate::Snapshot { mut domains } = view.table.snapshot() else { panic!() };
        for domain in domains.iter_mut().filter(|d| d.name.as_str() == "d") {
            domain.allowed_ports = Some(vec![ports.parse().unwrap()]);
        }
        view.table.apply(RouteUpdate::Snapshot { domains }).unwrap();
    }

    #[test]
    fn a_claim_is_believed_only_from_the_node_that_hosts_the_source() {
        let view = view();
        let cases = [
            ("d", "s2/n1", "10.2.0.2", "10.2.0.1", Ok(77)),
            ("d", "s2/n2", "10.2.0.2", "10.2.0.1", Err(Reason::SourceForged)),
            ("d", "s2/n1", "10.2.0.3", "10.2.0.1", Err(Reason::SourceForged)),
            ("d", "s2/n1", "10.2.0.99", "10.2.0.1", Err(Reason::SourceForged)),
            // A VIP that the peer holds in another Domain proves nothing in this one.
            ("d", "s2/n1", "10.2.0.9", "10.2.0.1", Err(Reason::SourceForged)),
            ("d", "s2/n1", "10.2.0.2", "10.2.0.3", Err(Reason::NotHere)),
            ("e", "s2/n1", "10.2.0.9", "10.2.0.1", Err(Reason::NotHere)),
            ("nowhere", "s2/n1", "10.2.0.2", "10.2.0.1", Err(Reason::NotHere)),
        ];
        for (d, peer, src, dst, want) in cases {
            let at = |ip: &str| SocketAddr::new(ip.parse().unwrap(), 80);
            let got = check(&view, &d.parse().unwrap(), &peer.parse().unwrap(), at(src), at(dst));
            assert_eq!(got, want, "{d} {peer} {src} {dst}");
        }
    }
}
