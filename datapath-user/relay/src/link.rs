//! A link: all flows with one peer in one Domain, and the carriers they may use. Flows outlive
//! carriers; the link attaches them to another.

mod arrivals;
mod direct;
mod frames;
mod packets;
mod resets;
mod roam;
mod tend;

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, atomic::Ordering::Relaxed},
};

use bytes::Bytes;
use control_api::ids::NodeRef;
use datapath_wire::{
    Frame,
    frame::{SIDE, side_bit},
};
use tokio::{sync::Notify, time::Instant};

use crate::{
    api::{Lane, Reason, Told, Via},
    carrier::Carrier,
    flow::Flow,
    shared::{Hold as _, LinkKey, Shared, add},
};

/// How many ended ids are remembered, so that an OPEN which is repeated after a break does not
/// open twice.
const ENDED: usize = 65_536;

/// See the module.
pub(crate) struct Link {
    pub(crate) key: LinkKey,
    /// The side bit of flows that we open.
    side: u32,
    state: Mutex<State>,
    /// Flows that owe the peer an ACK.
    owing: Mutex<Vec<Arc<Flow>>>,
    /// A carrier came or went, or the link ended.
    changed: Notify,
    /// The direct way is due, or need not be tried.
    improving: Notify,
}

#[derive(Default)]
struct State {
    flows: HashMap<u32, Arc<Flow>>,
    /// Greeted and living, oldest first.
    carriers: Vec<Arc<Carrier>>,
    dialing: [bool; 2],
    tending: bool,
    /// Until then try for an interactive carrier though no flow needs it.
    warm_until: Option<Instant>,
    peer_epoch: Option<u64>,
    ended: Ended,
    resets: resets::Owed,
    arrivals: arrivals::Arrivals,
    /// Packets that wait for a carrier.
    packets: VecDeque<(Instant, Bytes)>,
    direct: direct::Direct,
    gone: bool,
}

#[derive(Default)]
struct Ended {
    order: VecDeque<u32>,
    /// With the end of what this side said, see [`Flow::said`].
    ids: HashMap<u32, u64>,
}

impl Ended {
    fn insert(&mut self, id: u32, said: u64) {
        if self.ids.insert(id, said).is_none() {
            self.order.push_back(id);
        }
        if self.order.len() > ENDED
            && let Some(old) = self.order.pop_front()
        {
            self.ids.remove(&old);
        }
    }
}

impl Link {
    pub(crate) fn new(key: LinkKey, me: &NodeRef) -> Self {
        let side = side_bit(&me.to_string(), &key.peer.to_string());
        Self {
            key,
            side,
            state: Mutex::default(),
            owing: Mutex::default(),
            changed: Notify::new(),
            improving: Notify::new(),
        }
    }

    /// A free id for a flow that we open.
    pub(crate) fn next_id(&self, shared: &Shared) -> u32 {
        loop {
            let n = shared.next_wire.fetch_add(1, Relaxed) & !SIDE;
            let id = n | self.side;
            if n != 0 && !self.state.hold().flows.contains_key(&id) {
                return id;
            }
        }
    }

    /// False when the link has ended, or the peer's flow of that id stands or has ended meanwhile.
    pub(crate) fn insert(&self, flow: &Arc<Flow>) -> bool {
        let (mut s, id) = (self.state.hold(), flow.wire_id);
        let theirs = id & SIDE != self.side;
        if s.gone || (theirs && (s.ended.ids.contains_key(&id) || s.flows.contains_key(&id))) {
            return false;
        }
        s.flows.insert(id, Arc::clone(flow));
        true
    }

    pub(crate) fn remove(&self, flow: &Arc<Flow>) {
        let said = flow.said();
        let mut s = self.state.hold();
        if s.flows.get(&flow.wire_id).is_some_and(|f| Arc::ptr_eq(f, flow)) {
            s.flows.remove(&flow.wire_id);
            s.ended.insert(flow.wire_id, said);
        }
    }

    pub(crate) fn flow(&self, id: u32) -> Option<Arc<Flow>> {
        self.state.hold().flows.get(&id).cloned()
    }
    pub(crate) fn flows(&self) -> Vec<Arc<Flow>> {
        self.state.hold().flows.values().cloned().collect()
    }
    pub(crate) fn carriers(&self) -> Vec<Arc<Carrier>> {
        self.state.hold().carriers.clone()
    }

    /// The best living carrier of `lane`: a direct one, and of those the newest.
    pub(crate) fn carrier(&self, lane: Lane) -> Option<Arc<Carrier>> {
        self.state.hold().best(lane).cloned()
    }

    /// A carrier for a flow that belongs on `lane`: another lane is better than none.
    fn any_carrier(&self, lane: Lane) -> Option<Arc<Carrier>> {
        let other = if lane == Lane::Bulk { Lane::Interactive } else { Lane::Bulk };
        self.carrier(lane).or_else(|| self.carrier(other))
    }

