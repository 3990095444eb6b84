//! What this node shows of itself: flows, the doctor's report, the probe of a path.

mod probe;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use control_api::{
    attach::NodeReport,
    ids::NodeRef,
    session::{Flow, FlowState, ProbeHop, ProbeReport, ProbeRequest, Protocol, Verdict},
};
use control_identity::session::SessionState;
use datapath_relay::{FlowStats, Lane, Reason, Relay};
use futures::future::BoxFuture;
use tokio::sync::watch;

use crate::{
    attach::Insight,
    events::{Feed, Reader, pump},
    keeper::{Keeper, LocalPod, View},
    kernel::{DirectFlow, Kernel},
    local::LocalFlows,
    packets::Packets,
    plan::table::Domain,
    refusals::Refusals,
};

/// Ids of direct flows are socket cookies; this keeps them apart from the relay's.
const DIRECT_ID_BASE: u64 = 1 << 63;

/// Reads of everything, writes of nothing.
pub struct Observer {
    pub keeper: Keeper,
    pub kernel: Arc<dyn Kernel>,
    pub relay: Relay,
    pub local: LocalFlows,
    pub packets: Arc<Packets>,
    pub refusals: Arc<Mutex<Refusals>>,
    pub feed: Arc<Feed>,
    pub session: watch::Receiver<SessionState>,
}

impl std::fmt::Debug for Observer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Observer(..)")
    }
}

pub(crate) fn hop(hop: impl Into<String>, ok: bool, detail: impl Into<String>) -> ProbeHop {
    ProbeHop { hop: hop.into(), ok, detail: detail.into() }
}

impl Observer {
    /// Relayed, local and direct flows, in this order.
    #[must_use]
    pub fn all_flows(&self) -> Vec<Flow> {
        let view = self.keeper.view();
        let relayed = self.relay.flows().into_iter().map(|f| relayed(&view, f));
        let direct = self.kernel.direct_flows().into_iter().filter_map(|f| direct(&view, &f));
        relayed.chain(self.local.list()).chain(self.packet_flows()).chain(direct).collect()
    }

    /// Flows of what is no stream, as far as they pass this node.
    #[must_use]
    pub fn packet_flows(&self) -> Vec<Flow> {
        let view = self.keeper.view();
        self.packets.list().into_iter().map(|f| self.packets_named(&view, f)).collect()
    }

    /// Packets belong to no carrier for longer than one: the one they would take now is shown.
    fn packets_named(&self, view: &View, f: Flow) -> Flow {
        let domain = view.table.domain(&f.domain);
        let far = if f.outgoing { f.to.ip() } else { f.from.ip() };
        let peer = domain.and_then(|d| d.holder(far)).map(|m| &m.node);
        let carriers = self.relay.carriers();
        let carrier = carriers
            .iter()
            .find(|c| Some(&c.peer) == peer && c.domain == f.domain && c.lane == Lane::Interactive);
        let local = peer == Some(self.keeper.me());
        let name = if local { "local" } else { carrier.map_or("-", |c| c.name.as_str()) };
        Flow {
            from_pod: named(domain, String::new(), f.from.ip()),
            to_pod: named(domain, String::new(), f.to.ip()),
            carrier: name.to_owned(),
            rtt_us: carrier.and_then(|c| c.rtt).map(micros),
            ..f
        }
    }

    /// Refusals by reason: the kernel's, the relay's and this node's own checks.
    #[must_use]
    pub fn refusal_counts(&self) -> BTreeMap<String, u64> {
        let mut all: BTreeMap<String, u64> = BTreeMap::new();
        let kernel = self.kernel.counts().into_iter().filter(|c| c.verdict == "deny");
        let kernel = kernel.map(|c| (c.reason.to_owned(), c.count));
        let relay = self.relay.counters().flows_failed.into_iter();
        let relay = relay.map(|(reason, n)| (reason.as_str().to_owned(), n));
        let own = Refusals::snapshot(&self.refusals).into_iter().map(|(r, n)| (r.to_owned(), n));
        for (reason, count) in kernel.chain(relay).chain(own).filter(|(_, n)| *n > 0) {
            let sum = all.entry(reason).or_default();
            *sum = sum.saturating_add(count);
        }
        all
    }

    /// Proves the path between two pods, hop by hop, by a real connection.
    pub async fn probe(&self, request: &ProbeRequest) -> ProbeReport {
        ProbeReport { hops: probe::run(self, request).await }
    }

