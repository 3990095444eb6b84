//! What the peer says to a flow. Runs in russh's session loop: nothing here waits.

use std::{io::Write as _, sync::Arc, time::Duration};

use bytes::Bytes;
use datapath_wire::{
    FlowError, Frame, Open, Phase,
    flow::{Role, Step},
};
use socket2::SockRef;

use super::{Began, Core, Flow};
use crate::{
    api::{Lane, Reason, Told},
    carrier::Carrier,
    link::Link,
    shared::{Hold as _, Shared},
};

/// What is left to do once the flow's lock is free.
#[derive(Default)]
struct After {
    owes_ack: bool,
    moves: bool,
    fail: Option<Reason>,
    reset: Option<Reason>,
    opened: bool,
}

impl Flow {
    pub(crate) fn frame(
        self: &Arc<Self>,
        shared: &Arc<Shared>,
        link: &Arc<Link>,
        carrier: &Arc<Carrier>,
        frame: Frame<'_>,
    ) {
        let (after, home, waits) = {
            let mut guard = self.core.hold();
            let core = &mut *guard;
            if core.wire.phase().is_ended() {
                // Its task has not taken it away yet.
                if let Frame::Resume { .. } = frame {
                    self.tell_end(core, carrier);
                }
                return;
            }
            let waited = core.wire.reset_waits();
            let after = self.handle(shared, core, carrier, frame).unwrap_or_else(|error| {
                tracing::warn!(%error, src = %self.src, dst = %self.dst, peer = %link.key.peer, "flow is reset");
                After { reset: Some(Reason::Protocol), ..After::default() }
            });
            (after, core.home, core.wire.reset_waits() && !waited)
        };
        if after.opened {
            shared.tally.accepted_after.add(self.born.elapsed());
            shared.tell(|| Told::Opened(self.stats(link)));
        }
        if after.owes_ack {
            link.owe(shared, home, self);
        }
        if after.moves {
            self.to_bulk(shared, link);
        }
        if waits {
            self.await_reset(shared, home);
        }
        if let Some(r) = after.fail {
            self.fail(r);
        }
        if let Some(r) = after.reset {
            self.reset(r);
        }
    }

    /// To a peer that believes the flow goes on.
    fn tell_end(&self, core: &Core, carrier: &Carrier) {
        let reason = match core.wire.phase() {
            Phase::Failed(reason) => reason,
            _ => Reason::PeerGone,
        };
        carrier.post(&Frame::Rst { flow: self.wire_id, reason, after: core.wire.said() });
    }

    fn handle(
        &self,
        shared: &Shared,
        core: &mut Core,
        carrier: &Arc<Carrier>,
        frame: Frame<'_>,
    ) -> Result<After, FlowError> {
        let mut after = After::default();
        match frame {
            Frame::Data { offset, bytes, .. } => return self.data(shared, core, offset, bytes),
            Frame::Ack { offset, .. } => {
                let blocked = core.wire.budget() == 0;
                core.wire.tx.on_ack(offset)?;
                self.wake_sender(core, blocked);
            }
            Frame::Credit { limit, .. } => {
                let blocked = core.wire.budget() == 0;
                core.wire.tx.on_credit(limit);
                self.wake_sender(core, blocked);
            }
            Frame::Accept { credit, .. } => {
                if core.wire.role() != Role::Opener {
                    return Err(FlowError::Unexpected);
                }
                core.wire.step(Step::Accepted);
                // It comes again after a break.
                after.opened = std::mem::replace(&mut core.began, Began::Stood) != Began::Stood;
                core.wire.tx.on_credit(credit);
                self.wake_sender(core, true);
            }
            Frame::Fin { offset, .. } => {
                core.wire.rx.on_fin(offset)?;
                after.owes_ack = core.settle(shared, self.wire_id);
                self.rx_wake.notify_one();
            }
            Frame::Reject { reason, .. } => {
                if core.wire.role() != Role::Opener {
                    return Err(FlowError::Unexpected);
                }
                after.fail = Some(reason);
            }
            Frame::Rst { reason, after: end, .. } => {
                // The peer ended in order and has everything: its last ACK was lost. Here bytes may still wait for
                // the application.
                let told = core.wire.rx.has_fin() && core.wire.tx.is_closing();
                if told && reason == Reason::PeerGone {
                    core.wire.tx.on_ack(core.wire.tx.end().saturating_add(1))?;
                    self.tx_wake.notify_one();
                    self.rx_wake.notify_one();
                } else {
                    core.wire.on_rst(reason, end);
                    after.fail = core.obey_reset(shared);
                }
            }
            Frame::Resume { generation, received, limit, .. } => {
                if let Some(answer) = core.wire.on_resume(generation, received, limit)? {
                    self.continues(shared, core, carrier, &answer);
                }
            }
            Frame::Resumed { generation, received, limit, .. } => {
                if core.wire.on_resumed(generation, received, limit)? {
                    self.tx_wake.notify_one();
                }
            }
            Frame::Open { .. }
            | Frame::Hello(_)
            | Frame::Packet { .. }
            | Frame::Listening { .. }
            | Frame::Ping { .. }
            | Frame::Pong { .. } => {}
        }
        Ok(after)
    }

    /// OPEN came again after a break.
    pub(crate) fn reopened(&self, shared: &Shared, carrier: &Arc<Carrier>, open: &Open) {
        let bad = {
            let mut core = self.core.hold();
            if core.wire.phase().is_ended() {
                return self.tell_end(&core, carrier);
            }
            if (self.src, self.dst) != (open.src, open.dst) {
                true
            } else {
                match core.wire.on_reopen(open) {
                    Ok(Some(answer)) => {
                        self.continues(shared, &mut core, carrier, &answer);
                        false
                    }
                    Ok(None) => false,
                    Err(_) => true,
                }
            }
        };
        if bad {
            self.reset(Reason::Protocol);
        }
    }

