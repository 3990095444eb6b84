//! Frames from the peer, handed to the flows they belong to. Runs in russh's session loop: nothing
//! here waits.

use std::sync::{Arc, atomic::Ordering::Relaxed};

use datapath_wire::{Frame, Open, frame::SIDE};

use super::Link;
use crate::{
    api::{Reason, Told},
    carrier::Carrier,
    flow::Flow,
    shared::{Hold as _, Shared},
};

impl Link {
    /// One frame of a flow.
    pub(crate) fn frame(
        self: &Arc<Self>,
        shared: &Arc<Shared>,
        c: &Arc<Carrier>,
        frame: Frame<'_>,
    ) {
        let id = match &frame {
            Frame::Open { flow, open, first } => return self.open(shared, c, *flow, open, first),
            Frame::Accept { flow, .. }
            | Frame::Reject { flow, .. }
            | Frame::Data { flow, .. }
            | Frame::Ack { flow, .. }
            | Frame::Credit { flow, .. }
            | Frame::Fin { flow, .. }
            | Frame::Rst { flow, .. }
            | Frame::Resume { flow, .. }
            | Frame::Resumed { flow, .. } => *flow,
            Frame::Hello(_)
            | Frame::Packet { .. }
            | Frame::Listening { .. }
            | Frame::Ping { .. }
            | Frame::Pong { .. } => return,
        };
        let Some(flow) = self.flow(id) else {
            // Late frames of an ended flow are usual; only who waits for an answer gets one.
            if matches!(frame, Frame::Data { .. } | Frame::Resume { .. } | Frame::Fin { .. }) {
                self.tell_gone(c, id);
            }
            return;
        };
        flow.frame(shared, self, c, frame);
    }

    fn open(
        self: &Arc<Self>,
        shared: &Arc<Shared>,
        c: &Arc<Carrier>,
        id: u32,
        open: &Open,
        first: &[u8],
    ) {
        if id & SIDE == self.side {
            tracing::warn!(carrier = %c.name, id, "the peer opened a flow with our side's id");
            c.kill();
            return;
        }
        let again = |f: Arc<Flow>| {
            f.reopened(shared, c, open);
            // Also of an OPEN that was overtaken by its repetition: frames that follow it here begin behind its
            // first bytes.
            if !first.is_empty() {
                f.frame(shared, self, c, Frame::Data { flow: id, offset: 0, bytes: first });
            }
        };
        if let Some(f) = self.flow(id) {
            return again(f);
        }
        if self.state.hold().ended.ids.contains_key(&id) {
            return self.tell_gone(c, id);
        }
        let reject = |reason| {
            shared.tally.failed(reason);
            shared.tell(|| {
                let domain = self.key.domain.clone();
                Told::Refused { domain, src: open.src, dst: open.dst, reason }
            });
            if let Some(unsaid) = shared.refusals_said.may_say() {
                let (src, dst, peer) = (open.src, open.dst, &self.key.peer);
                tracing::info!(%src, %dst, %peer, %reason, unsaid, "flow from a peer is refused");
            }
            // It may come again on another carrier, when there is room and nobody waits for it any more.
            self.state.hold().ended.insert(id, 0);
            c.post(&Frame::Reject { flow: id, reason });
        };
        let pod = open.dst.ip();
        if !self.arrive(shared, pod) {
            return reject(Reason::Limit);
        }
        if !shared.limits.enter(&shared.config, &self.key.domain, pod) {
            self.depart(pod);
            return reject(Reason::Limit);
        }
        let flow = Arc::new(Flow::accepting(shared, id, open, c));
        if !self.insert(&flow) {
            shared.limits.leave(&self.key.domain, pod);
            self.depart(pod);
            c.flows.fetch_sub(1, Relaxed);
            // It came on two carriers at once.
            return self.flow(id).map_or_else(|| reject(Reason::PeerGone), again);
        }
        crate::shared::add(&shared.tally.accepted);
        if !first.is_empty() {
            flow.frame(shared, self, c, Frame::Data { flow: id, offset: 0, bytes: first });
        }
        self.begin(shared, c.lane, flow);
    }
}

#[cfg(test)]
#[path = "frames_tests.rs"]
mod tests;
