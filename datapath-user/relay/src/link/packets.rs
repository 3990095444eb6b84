//! IP packets to the peer, over the interactive carrier; kept by nobody once they left.

use std::sync::Arc;

use bytes::Bytes;

use super::Link;
use crate::{
    api::Lane,
    carrier::Carrier,
    shared::{Hold as _, Shared},
};

/// So many wait while the first carrier is made; the oldest are lost first.
const WAITING: usize = 64;

impl Link {
    /// False when the packet is lost.
    pub(crate) fn send_packet(self: &Arc<Self>, shared: &Arc<Shared>, packet: &[u8]) -> bool {
        {
            let mut s = self.state.hold();
            if s.gone {
                return false;
            }
            // Bulk's carrier is full of bulk.
            let of = |c: &&Arc<Carrier>| c.lane == Lane::Interactive && !c.is_dead();
            if let Some(carrier) = s.carriers.iter().rev().find(of).cloned() {
                drop(s);
                return carrier.send_packet(packet);
            }
            s.packets.push_back(Bytes::copy_from_slice(packet));
            while s.packets.len() > WAITING {
                s.packets.pop_front();
            }
        }
        self.warm(shared);
        true
    }

    pub(super) fn send_waiting(&self, carrier: &Carrier) {
        if carrier.lane != Lane::Interactive {
            return;
        }
        let waiting = std::mem::take(&mut self.state.hold().packets);
        for packet in waiting {
            carrier.send_packet(&packet);
        }
    }
}
