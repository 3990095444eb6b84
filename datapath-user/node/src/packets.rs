//! What is no stream: datagrams, echoes and the refusals that answer them cross as the IP packets that they are. The
//! kernels of both pods speak to each other; this node only sees that each speaks for itself.

pub mod header;
mod table;
mod tally;

use std::{
    collections::{BTreeMap, HashMap},
    io,
    net::{IpAddr, SocketAddr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use control_api::{
    ids::{DomainName, NodeRef},
    session::{Flow, Member, Protocol},
};
use datapath_net::packet::Tap;
use datapath_relay::{PacketLoss, Reason, Relay};

use crate::{
    deliver,
    events::{self, Feed},
    keeper::{Keeper, LocalPod, View},
    kernel::{Kernel, is_host},
    landing::Open,
    packets::{header::Header, table::PacketFlows, tally::Tally},
    plan::{desired::DomainId, table::Domain},
    refusals::Refusals,
};

pub use self::tally::Counts;

/// So many packets of one pod, then others have their turn.
const RUN: usize = 32;

/// For how long what is sent to a socket that spoke from its VIP goes there.
const ANSWER_TTL: Duration = Duration::from_secs(120);
/// So many such sockets are remembered here; of more the hook is told with every packet.
const MAX_TOLD: usize = 16_384;

/// Reads what a pod sends until dropped.
pub async fn run(tap: Tap, pod: Arc<LocalPod>, open: Arc<dyn Open>) {
    let mut buffer = vec![0; 65_536];
    loop {
        for _ in 0..RUN {
            match tap.next(&mut buffer).await {
                Ok(packet) => open.packet(&pod, packet),
                // The interface went down or away; the pod's end ends this task.
                Err(error) => {
                    tracing::debug!(pod = pod.attached.uid, %error, "cannot read the pod's packets");
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            }
        }
        tokio::task::yield_now().await;
    }
}

/// Where a pod's packet goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    Peer(NodeRef),
    /// A pod of this machine.
    Here(u64),
}

/// # Errors
/// [`Reason::Denied`] when the source is not the pod's own address or no longer its own, or the Domain does not allow the port, [`Reason::HostUnreachable`] when nobody holds the target.
pub fn outgoing(view: &View, pod: &LocalPod, me: &NodeRef, h: &Header) -> Result<Target, Reason> {
    let attached = &pod.attached;
    let domain = view.table.domain(&attached.domain).ok_or(Reason::HostUnreachable)?;
    let to = domain.holder(h.dst.ip()).ok_or(Reason::HostUnreachable)?;
    // A pod whose address was withdrawn still has it on its interface.
    let own = domain.member(&attached.uid).is_some_and(|m| m.vips.contains(&h.src.ip()));
    let is_own = own && view.pods.contains_key(&attached.uid);
    if !is_own || !allowed(domain, h) {
        return Err(Reason::Denied);
    }
    if to.node != *me {
        return Ok(Target::Peer(to.node.clone()));
    }
    let here = view.local(&attached.domain, h.dst.ip()).ok_or(Reason::HostUnreachable)?;
    if is_host(here.attached.netns_cookie) {
        return Err(Reason::HostUnreachable);
    }
    Ok(Target::Here(here.attached.netns_cookie))
}

/// Whether the Domain allows the port, or the packet may be an answer from one that it allows. Later fragments and echoes have none.
fn allowed(domain: &Domain, h: &Header) -> bool {
    let port_less = h.protocol != Protocol::Udp || (h.src.port() == 0 && h.dst.port() == 0);
    port_less || domain.allows(h.dst.port()) || domain.allows(h.src.port())
}

/// Both directions of this machine's pods.
pub struct Packets {
    keeper: Keeper,
    kernel: Arc<dyn Kernel>,
    refusals: Arc<Mutex<Refusals>>,
    flows: Mutex<PacketFlows>,
    tally: Mutex<Tally>,
    feed: Arc<Feed>,
    /// When the hook was told of a member's socket on its VIP.
    told: Mutex<HashMap<(DomainId, SocketAddr), Instant>>,
}

impl std::fmt::Debug for Packets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Packets(..)")
    }
}

