//! What all parts of one relay share: configuration, lanes, identities, links, limits and counts.

use std::{
    collections::{HashMap, VecDeque},
    future::Future,
    net::IpAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
    },
};

use control_api::ids::{DomainName, NodeRef};
use datapath_net::pace::LogPace;
use tokio_util::task::TaskTracker;

use crate::{
    api::{Counters, Deliver, FlowStats, Lane, Paths, Reason, RelayConfig, Told, Via},
    histogram::Histogram,
    identity::Identity,
    link::Link,
    listeners::Recent,
};

/// A mutex that a panicked holder does not spoil: every critical section here leaves whole state.
pub(crate) trait Hold<T> {
    fn hold(&self) -> MutexGuard<'_, T>;
}
impl<T> Hold<T> for Mutex<T> {
    fn hold(&self) -> MutexGuard<'_, T> {
        self.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The runtime of one lane. Its tasks end with the runtime.
pub(crate) struct LaneThread {
    pub(crate) handle: tokio::runtime::Handle,
    pub(crate) tasks: TaskTracker,
}

impl LaneThread {
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn_on(task, &self.handle);
    }
}

/// A link's name: one peer in one Domain.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LinkKey {
    pub(crate) domain: DomainName,
    pub(crate) peer: NodeRef,
}

/// Counts that only grow.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) opened: AtomicU64,
    pub(crate) accepted: AtomicU64,
    pub(crate) closed: AtomicU64,
    failed: [AtomicU64; 16],
    pub(crate) carriers_up: AtomicU64,
    pub(crate) carriers_lost: AtomicU64,
    pub(crate) dials_failed: AtomicU64,
    pub(crate) peers_refused: AtomicU64,
    pub(crate) resumed: AtomicU64,
    pub(crate) moved: AtomicU64,
    pub(crate) upgraded: AtomicU64,
    /// Of carriers that ended.
    pub(crate) retransmits: AtomicU64,
    pub(crate) packets_stale: AtomicU64,
    pub(crate) hub_rtt: Histogram,
    pub(crate) direct_rtt: Histogram,
    pub(crate) accepted_after: Histogram,
}

impl Tally {
    pub(crate) fn rtt(&self, via: Via) -> &Histogram {
        match via {
            Via::Hub => &self.hub_rtt,
            Via::Direct => &self.direct_rtt,
        }
    }

    pub(crate) fn failed(&self, r: Reason) {
        if let Some(c) = self.failed.get(usize::from(r.code())) {
            c.fetch_add(1, Relaxed);
        }
    }
}

pub(crate) fn add(c: &AtomicU64) {
    c.fetch_add(1, Relaxed);
}

/// One per [`crate::Relay`].
pub(crate) struct Shared {
    pub(crate) config: RelayConfig,
    pub(crate) deliver: Arc<dyn Deliver>,
    pub(crate) paths: Arc<dyn Paths>,
    pub(crate) interactive: LaneThread,
    pub(crate) bulk: LaneThread,
    pub(crate) identities: Mutex<HashMap<DomainName, Arc<Identity>>>,
    pub(crate) links: Mutex<HashMap<LinkKey, Arc<Link>>>,
    pub(crate) tally: Tally,
    pub(crate) history: Mutex<VecDeque<FlowStats>>,
    pub(crate) limits: Limits,
    pub(crate) listeners: Mutex<Recent>,
    pub(crate) refusals_said: LogPace,
    /// Tells peers that this process is new.
    pub(crate) epoch: u64,
    pub(crate) next_flow: AtomicU64,
    /// Never restarts while the process lives, so a new link cannot reuse an id that the peer
    /// still remembers.
    pub(crate) next_wire: AtomicU32,
}

impl Shared {
    pub(crate) fn lane(&self, lane: Lane) -> &LaneThread {
        match lane {
            Lane::Interactive => &self.interactive,
            Lane::Bulk => &self.bulk,
        }
    }

    pub(crate) fn identity(&self, domain: &DomainName) -> Option<Arc<Identity>> {
        self.identities.hold().get(domain).cloned()
    }

    /// The link with `peer`, made when it is the first use.
    pub(crate) fn link(&self, domain: &DomainName, peer: &NodeRef) -> Arc<Link> {
        let key = LinkKey { domain: domain.clone(), peer: peer.clone() };
        let mut links = self.links.hold();
        Arc::clone(
            links.entry(key.clone()).or_insert_with(|| Arc::new(Link::new(key, &self.config.node))),
        )
    }

    pub(crate) fn all_links(&self) -> Vec<Arc<Link>> {
        self.links.hold().values().cloned().collect()
    }

    /// Tells the owner, if it listens; what is told is made only then.
    pub(crate) fn tell(&self, told: impl FnOnce() -> Told) {
        if self.deliver.listens() {
            self.deliver.tell(told());
        }
    }

    pub(crate) fn remember(&self, f: FlowStats) {
        self.tell(|| Told::Ended(f.clone()));
        let mut h = self.history.hold();
        h.push_front(f);
        h.truncate(self.config.history);
    }

    pub(crate) fn counters(&self) -> Counters {
        let t = &self.tally;
        let get = |c: &AtomicU64| c.load(Relaxed);
        let failed = |r: &Reason| t.failed.get(usize::from(r.code())).map_or(0, get);
        Counters {
            flows_opened: get(&t.opened),
            flows_accepted: get(&t.accepted),
            flows_closed: get(&t.closed),
            flows_failed: Reason::ALL.iter().map(|r| (*r, failed(r))).collect(),
            carriers_up: get(&t.carriers_up),
            carriers_lost: get(&t.carriers_lost),
            dials_failed: get(&t.dials_failed),
            peers_refused: get(&t.peers_refused),
            flows_resumed: get(&t.resumed),
            flows_moved: get(&t.moved),
            flows_upgraded: get(&t.upgraded),
            carrier_retransmits: self
                .all_links()
                .iter()
                .flat_map(|l| l.carriers())
                .map(|c| c.retransmits())
                .fold(get(&t.retransmits), u64::saturating_add),
            packets_stale: get(&t.packets_stale),
            flows_now: self.limits.flows.hold().relayed as u64,
            carriers_now: self.all_links().iter().map(|l| l.carriers().len() as u64).sum(),
        }
    }
}

