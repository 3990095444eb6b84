//! One flow: an application's socket on one side, frames on the other. The protocol's state is
//! `datapath_wire::flow::Flow`; this module adds the socket, the bytes that wait for it, the carrier
//! in use, and the counts.

mod events;
mod run;

use std::{
    collections::VecDeque,
    net::SocketAddr,
    sync::{Arc, Mutex, atomic::Ordering::Relaxed},
    time::Duration,
};

use bytes::Bytes;
use datapath_wire::{
    Frame, Open, Phase,
    flow::{self as wire, Bounds, Role, Step},
    frame::MAX_FIRST,
};
pub(crate) use run::{Landed, accept, open};
use tokio::{
    net::TcpStream,
    sync::{Notify, Semaphore},
    time::Instant,
};

use crate::{
    api::{FlowState, FlowStats, Lane, OpenRequest, Reason, RelayConfig, Via},
    carrier::Carrier,
    link::Link,
    shared::{Hold as _, Shared},
};

/// Credit and ACK are due for every quarter of a window: a packet and a wake-up of both ends, which a
/// bulky flow should not cost for every frame. With less, the steps of the path wait for each other: with
/// 512 KiB two thirds of the throughput.
const BULK_WINDOW: u64 = 2 << 20;

/// See the module. Its task (`run`) is the only one that reads the socket or ends the flow.
pub(crate) struct Flow {
    /// For people; `wire_id` is the peers' name of it.
    pub(crate) id: u64,
    pub(crate) wire_id: u32,
    src: SocketAddr,
    dst: SocketAddr,
    from_pod: String,
    to_pod: String,
    born: Instant,
    core: Mutex<Core>,
    /// Credit, acknowledgements, a carrier: the sending loop looks again.
    tx_wake: Notify,
    /// Bytes or the end wait for the application.
    rx_wake: Notify,
    ended: Notify,
    /// One DATA frame at a time is in a carrier's queue.
    turn: Arc<Semaphore>,
}

struct Core {
    wire: wire::Flow,
    sock: Option<Arc<TcpStream>>,
    /// Arrived and not yet taken by the socket.
    queue: VecDeque<Bytes>,
    via: Option<Arc<Carrier>>,
    began: Began,
    /// Where it belongs, and on whose runtime its task and socket are.
    lane: Lane,
    home: Lane,
    /// Without a carrier: when to give up.
    until: Instant,
    /// For the window: when and where the last measurement started.
    mark: (Instant, u64),
    lists_ack: bool,
    /// Reset here: a lost RST would leave the peer with half a flow.
    owes_reset: bool,
    /// No peer any more, for this reason; what it sent is still delivered (see [`Flow::part`]).
    parted: Option<Reason>,
    /// The application's socket takes nothing more. What the application said before is read to its end, and only then is the flow
    /// reset: a server that answers early and closes has said something.
    broken: bool,
}

/// How far its beginning came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Began {
    NotYet,
    /// OPEN left once.
    Sent,
    /// The far end accepted.
    Stood,
}

/// What a flow waits for from its link.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Need {
    Carrier { until: Instant, lane: Lane, opener: bool },
    Lane(Lane),
}

impl Flow {
    pub(crate) fn opening(shared: &Shared, wire_id: u32, r: OpenRequest) -> Self {
        let wire = wire::Flow::opening(wire_id, bounds(&shared.config));
        let until = Instant::now() + shared.config.open_timeout;
        let core = Core::new(wire, None, Lane::Interactive, until);
        Self::new(shared, core, (r.src, r.dst), (r.from_pod, r.to_pod))
    }

    pub(crate) fn accepting(shared: &Shared, wire_id: u32, open: &Open, c: &Arc<Carrier>) -> Self {
        let wire = wire::Flow::accepting(wire_id, open, bounds(&shared.config));
        let mut core = Core::new(wire, Some(Arc::clone(c)), c.lane, Instant::now());
        core.began = Began::Sent;
        c.flows.fetch_add(1, Relaxed);
        Self::new(shared, core, (open.src, open.dst), (String::new(), String::new()))
    }

    fn new(
        shared: &Shared,
        core: Core,
        (src, dst): (SocketAddr, SocketAddr),
        (from_pod, to_pod): (String, String),
    ) -> Self {
        Self {
            id: shared.next_flow.fetch_add(1, Relaxed),
            wire_id: core.wire.id(),
            src,
            dst,
            from_pod,
            to_pod,
            born: Instant::now(),
            core: Mutex::new(core),
            tx_wake: Notify::new(),
            rx_wake: Notify::new(),
            ended: Notify::new(),
            turn: Arc::new(Semaphore::new(1)),
        }
    }

    /// This node's pod.
    pub(crate) fn local(&self) -> SocketAddr {
        match self.core.hold().wire.role() {
            Role::Opener => self.src,
            Role::Acceptor => self.dst,
        }
    }

    #[cfg(test)]
    pub(crate) fn waiting(&self) -> Vec<Bytes> {
        self.core.hold().queue.iter().cloned().collect()
    }

    #[cfg(test)]
    pub(crate) fn reset_due(&self) -> Option<Reason> {
        self.core.hold().wire.reset_due()
    }