    /// A carrier is proved and greeted.
    pub(crate) fn ready(
        self: &Arc<Self>,
        shared: &Arc<Shared>,
        carrier: &Arc<Carrier>,
        epoch: u64,
    ) {
        let (stale, old) = {
            let listeners = shared.listeners.hold();
            let mut s = self.state.hold();
            if s.gone || !Self::admits(&s, carrier) {
                drop((s, listeners));
                carrier.kill();
                return;
            }
            let restarted = s.peer_epoch.replace(epoch).is_some_and(|e| e != epoch);
            let (mut stale, mut old) = (Vec::new(), Vec::new());
            if restarted {
                // The new process counts its ids from the start: what is gone must not answer for
                // a flow that comes under its id, not even until its own task has ended.
                stale = s.flows.extract_if(|_, f| f.was_sent()).map(|(_, f)| f).collect();
                old = std::mem::take(&mut s.carriers);
                s.ended = Ended::default();
                s.resets = resets::Owed::default();
                Self::forget_rest(&mut s);
            }
            s.carriers.push(Arc::clone(carrier));
            // Before a flow can come to it.
            listeners.of(&self.key.domain).for_each(|told| carrier.tell_listening(told));
            carrier.up.store(true, Relaxed);
            s.mark_spare();
            if carrier.lane == Lane::Interactive {
                s.warm_until = None;
            }
            (stale, old)
        };
        self.send_resets(carrier);
        self.send_waiting(shared, carrier);
        self.doubt_others(shared, carrier);
        add(&shared.tally.carriers_up);
        tracing::info!(carrier = %carrier.name, domain = %self.key.domain, "carrier is up");
        shared.tell(|| Told::CarrierUp {
            domain: self.key.domain.clone(),
            peer: self.key.peer.clone(),
            name: carrier.name.clone(),
        });
        for f in stale {
            f.part(Reason::PeerGone);
        }
        for c in old {
            c.kill();
        }
        if carrier.via == Via::Direct {
            self.upgrade(shared, carrier);
        }
        self.changed.notify_waiters();
        self.tend(shared);
        self.improve(shared);
    }

    /// A carrier ended, greeted or not.
    pub(crate) fn lost(
        self: &Arc<Self>,
        shared: &Arc<Shared>,
        carrier: &Arc<Carrier>,
        why: &'static str,
    ) {
        let flows = {
            let mut s = self.state.hold();
            s.carriers.retain(|c| !Arc::ptr_eq(c, carrier));
            s.mark_spare();
            s.flows.values().cloned().collect::<Vec<_>>()
        };
        // Also of a carrier that is listed no more, or never was: a flow may have come to it meanwhile.
        for f in flows {
            f.orphan(&shared.config, carrier);
        }
        if !carrier.up.swap(false, Relaxed) {
            return self.tend(shared);
        }
        self.direct_lost(&shared.config, carrier, why);
        add(&shared.tally.carriers_lost);
        carrier.look();
        shared.tally.retransmits.fetch_add(carrier.retransmits(), Relaxed);
        shared.tell(|| Told::CarrierDown {
            domain: self.key.domain.clone(),
            peer: self.key.peer.clone(),
            name: carrier.name.clone(),
            why,
        });
        tracing::info!(carrier = %carrier.name, domain = %self.key.domain, why, "carrier is gone");
        self.changed.notify_waiters();
        self.tend(shared);
        self.improve(shared);
    }

    /// Ends every flow and carrier. The link object is not used again.
    pub(crate) fn end(&self, shared: &Arc<Shared>) {
        let (flows, carriers) = {
            let mut s = self.state.hold();
            s.gone = true;
            (s.flows.values().cloned().collect::<Vec<_>>(), std::mem::take(&mut s.carriers))
        };
        for f in flows {
            f.reset(Reason::PeerGone);
        }
        for c in carriers {
            shared.lane(c.lane).spawn(async move { c.retire().await });
        }
        self.changed.notify_waiters();
        self.improving.notify_waiters();
    }

    /// Lists a flow that owes an ACK: all are told together a little later, so that an answer often
    /// carries more than one frame's worth.
    pub(crate) fn owe(self: &Arc<Self>, shared: &Arc<Shared>, lane: Lane, flow: &Arc<Flow>) {
        let first = {
            let mut o = self.owing.hold();
            o.push(Arc::clone(flow));
            o.len() == 1
        };
        if first {
            let me = Arc::clone(self);
            shared.lane(lane).spawn(async move {
                tokio::time::sleep(std::time::Duration::from_millis(40)).await;
                let flows = std::mem::take(&mut *me.owing.hold());
                for f in flows {
                    f.pay_ack();
                }
            });
        }
    }

    /// Tells a peer that speaks of a flow which is not here any more.
    fn tell_gone(&self, carrier: &Carrier, flow: u32) {
        let after = self.state.hold().ended.ids.get(&flow).copied().unwrap_or_default();
        carrier.post(&Frame::Rst { flow, reason: Reason::PeerGone, after });
    }
}