impl Packets {
    #[must_use]
    pub fn new(
        keeper: Keeper,
        kernel: Arc<dyn Kernel>,
        refusals: Arc<Mutex<Refusals>>,
        feed: Arc<Feed>,
    ) -> Self {
        let (flows, tally, told) = (Mutex::default(), Mutex::default(), Mutex::default());
        Self { keeper, kernel, refusals, flows, tally, feed, told }
    }

    /// A pod of this machine sends.
    pub fn from_pod(&self, relay: &Relay, pod: &LocalPod, packet: &[u8]) {
        // Routers and neighbours are looked for on every interface: that is nobody's loss.
        let Some(h) = header::parse(packet) else { return };
        let domain = &pod.attached.domain;
        let view = self.keeper.view();
        let target = outgoing(&view, pod, self.keeper.me(), &h);
        let left = match target {
            Ok(Target::Peer(peer)) => {
                relay.send_packet(domain, &peer, packet).map_err(PacketLoss::as_str)
            }
            Ok(Target::Here(cookie)) => self.deliver(&view, cookie, domain, &h, packet),
            Err(reason) => return self.refuse(&view, domain, &h, reason),
        };
        self.passed(domain, &h, packet.len(), true, left);
    }

    fn passed(
        &self,
        domain: &DomainName,
        h: &Header,
        length: usize,
        outgoing: bool,
        result: Result<(), &'static str>,
    ) {
        match result {
            Ok(()) => {
                self.flows().note(domain, h, length, outgoing, Instant::now());
                self.tally().passed(domain, outgoing, length);
            }
            Err(why) => {
                self.flows().note_loss(domain, h);
                self.tally().lost(domain, why);
                Refusals::count(&self.refusals, Reason::Limit);
            }
        }
    }

    fn refuse(&self, view: &View, domain: &DomainName, h: &Header, reason: Reason) {
        let code = match reason {
            Reason::HostUnreachable | Reason::NotHere => "unknown_target",
            Reason::SourceForged => "forged",
            _ => reason.as_str(),
        };
        self.tally().lost(domain, code);
        Refusals::count(&self.refusals, reason);
        let refusal = events::Refusal {
            domain,
            protocol: h.protocol,
            from: h.src,
            to: h.dst,
            reason: reason.as_str(),
        };
        self.feed.tell(|| refusal.event(view));
    }

    /// A peer's relay delivers what one of its pods sent.
    pub fn from_peer(&self, domain: &DomainName, peer: &NodeRef, packet: &[u8]) {
        let Some(h) = header::parse(packet) else {
            self.tally().lost(domain, "malformed");
            return Refusals::count(&self.refusals, Reason::Protocol);
        };
        let view = self.keeper.view();
        match deliver::check(&view, domain, peer, h.src, h.dst) {
            Ok(_) if !view.table.domain(domain).is_some_and(|d| allowed(d, &h)) => {
                self.refuse(&view, domain, &h, Reason::Denied);
            }
            // No interface of the machine takes packets for it.
            Ok(cookie) if is_host(cookie) => {
                self.refuse(&view, domain, &h, Reason::HostUnreachable);
            }
            Ok(cookie) => {
                let result = self.deliver(&view, cookie, domain, &h, packet);
                self.passed(domain, &h, packet.len(), false, result);
            }
            Err(reason) => self.refuse(&view, domain, &h, reason),
        }
    }