    async fn checks(&self) -> Vec<ProbeHop> {
        let mut checks = self.kernel.checks();
        let connected = *self.session.borrow() == SessionState::Connected;
        let detail = if connected { "connected" } else { "not connected; the last routes stand" };
        checks.push(hop("session", connected, detail));
        let view = self.keeper.view();
        for carrier in self.relay.carriers() {
            let rtt = carrier.rtt.map_or_else(|| "-".to_owned(), |d| format!("{d:?}"));
            let detail = format!("Domain {}, {} flows, rtt {rtt}", carrier.domain, carrier.flows);
            checks.push(hop(format!("carrier {}", carrier.name), true, detail));
        }
        for direct in self.relay.directs() {
            // The hub's path serves: a peer that cannot be reached past it is no fault.
            let detail = match (direct.stands, direct.failure) {
                (true, _) => "stands".to_owned(),
                (false, Some(why)) => format!("through the hub; last attempt: {why}"),
                (false, None) => "through the hub; nothing to try".to_owned(),
            };
            let name = format!("direct path to {} in Domain {}", direct.peer, direct.domain);
            checks.push(hop(name, true, detail));
        }
        for pod in view.pods.values() {
            let name = member_name(&view, pod);
            for check in self.kernel.pod_checks(pod.join.clone()).await {
                checks.push(hop(format!("{name}: {}", check.hop), check.ok, check.detail));
            }
        }
        checks
    }
}

fn member_name(view: &View, pod: &LocalPod) -> String {
    let domain = view.table.domain(&pod.attached.domain);
    let member = domain.and_then(|d| d.member(&pod.attached.uid));
    member.map_or_else(|| pod.attached.uid.clone(), |m| m.pod.clone())
}

impl Insight for Observer {
    fn flows(&self) -> Vec<Flow> {
        self.all_flows()
    }

    fn report(&self) -> BoxFuture<'_, NodeReport> {
        Box::pin(async { NodeReport { checks: self.checks().await } })
    }

    fn events(&self) -> Option<(NodeRef, Reader)> {
        // Before the reader is told that it hears all.
        self.kernel.watch(pump::ASKED_FOR);
        Some((self.keeper.me().clone(), self.feed.subscribe()?))
    }
}

/// The accepting side is not told the names; the routes know them.
pub(crate) fn named(domain: Option<&Arc<Domain>>, given: String, ip: std::net::IpAddr) -> String {
    if !given.is_empty() {
        return given;
    }
    domain.and_then(|d| d.holder(ip)).map_or_else(|| "-".to_owned(), |m| m.pod.clone())
}

pub(crate) fn relayed(view: &View, f: FlowStats) -> Flow {
    let domain = view.table.domain(&f.domain);
    Flow {
        id: f.id,
        from_pod: named(domain, f.from_pod, f.src.ip()),
        to_pod: named(domain, f.to_pod, f.dst.ip()),
        domain: f.domain,
        protocol: Protocol::Tcp,
        from: f.src,
        to: f.dst,
        verdict: Verdict::Relay,
        carrier: f.carrier,
        state: state(f.state, f.reason),
        bytes_out: f.bytes_out,
        bytes_in: f.bytes_in,
        rtt_us: f.rtt.map(micros),
        retransmits: f.retransmits,
        lost: 0,
        age_ms: u64::try_from(f.age.as_millis()).unwrap_or(u64::MAX),
        outgoing: f.outgoing,
        reason: f.reason.map(|r| r.as_str().to_owned()).unwrap_or_default(),
    }
}

/// To the application a refused flow was reset; people want to know that it never stood.
fn state(state: FlowState, reason: Option<Reason>) -> FlowState {
    use Reason::{Denied, HostUnreachable, Limit, NotHere, Refused, SourceForged};
    match (state, reason) {
        (
            FlowState::Reset,
            Some(Denied | HostUnreachable | Limit | NotHere | Refused | SourceForged),
        ) => FlowState::Refused,
        (state, _) => state,
    }
}

fn micros(d: std::time::Duration) -> u64 {
    u64::try_from(d.as_micros()).unwrap_or(u64::MAX)
}

/// `None` for a Domain that has just left.
pub(crate) fn direct(view: &View, f: &DirectFlow) -> Option<Flow> {
    let name = view.ids.name(f.domain)?;
    let domain = view.table.domain(name);
    Some(Flow {
        id: DIRECT_ID_BASE | f.id,
        domain: name.clone(),
        protocol: Protocol::Tcp,
        from_pod: named(domain, String::new(), f.from.ip()),
        from: f.from,
        to_pod: named(domain, String::new(), f.to.ip()),
        to: f.to,
        verdict: Verdict::Direct,
        carrier: "-".to_owned(),
        state: if f.established { FlowState::Open } else { FlowState::Opening },
        bytes_out: f.bytes_out,
        bytes_in: f.bytes_in,
        rtt_us: f.rtt.map(micros),
        retransmits: f.retransmits,
        lost: 0,
        age_ms: u64::try_from(f.age.as_millis()).unwrap_or(u64::MAX),
        outgoing: true,
        reason: String::new(),
    })
}
