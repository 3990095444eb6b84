//! Resets that may be lost with their carrier. Nothing is sent twice while a carrier lives, so an acceptor that missed the
//! RST, or still uses an older carrier, would wait for the opener for as long as flows wait, or for ever.

use std::{collections::VecDeque, sync::Arc};

use datapath_wire::Frame;
use tokio::time::Instant;

use super::Link;
use crate::{
    api::{Reason, RelayConfig},
    carrier::Carrier,
    shared::Hold as _,
};

/// So many are kept; the oldest are forgotten first, and the peer's own deadline ends those flows.
const MOST: usize = 16_384;

/// What the peer may not have heard.
#[derive(Default)]
pub(super) struct Owed(VecDeque<(Instant, Reset)>);

/// Which flow, why, and where this side's bytes end.
type Reset = (u32, Reason, u64);

impl Owed {
    fn push(&mut self, until: Instant, reset: Reset) {
        let now = Instant::now();
        while self.0.pop_front_if(|(until, ..)| *until <= now).is_some() {}
        if self.0.len() >= MOST {
            self.0.pop_front();
        }
        self.0.push_back((until, reset));
    }

    fn due(&self, now: Instant) -> Vec<Reset> {
        self.0.iter().filter(|(until, _)| *until > now).map(|(_, reset)| *reset).collect()
    }
}

impl Link {
    /// A flow that we opened was reset here, and `via` was told: so are all other carriers, and those that come as long
    /// as the peer may wait. It ignores what it does not know.
    pub(crate) fn insist(&self, config: &RelayConfig, reset: Reset, via: Option<&Arc<Carrier>>) {
        let carriers = {
            let mut s = self.state.hold();
            s.resets.push(Instant::now() + config.resume_within, reset);
            s.carriers.clone()
        };
        for c in carriers.iter().filter(|c| via.is_none_or(|via| !Arc::ptr_eq(via, c))) {
            c.post_lazily(&frame(reset));
        }
    }

    /// What `carrier`, which is new, has to tell before anything else.
    pub(super) fn send_resets(&self, carrier: &Carrier) {
        let due = self.state.hold().resets.due(Instant::now());
        for reset in due {
            carrier.post(&frame(reset));
        }
    }
}

fn frame((flow, reason, after): Reset) -> Frame<'static> {
    Frame::Rst { flow, reason, after }
}