    /// Whether the peer may know the flow.
    pub(crate) fn was_sent(&self) -> bool {
        self.core.hold().began >= Began::Sent
    }

    pub(crate) fn need(&self) -> Option<Need> {
        let c = self.core.hold();
        if !c.uses_carrier() {
            return None;
        }
        let opener = c.wire.role() == Role::Opener;
        match &c.via {
            None => Some(Need::Carrier { until: c.until, lane: c.lane, opener }),
            Some(v) if opener && v.lane != c.lane => Some(Need::Lane(c.lane)),
            Some(_) => None,
        }
    }

    /// Opener, on a carrier of `lane` through the hub.
    pub(crate) fn is_opened_by_hub(&self, lane: Lane) -> bool {
        let c = self.core.hold();
        let by_hub = c.via.as_ref().is_some_and(|v| v.lane == lane && v.via == Via::Hub);
        by_hub && c.wire.role() == Role::Opener && !c.wire.phase().is_ended()
    }

    /// Opener: uses `carrier` from now on, by OPEN or RESUME. False when the carrier is dead, or a
    /// better one stands meanwhile.
    pub(crate) fn attach(&self, shared: &Shared, carrier: &Arc<Carrier>) -> bool {
        // OPEN takes the first bytes along.
        shared.tell_listeners();
        {
            let mut guard = self.core.hold();
            let c = &mut *guard;
            if !c.uses_carrier() {
                return true;
            }
            if carrier.is_dead() || carrier.spare.load(Relaxed) {
                return false;
            }
            c.switch(carrier);
            let again = c.began >= Began::Sent;
            c.began = c.began.max(Began::Sent);
            if again {
                crate::shared::add(&shared.tally.resumed);
                match c.wire.resume() {
                    Some(frame) => carrier.post(&frame),
                    None => self.post_open(c, carrier, &[]),
                }
            } else {
                let first = c.wire.tx.take_first(MAX_FIRST).unwrap_or_default();
                self.post_open(c, carrier, &first);
            }
        }
        self.tx_wake.notify_one();
        true
    }

    fn post_open(&self, c: &Core, carrier: &Carrier, first: &[u8]) {
        let open = c.wire.open_frame(self.src, self.dst);
        let frame = Frame::Open { flow: self.wire_id, open, first };
        // First bytes make OPEN as long as a DATA frame, so it takes the flow's turn like one. The
        // turn is free, because nothing was sent before.
        match Arc::clone(&self.turn).try_acquire_owned() {
            Ok(turn) if !first.is_empty() => {
                let mut b = bytes::BytesMut::with_capacity(64 + first.len());
                frame.encode(&mut b);
                drop(carrier.send(b.freeze(), turn));
            }
            _ => carrier.post(&frame),
        }
    }

    /// `lost` is gone: if the flow used it, it has no carrier.
    pub(crate) fn orphan(&self, config: &RelayConfig, lost: &Arc<Carrier>) {
        let mut c = self.core.hold();
        if c.via.as_ref().is_some_and(|v| Arc::ptr_eq(v, lost)) {
            c.via = None;
            c.until = lost.silent_since(config) + config.resume_within;
        }
    }

    /// No carrier came in time.
    pub(crate) fn out_of_time(&self) {
        let sent = self.was_sent();
        self.part(if sent { Reason::CarrierLost } else { Reason::Timeout });
    }

    /// The peer will not be heard again. What arrived to its end was acknowledged: it is delivered all the same, and
    /// only what is still to be sent is lost.
    pub(crate) fn part(&self, reason: Reason) {
        {
            let mut c = self.core.hold();
            if !c.wire.rx.has_fin() {
                drop(c);
                return self.fail(reason);
            }
            if c.wire.needs_peer() {
                c.parted.get_or_insert(reason);
            }
        }
        self.tx_wake.notify_one();
        self.rx_wake.notify_one();
    }

    /// Ends the flow without telling the peer (who knows, or cannot be told).
    pub(crate) fn fail(&self, reason: Reason) {
        self.core.hold().wire.step(Step::Failed(reason));
        self.ended.notify_one();
    }

    /// Ends the flow and tells the peer.
    pub(crate) fn reset(&self, reason: Reason) {
        self.reset_with(&mut self.core.hold(), reason);
    }

    fn reset_with(&self, c: &mut Core, reason: Reason) {
        if c.wire.phase().is_ended() {
            return;
        }
        let opening = c.wire.phase() == Phase::Opening && c.wire.role() == Role::Acceptor;
        let flow = self.wire_id;
        let frame = if opening {
            Frame::Reject { flow, reason }
        } else {
            Frame::Rst { flow, reason, after: c.wire.said() }
        };
        if let Some(v) = c.via.as_ref().filter(|_| c.began >= Began::Sent) {
            v.post(&frame);
        }
        // An acceptor's loss shows when the opener comes back with the flow; the acceptor cannot come back.
        c.owes_reset = c.began >= Began::Sent && c.wire.role() == Role::Opener;
        c.wire.step(Step::Failed(reason));
        self.ended.notify_one();
    }