    /// Acceptor: the flow goes on over `carrier`.
    fn continues(
        &self,
        shared: &Shared,
        core: &mut Core,
        carrier: &Arc<Carrier>,
        answer: &Frame<'_>,
    ) {
        core.switch(carrier);
        core.lane = carrier.lane;
        crate::shared::add(&shared.tally.resumed);
        if core.wire.phase() == Phase::Open {
            // The first ACCEPT may be lost.
            carrier.post(&Frame::Accept { flow: self.wire_id, credit: core.wire.rx.limit() });
        }
        carrier.post(answer);
        self.tx_wake.notify_one();
        self.rx_wake.notify_one();
    }

    fn wake_sender(&self, core: &Core, blocked: bool) {
        if blocked || core.wire.tx.is_closing() {
            self.tx_wake.notify_one();
        }
    }

    fn data(
        &self,
        shared: &Shared,
        core: &mut Core,
        offset: u64,
        bytes: &[u8],
    ) -> Result<After, FlowError> {
        let new = core.wire.rx.on_data(offset, bytes.len())?;
        let mut bytes = bytes.get(new).unwrap_or_default();
        let mut after = After::default();
        if core.queue.is_empty()
            && let Some(sock) = &core.sock
        {
            match sock.try_write(bytes) {
                Ok(n) => {
                    bytes = bytes.get(n..).unwrap_or_default();
                    core.wire.rx.delivered(n);
                }
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(_) => {
                    core.broken = true;
                    self.rx_wake.notify_one();
                }
            }
        }
        if core.broken {
            core.wire.rx.delivered(bytes.len());
            bytes = &[];
        }
        if !bytes.is_empty() {
            if !shared.limits.wait(bytes.len() as u64, core.wire.rx.waiting()) {
                shared.limits.done_waiting(bytes.len() as u64);
                after.reset = Some(Reason::Limit);
                return Ok(after);
            }
            core.enqueue(bytes);
            self.rx_wake.notify_one();
        }
        after.fail = core.obey_reset(shared);
        after.owes_ack = core.settle(shared, self.wire_id);
        after.moves = core.wants_bulk(shared);
        Ok(after)
    }

    /// Ends a flow whose peer has reset it when the rest of what was sent before does not come.
    fn await_reset(self: &Arc<Self>, shared: &Arc<Shared>, home: Lane) {
        let (flow, shared2) = (Arc::downgrade(self), Arc::clone(shared));
        shared.lane(home).spawn(async move {
            tokio::time::sleep(OVERTAKEN).await;
            let Some(flow) = flow.upgrade() else { return };
            let due = {
                let mut core = flow.core.hold();
                core.wire.reset_waits_no_more();
                core.obey_reset(&shared2)
            };
            if let Some(reason) = due {
                flow.fail(reason);
            }
        });
    }

    /// Proved bulky: to the other lane, now if its carrier stands, else when it does.
    pub(super) fn to_bulk(self: &Arc<Self>, shared: &Arc<Shared>, link: &Arc<Link>) {
        match link.carrier(Lane::Bulk) {
            Some(c) if self.attach(shared, &c) => crate::shared::add(&shared.tally.moved),
            _ => link.need(shared),
        }
    }

    /// Tells the peer what arrived.
    pub(crate) fn pay_ack(&self) {
        let mut guard = self.core.hold();
        let core = &mut *guard;
        core.lists_ack = false;
        if let Some(via) = &core.via
            && let Some(offset) = core.wire.rx.ack_due(true)
        {
            via.post(&Frame::Ack { flow: self.wire_id, offset });
        }
    }
}

/// How long a reset that overtook bytes waits for them: they were on their way already, unless their carrier broke.
const OVERTAKEN: Duration = Duration::from_secs(2);

/// Pieces that wait for the application share memory up to this size: a byte alone would cost a hundred.
const PIECE: usize = 4096;

impl Core {
    fn enqueue(&mut self, bytes: &[u8]) {
        let last = self.queue.pop_back_if(|last| last.len() + bytes.len() <= PIECE);
        match last.map(Bytes::try_into_mut) {
            Some(Ok(mut last)) => {
                last.extend_from_slice(bytes);
                self.queue.push_back(last.freeze());
            }
            Some(Err(last)) => self.queue.extend([last, Bytes::copy_from_slice(bytes)]),
            None => self.queue.push_back(Bytes::copy_from_slice(bytes)),
        }
    }

    /// The peer's reset, if it is due: the application is given what it takes now. With a target that is still being connected to
    /// that comes later.
    fn obey_reset(&mut self, shared: &Shared) -> Option<Reason> {
        let reason = self.wire.reset_due()?;
        let Some(sock) = self.sock.clone() else {
            return (self.wire.role() == Role::Opener).then_some(reason);
        };
        // Past the runtime, which may not know yet that it takes anything.
        let write = |b: &[u8]| (&*SockRef::from(&*sock)).write(b);
        while !self.drain(shared, write) && !self.queue.is_empty() {}
        Some(reason)
    }

    /// True once: the opener decides that the flow changes lanes.
    pub(super) fn wants_bulk(&mut self, shared: &Shared) -> bool {
        let bytes = self.wire.tx.end().saturating_add(self.wire.rx.total());
        let wants = self.lane == Lane::Interactive
            && self.wire.role() == Role::Opener
            && bytes >= shared.config.bulk_after;
        if wants {
            self.lane = Lane::Bulk;
        }
        wants
    }
}
