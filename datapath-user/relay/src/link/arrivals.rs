//! Flows that the peer opens: how many may stand, and how many begin at a time. Whoever floods us with OPENs uses up what is
//! his, and the flows of others wait for a few of his at most.

use std::{
    collections::{HashMap, VecDeque},
    future::poll_fn,
    net::IpAddr,
    pin::pin,
    sync::Arc,
    task::Poll,
};

use super::Link;
use crate::{
    api::{Lane, RelayConfig},
    flow::{self, Flow},
    shared::{Hold as _, Shared, share},
};

/// So many begin between two looks at other peers' work. A beginning is a connect() and what follows at once, some 30 us.
const AT_ONCE: usize = 8;

#[derive(Default)]
pub(super) struct Arrivals {
    standing: usize,
    /// By the pod that they are for.
    pods: HashMap<IpAddr, usize>,
    /// Their tasks have not run yet.
    starting: usize,
    waiting: VecDeque<(Lane, Arc<Flow>)>,
}

impl Arrivals {
    /// Whether the peer may open another one to `pod`.
    fn has_room(&self, c: &RelayConfig, pod: IpAddr) -> bool {
        let of_pod = self.pods.get(&pod).copied().unwrap_or(0);
        self.standing < share(c.flows_total.min(c.descriptors)) && of_pod < share(c.flows_per_pod)
    }

    fn enter(&mut self, pod: IpAddr) {
        self.standing += 1;
        *self.pods.entry(pod).or_default() += 1;
    }

    fn leave(&mut self, pod: IpAddr) {
        self.standing = self.standing.saturating_sub(1);
        if let Some(n) = self.pods.get_mut(&pod) {
            *n = n.saturating_sub(1);
            if *n == 0 {
                self.pods.remove(&pod);
            }
        }
    }

    /// The next that may begin.
    fn next(&mut self) -> Option<(Lane, Arc<Flow>)> {
        if self.starting >= AT_ONCE {
            return None;
        }
        let next = self.waiting.pop_front()?;
        self.starting += 1;
        Some(next)
    }
}

impl Link {
    /// Counts a flow that the peer opens; false when it has its share.
    pub(super) fn arrive(&self, shared: &Shared, pod: IpAddr) -> bool {
        let mut s = self.state.hold();
        let room = s.arrivals.has_room(&shared.config, pod);
        if room {
            s.arrivals.enter(pod);
        }
        room
    }

    /// Gives that back.
    pub(crate) fn depart(&self, pod: IpAddr) {
        self.state.hold().arrivals.leave(pod);
    }

    /// Begins an arrived flow, or does so when those before it have begun.
    pub(super) fn begin(self: &Arc<Self>, shared: &Arc<Shared>, lane: Lane, flow: Arc<Flow>) {
        self.state.hold().arrivals.waiting.push_back((lane, flow));
        self.begin_next(shared);
    }

    fn begin_next(self: &Arc<Self>, shared: &Arc<Shared>) {
        let Some((lane, flow)) = self.state.hold().arrivals.next() else { return };
        let (s, link) = (Arc::clone(shared), Arc::clone(self));
        // At the end of the lane's line: what others had to do meanwhile comes first.
        shared.lane(lane).spawn(async move {
            let mut work = pin!(flow::accept(&s, &link, &flow));
            let first = poll_fn(|cx| Poll::Ready(work.as_mut().poll(cx))).await;
            // A connect() that takes long holds up nobody.
            link.state.hold().arrivals.starting -= 1;
            link.begin_next(&s);
            if first.is_pending() {
                work.await;
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_peer_gets_its_share_of_a_pod_and_of_the_node() {
        let mut config = RelayConfig::new("s/n".parse().unwrap());
        (config.flows_per_pod, config.flows_total) = (4, 8);
        let (a, b, c) = (IpAddr::from([1; 4]), IpAddr::from([2; 4]), IpAddr::from([3; 4]));
        let mut arrivals = Arrivals::default();
        for pod in [a, a, a, b, b, b] {
            assert!(arrivals.has_room(&config, pod), "{pod}");
            arrivals.enter(pod);
        }
        assert!(!arrivals.has_room(&config, c), "of the node");
        arrivals.leave(b);
        arrivals.leave(b);
        assert!(arrivals.has_room(&config, c) && !arrivals.has_room(&config, a));
        assert_eq!(arrivals.pods.get(&b), Some(&1));
    }
}