    fn deliver(
        &self,
        view: &View,
        cookie: u64,
        domain: &DomainName,
        h: &Header,
        packet: &[u8],
    ) -> Result<(), &'static str> {
        self.answer_there(view, domain, h);
        self.inject(cookie, h.dst.ip(), packet)
    }

    /// Datagrams of a member that could be reached directly come this way only from a socket that is bound to its VIP: the
    /// hook must know before the pod can answer.
    fn answer_there(&self, view: &View, domain: &DomainName, h: &Header) {
        let near = |m: &Member| m.node.cluster == self.keeper.me().cluster;
        let near = view.table.domain(domain).and_then(|d| d.holder(h.src.ip())).is_some_and(near);
        if h.protocol != Protocol::Udp || h.src.port() == 0 || !near {
            return;
        }
        let Some(id) = view.ids.get(domain) else { return };
        let (key, now) = ((id, h.src), Instant::now());
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.get(&key).is_some_and(|at| now.duration_since(*at) < ANSWER_TTL / 2) {
            return;
        }
        if told.len() >= MAX_TOLD {
            told.retain(|_, at| now.duration_since(*at) < ANSWER_TTL / 2);
        }
        if told.len() < MAX_TOLD {
            told.insert(key, now);
        }
        self.kernel.answer_on_vip(id, h.src, ANSWER_TTL);
    }

    fn inject(&self, cookie: u64, to: IpAddr, packet: &[u8]) -> Result<(), &'static str> {
        self.kernel.inject(cookie, to, packet).map_err(|error| {
            tracing::debug!(%to, %error, "packet lost");
            "not_delivered"
        })
    }

    fn flows(&self) -> MutexGuard<'_, PacketFlows> {
        self.flows.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What crossed and what was lost, by Domain.
    #[must_use]
    pub fn counts(&self) -> BTreeMap<DomainName, Counts> {
        self.tally().all()
    }

    /// As people see them, without names and carriers.
    #[must_use]
    pub fn list(&self) -> Vec<Flow> {
        self.flows().list(Instant::now())
    }
}

/// What a machine without a tap says.
pub(crate) fn no_such_pod() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "the pod is not on this node")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        deliver::tests::{restrict, view},
        kernel::fake::Fake,
        packets::header::{parse, tests::udp},
    };

    #[test]
    fn a_pod_speaks_for_itself_to_members_of_its_domain() {
        let view = view();
        let (me, pod) = ("s1/n1".parse().unwrap(), view.pods.get("here").unwrap());
        let peer = |node: &str| Ok(Target::Peer(node.parse().unwrap()));
        let cases = [
            ("10.2.0.1", "10.2.0.2", peer("s2/n1")),
            ("10.2.0.1", "10.2.0.3", peer("s1/n2")),
            ("10.2.0.1", "10.2.0.1", Ok(Target::Here(77))),
            // A member's address that is not the pod's own, one of another network, nobody's.
            ("10.2.0.3", "10.2.0.2", Err(Reason::Denied)),
            ("192.168.0.1", "10.2.0.2", Err(Reason::Denied)),
            ("10.2.0.1", "10.2.0.99", Err(Reason::HostUnreachable)),
        ];
        for (src, dst, want) in cases {
            let header = parse(&udp(src, dst)).unwrap();
            assert_eq!(outgoing(&view, pod, &me, &header), want, "{src} {dst}");
        }
        let mut withdrawn = view.clone();
        withdrawn.pods.clear();
        let header = parse(&udp("10.2.0.1", "10.2.0.2")).unwrap();
        assert_eq!(outgoing(&withdrawn, pod, &me, &header), Err(Reason::Denied));
    }

    #[test]
    fn a_datagram_goes_to_a_port_that_the_domain_lists_or_answers_from_one() {
        let (mut view, me) = (view(), "s1/n1".parse().unwrap());
        let header = parse(&udp("10.2.0.1", "10.2.0.2")).unwrap();
        let mut to = |ports: &str| {
            restrict(&mut view, ports);
            outgoing(&view, view.pods.get("here").unwrap(), &me, &header)
        };
        // The datagram is from port 7 to port 9.
        assert!(to("9").is_ok() && to("7").is_ok());
        assert_eq!(to("8"), Err(Reason::Denied));
    }

    #[tokio::test]
    async fn the_hook_hears_once_of_a_socket_on_the_vip_of_its_own_site() {
        let kernel = Arc::new(Fake::default());
        let (keeper, _inbox) = Keeper::new("s1/n1".parse().unwrap());
        let mut view = view();
        view.ids.assign(&"d".parse().unwrap());
        let (keeper, _views) = keeper.with_view(view);
        let kernel2 = Arc::<Fake>::clone(&kernel);
        let packets = Packets::new(keeper, kernel2, Arc::default(), Arc::default());
        let domain = "d".parse().unwrap();
        for (node, src) in [("s2/n1", "10.2.0.2"), ("s1/n2", "10.2.0.3"), ("s1/n2", "10.2.0.3")] {
            packets.from_peer(&domain, &node.parse().unwrap(), &udp(src, "10.2.0.1"));
        }
        assert_eq!(kernel.state.lock().unwrap().log, ["on vip 10.2.0.3:7"]);
    }
}
