//! IP packets to the peer, over the interactive carrier; kept by nobody once they left.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use bytes::Bytes;
use tokio::time::Instant;

use super::Link;
use crate::{
    api::{Lane, PacketLoss},
    carrier::Carrier,
    shared::{Hold as _, Shared},
};

/// So many wait while the first carrier is made; the oldest are lost first.
const WAITING: usize = 64;
/// And so long: what a program sent before an outage must not reach a robot after it.
const FRESH: Duration = Duration::from_secs(3);

impl Link {
    pub(crate) fn send_packet(
        self: &Arc<Self>,
        shared: &Arc<Shared>,
        packet: &[u8],
    ) -> Result<(), PacketLoss> {
        let now = Instant::now();
        {
            let mut s = self.state.hold();
            if s.gone {
                return Err(PacketLoss::NoPeer);
            }
            // Bulk's carrier is full of bulk.
            if let Some(carrier) = s.best(Lane::Interactive).cloned() {
                drop(s);
                return carrier.send_packet(packet);
            }
            s.packets.push_back((now, Bytes::copy_from_slice(packet)));
            let before = s.packets.len();
            let excess = s.packets.len().saturating_sub(WAITING);
            s.packets.drain(..excess);
            s.packets.retain(|(at, _)| now.saturating_duration_since(*at) < FRESH);
            stale(shared, before - s.packets.len());
        }
        self.warm(shared);
        Ok(())
    }

    pub(super) fn send_waiting(&self, shared: &Shared, carrier: &Carrier) {
        if carrier.lane != Lane::Interactive {
            return;
        }
        let (now, waiting) = (Instant::now(), std::mem::take(&mut self.state.hold().packets));
        for (at, packet) in waiting {
            let is_fresh = now.saturating_duration_since(at) < FRESH;
            if !is_fresh || carrier.send_packet(&packet).is_err() {
                stale(shared, 1);
            }
        }
    }

    /// Nobody tries for a carrier any more.
    pub(super) fn drop_waiting(&self, shared: &Shared) {
        stale(shared, std::mem::take(&mut self.state.hold().packets).len());
    }
}

fn stale(shared: &Shared, packets: usize) {
    shared.tally.packets_stale.fetch_add(packets as u64, Relaxed);
}