    /// Where this side's bytes end, for an RST.
    pub(crate) fn said(&self) -> u64 {
        self.core.hold().wire.said()
    }

    pub(crate) fn stats(&self, link: &Link) -> FlowStats {
        let c = self.core.hold();
        let (tx, rx) = (c.wire.tx.end(), c.wire.rx.total());
        let outgoing = c.wire.role() == Role::Opener;
        let (state, reason) = match c.wire.phase() {
            Phase::Opening => (FlowState::Opening, None),
            Phase::Open if c.wire.tx.is_closing() || c.wire.rx.has_fin() => {
                (FlowState::HalfClosed, None)
            }
            Phase::Open => (FlowState::Open, None),
            Phase::Closed => (FlowState::Closed, None),
            Phase::Failed(r) => (FlowState::Reset, Some(r)),
        };
        FlowStats {
            id: self.id,
            domain: link.key.domain.clone(),
            peer: link.key.peer.clone(),
            src: self.src,
            dst: self.dst,
            from_pod: self.from_pod.clone(),
            to_pod: self.to_pod.clone(),
            carrier: c.via.as_ref().map_or_else(|| "-".to_owned(), |v| v.name.clone()),
            state,
            bytes_out: if outgoing { tx } else { rx },
            bytes_in: if outgoing { rx } else { tx },
            rtt: c.via.as_ref().and_then(|v| v.rtt()),
            retransmits: c.via.as_ref().map(|v| v.retransmits()),
            age: self.born.elapsed(),
            outgoing,
            stood: c.began == Began::Stood,
            reason,
        }
    }
}

fn bounds(c: &RelayConfig) -> Bounds {
    Bounds { window: c.window, keep: c.window_max }
}

/// How many round trips' worth a window should hold. On long paths more: a lost segment makes all behind it wait for a round
/// trip or two, on each side of the hub, and a window that is used up by then does not grow.
fn turns(rtt: Duration) -> f64 {
    const FAR: Duration = Duration::from_millis(4);
    if rtt > FAR { 4.0 } else { 2.0 }
}

impl Core {
    fn new(wire: wire::Flow, via: Option<Arc<Carrier>>, lane: Lane, until: Instant) -> Self {
        Self {
            wire,
            sock: None,
            queue: VecDeque::new(),
            via,
            began: Began::NotYet,
            lane,
            home: lane,
            until,
            mark: (Instant::now(), 0),
            lists_ack: false,
            owes_reset: false,
            parted: None,
            broken: false,
        }
    }

    /// False as well when everything is settled with the peer, which has forgotten the flow, and this side only
    /// delivers what it has.
    fn uses_carrier(&self) -> bool {
        !self.wire.phase().is_ended() && self.wire.needs_peer() && self.parted.is_none()
    }

    fn switch(&mut self, carrier: &Arc<Carrier>) {
        carrier.flows.fetch_add(1, Relaxed);
        if let Some(old) = self.via.replace(Arc::clone(carrier)) {
            old.flows.fetch_sub(1, Relaxed);
        }
    }

    /// Its carrier runs elsewhere than its task.
    fn must_move(&self) -> bool {
        self.via.as_ref().is_some_and(|v| v.lane != self.home)
    }

    /// After bytes were delivered: answers to the peer that are due now. True: an ACK is owed but
    /// not urgent.
    fn settle(&mut self, shared: &Shared, flow: u32) -> bool {
        self.widen(shared);
        let Some(via) = &self.via else { return false };
        if let Some(limit) = self.wire.rx.credit_due() {
            via.post(&Frame::Credit { flow, limit });
        }
        if let Some(offset) = self.wire.rx.ack_due(false) {
            via.post_lazily(&Frame::Ack { flow, offset });
        }
        self.wire.rx.owes_ack() && !std::mem::replace(&mut self.lists_ack, true)
    }

    /// The window follows the measured bandwidth-delay product ([`turns`]), and on the bulk lane it is at
    /// least [`BULK_WINDOW`]. A reader that stalls takes nothing, so its window does not grow.
    fn widen(&mut self, shared: &Shared) {
        let (since, from) = self.mark;
        let (window, taken) = (self.wire.rx.window(), self.wire.rx.taken());
        if taken - from < window / 4 {
            return;
        }
        let rtt = self.via.as_ref().and_then(|v| v.rtt_min()).unwrap_or_default();
        let elapsed = since.elapsed().max(Duration::from_micros(1));
        if elapsed < rtt.max(Duration::from_millis(1)) {
            return;
        }
        self.mark = (Instant::now(), taken);
        let rate = (taken - from) as f64 / elapsed.as_secs_f64();
        let least = if self.lane == Lane::Bulk { BULK_WINDOW } else { 0 };
        let more = window.min(shared.config.window_max.saturating_sub(window));
        if more > 0
            && (window < least || turns(rtt) * rate * rtt.as_secs_f64() > window as f64)
            && shared.limits.widen(
                &shared.config,
                window.saturating_sub(run::first_window(shared)),
                more,
            )
        {
            self.wire.rx.widen(window + more);
        }
    }
}
