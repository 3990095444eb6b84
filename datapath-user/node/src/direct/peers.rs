//! Which machines are behind the peers, as the hub tells. A carrier through the hub ends there when
//! its machine is removed; a direct one is ours to end.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use control_api::{direct::PeerMachine, ids::NodeRef};
use datapath_relay::Relay;

use super::expected::Expected;

/// Survives route streams: what changed while there was none counts as well.
pub struct Peers {
    known: Mutex<BTreeMap<NodeRef, String>>,
    relay: Relay,
    expected: Option<Arc<Expected>>,
}

impl std::fmt::Debug for Peers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Peers(..)")
    }
}

impl Peers {
    #[must_use]
    pub fn new(relay: Relay, expected: Option<Arc<Expected>>) -> Self {
        Self { known: Mutex::default(), relay, expected }
    }

    /// All of them.
    pub fn replace(&self, peers: Vec<PeerMachine>) {
        let fresh: BTreeMap<_, _> = peers.into_iter().map(|p| (p.node, p.machine)).collect();
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let old = std::mem::replace(&mut *known, fresh);
        for (node, machine) in &old {
            if known.get(node) != Some(machine) {
                self.cut(node);
            }
        }
    }

    /// One of them.
    pub fn say(&self, node: NodeRef, machine: Option<String>) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let old = match &machine {
            Some(machine) => known.insert(node.clone(), machine.clone()),
            None => known.remove(&node),
        };
        if old.is_some() && old != machine {
            self.cut(&node);
        }
    }

    fn cut(&self, node: &NodeRef) {
        tracing::info!(peer = %node, "the peer's machine was removed or replaced: its direct carriers are cut");
        if let Some(expected) = &self.expected {
            expected.revoke(node);
        }
        self.relay.cut_direct(node);
    }
}
