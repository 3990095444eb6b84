//! While somebody reads: has the hooks tell what they see, and looks every second which datagram flows began and ended. (No packet
//! is an event: a flow of datagrams is told within a second of its first, and its end when it has been silent as long as
//! `rlark flows` shows it.)

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use control_api::{
    events::What,
    session::{Flow, FlowState},
};
use futures::{StreamExt as _, stream};

use super::{Feed, tell};
use crate::observe::Observer;

const EVERY: Duration = Duration::from_secs(1);
/// If this process dies the hooks stop soon after.
pub(crate) const ASKED_FOR: Duration = Duration::from_secs(3);

/// Runs until dropped.
pub async fn run(of: Arc<Observer>) {
    let feed: Arc<Feed> = Arc::clone(&of.feed);
    let mut hooks = of.kernel.seen().unwrap_or_else(|| stream::pending().boxed());
    loop {
        feed.wanted().await;
        let mut known = Known::new(of.packet_flows());
        let mut tick = tokio::time::interval(EVERY);
        while feed.has_readers() {
            tokio::select! {
                seen = hooks.next() => match seen {
                    Some(seen) => {
                        let view = of.keeper.view();
                        if let Some(what) = tell::seen(&view, seen) {
                            feed.tell(|| what);
                        }
                    }
                    None => hooks = stream::pending().boxed(),
                },
                _ = tick.tick() => {
                    of.kernel.watch(ASKED_FOR);
                    known.step(of.packet_flows()).into_iter().for_each(|what| feed.tell(|| what));
                }
            }
        }
        // The hooks stop by themselves: to stop them here could stop them for a reader who comes this moment.
    }
}

/// What was listed at the last look.
struct Known(BTreeMap<u64, Flow>);

impl Known {
    fn new(flows: Vec<Flow>) -> Self {
        Self(flows.into_iter().map(|f| (f.id, f)).collect())
    }

    /// What changed since.
    fn step(&mut self, now: Vec<Flow>) -> Vec<What> {
        let old = std::mem::replace(&mut self.0, Self::new(now).0);
        let gone = old.iter().filter(|(id, _)| !self.0.contains_key(id));
        let closed = gone.map(|(_, f)| Flow { state: FlowState::Closed, ..f.clone() });
        let new = self.0.iter().filter(|(id, _)| !old.contains_key(id)).map(|(_, f)| f.clone());
        closed.map(What::Closed).chain(new.map(What::Opened)).collect()
    }
}

#[cfg(test)]
mod tests {
    use control_api::session::{Protocol, Verdict};

    use super::*;

    fn flow(id: u64, bytes_out: u64) -> Flow {
        Flow {
            id,
            domain: "d".parse().unwrap(),
            protocol: Protocol::Udp,
            from_pod: "a".into(),
            from: "10.0.0.1:1".parse().unwrap(),
            to_pod: "b".into(),
            to: "10.0.0.2:2".parse().unwrap(),
            verdict: Verdict::Relay,
            carrier: "-".into(),
            state: FlowState::Open,
            bytes_out,
            bytes_in: 0,
            rtt_us: None,
            retransmits: None,
            lost: 0,
            age_ms: 0,
            outgoing: true,
            reason: String::new(),
        }
    }

    #[test]
    fn flows_are_told_when_they_come_and_with_their_last_counts_when_they_go() {
        let mut known = Known::new(vec![flow(1, 1)]);
        let told = known.step(vec![flow(1, 5), flow(2, 1)]);
        assert!(matches!(told.as_slice(), [What::Opened(f)] if f.id == 2), "{told:?}");
        assert!(known.step(vec![flow(1, 9), flow(2, 1)]).is_empty());
        let told = known.step(vec![flow(2, 1)]);
        let [What::Closed(f)] = told.as_slice() else { panic!("{told:?}") };
        assert_eq!((f.id, f.bytes_out, f.state), (1, 9, FlowState::Closed));
    }
}
