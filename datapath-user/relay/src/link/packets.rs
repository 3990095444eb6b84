//! IP packets to the peer, over the interactive carrier; kept by nobody once they left.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::time::Instant;

use super::Link;
use crate::{
    api::Lane,
    carrier::Carrier,
    shared::{Hold as _, Shared},
};

/// So many wait while the first carrier is made; the oldest are lost first.
const WAITING: usize = 64;
/// And so long: what a program sent before an outage must not reach a robot after it.
const FRESH: Duration = Duration::from_secs(3);

impl Link {
    /// False when the packet is lost.
    pub(crate) fn send_packet(self: &Arc<Self>, shared: &Arc<Shared>, packet: &[u8]) -> bool {
        let now = Instant::now();
        {
            let mut s = self.state.hold();
            if s.gone {
                return false;
            }
            // Bulk's carrier is full of bulk.
            if let Some(carrier) = s.best(Lane::Interactive).cloned() {
                drop(s);
                return carrier.send_packet(packet);
            }
            s.packets.push_back((now, Bytes::copy_from_slice(packet)));
            let excess = s.packets.len().saturating_sub(WAITING);
            s.packets.drain(..excess);
            s.packets.retain(|(at, _)| now.saturating_duration_since(*at) < FRESH);
        }
        self.warm(shared);
        true
    }

    pub(super) fn send_waiting(&self, carrier: &Carrier) {
        if carrier.lane != Lane::Interactive {
            return;
        }
        let (now, waiting) = (Instant::now(), std::mem::take(&mut self.state.hold().packets));
        for (at, packet) in waiting {
            if now.saturating_duration_since(at) < FRESH {
                carrier.send_packet(&packet);
            }
        }
    }

    /// Nobody tries for a carrier any more.
    pub(super) fn drop_waiting(&self) {
        self.state.hold().packets.clear();
    }
}