/// Hard limits. Every count is given back by exactly one call.
#[derive(Default)]
pub(crate) struct Limits {
    flows: Mutex<FlowCounts>,
    widened: AtomicU64,
    waiting: AtomicU64,
}

#[derive(Default)]
struct FlowCounts {
    total: usize,
    relayed: usize,
    descriptors: usize,
    pods: HashMap<(DomainName, IpAddr), usize>,
}

/// Descriptors of a relayed flow; while it moves to another lane it has two.
const RELAYED: usize = 1;

/// What one pod, or one peer, may have of something.
pub(crate) const fn share(of: usize) -> usize {
    of - of / 4
}

/// Bytes that arrived and that applications do not take, over all flows.
const MAX_WAITING: u64 = 1 << 30;
/// Of one flow: little.
const MODEST: u64 = 128 << 10;

impl Limits {
    /// Counts a relayed flow of the local pod `ip`; false when a limit is reached.
    pub(crate) fn enter(&self, c: &RelayConfig, domain: &DomainName, ip: IpAddr) -> bool {
        let admitted = self.admit(c, domain, ip, RELAYED);
        self.flows.hold().relayed += usize::from(admitted);
        admitted
    }

    pub(crate) fn leave(&self, domain: &DomainName, ip: IpAddr) {
        self.dismiss(domain, ip, RELAYED);
        let mut f = self.flows.hold();
        f.relayed = f.relayed.saturating_sub(1);
    }

    /// As [`Limits::enter`], for any flow.
    pub(crate) fn admit(
        &self,
        c: &RelayConfig,
        domain: &DomainName,
        ip: IpAddr,
        descriptors: usize,
    ) -> bool {
        let mut f = self.flows.hold();
        let used = f.descriptors.saturating_add(descriptors);
        if f.total >= c.flows_total || used > c.descriptors {
            return false;
        }
        let most =
            c.flows_per_pod.min(share(c.flows_total)).min(share(c.descriptors) / descriptors);
        let pod = f.pods.entry((domain.clone(), ip)).or_default();
        if *pod >= most {
            return false;
        }
        *pod += 1;
        f.total += 1;
        f.descriptors = used;
        true
    }

    pub(crate) fn dismiss(&self, domain: &DomainName, ip: IpAddr, descriptors: usize) {
        let mut f = self.flows.hold();
        f.total = f.total.saturating_sub(1);
        f.descriptors = f.descriptors.saturating_sub(descriptors);
        let key = (domain.clone(), ip);
        if let Some(n) = f.pods.get_mut(&key) {
            *n -= 1;
            if *n == 0 {
                f.pods.remove(&key);
            }
        }
    }

    /// Takes `n` bytes of the windows' common allowance for a flow that had `had` of it; false when there is too little. No flow has
    /// more than a quarter of what is left then, so that one which comes later finds something.
    pub(crate) fn widen(&self, c: &RelayConfig, had: u64, n: u64) -> bool {
        let take = |v: u64| {
            let v = v.checked_add(n)?;
            (had.saturating_add(n) <= c.window_total.checked_sub(v)? / 4).then_some(v)
        };
        self.widened.fetch_update(Relaxed, Relaxed, take).is_ok()
    }
    pub(crate) fn narrow(&self, n: u64) {
        self.widened.fetch_sub(n, Relaxed);
    }

    /// Counts bytes that wait for an application, `of_flow` of its flow with these; false when there are too many on this node. Who
    /// has only just begun to wait is not the one to pay for it.
    pub(crate) fn wait(&self, n: u64, of_flow: u64) -> bool {
        let all = self.waiting.fetch_add(n, Relaxed) + n;
        all <= MAX_WAITING || (of_flow <= MODEST && all <= 2 * MAX_WAITING)
    }
    pub(crate) fn done_waiting(&self, n: u64) {
        self.waiting.fetch_sub(n, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_that_comes_late_still_gets_some_of_the_windows_allowance() {
        let (config, limits) = (RelayConfig::new("s/n".parse().unwrap()), Limits::default());
        let widest = || {
            let mut window = config.window;
            while window < config.window_max
                && limits.widen(&config, window - config.window, window)
            {
                window *= 2;
            }
            window
        };
        let all: Vec<u64> = (0..60).map(|_| widest()).collect();
        let (early, later) = all.split_at(24);
        assert_eq!(early.first(), Some(&config.window_max));
        assert!(early.iter().all(|window| *window >= 2 << 20), "{all:?}");
        assert!(later.iter().all(|window| *window <= 2 << 20), "{all:?}");
        assert!(all.iter().map(|w| w - config.window).sum::<u64>() <= config.window_total);
    }

    #[test]
    fn a_flow_that_has_just_begun_to_wait_does_not_pay_for_a_crowd_that_stalls() {
        let limits = Limits::default();
        assert!(limits.wait(MAX_WAITING, 256 << 10));
        assert!(limits.wait(60 << 10, 60 << 10));
        assert!(!limits.wait(1, 256 << 10), "who has more is");
        limits.done_waiting(MAX_WAITING + (60 << 10) + 1);
        assert_eq!(limits.waiting.load(Relaxed), 0);
    }
}
