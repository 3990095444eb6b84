//! What the owner tells the relay of direct ways, and learns of them.

use std::net::SocketAddr;

use control_api::ids::{DomainName, NodeRef};

use super::Relay;
use crate::{api::DirectStats, shared::Hold as _};

impl Relay {
    /// `peer` listens at these addresses for direct carriers, or at others than before. A link whose
    /// carriers run through the hub tries it soon; see [`crate::Paths::dial_direct`].
    pub fn offer(&self, domain: &DomainName, peer: &NodeRef, addresses: &[SocketAddr]) {
        self.shared.link(domain, peer).offer(&self.shared, addresses);
    }

    /// This machine's addresses or routes changed: every link that has no direct carrier tries for
    /// one.
    pub fn probe_direct(&self) {
        self.shared.all_links().iter().for_each(|l| l.probe(&self.shared));
    }

    /// Closes the direct carriers with `peer` in all Domains, and for [`crate::RelayConfig::cut_for`]
    /// takes no other, so that none gets in whose ticket is older. Flows look for another carrier.
    pub fn cut_direct(&self, peer: &NodeRef) {
        let links = self.shared.links.hold();
        let config = &self.shared.config;
        links.values().filter(|l| l.key.peer == *peer).for_each(|l| l.cut_direct(config));
    }

    /// The direct way of every link that has carriers.
    #[must_use]
    pub fn directs(&self) -> Vec<DirectStats> {
        let links = self.shared.all_links().into_iter().filter(|l| !l.carriers().is_empty());
        let stats = links.map(|l| {
            let (stands, failure) = l.direct_state();
            DirectStats { domain: l.key.domain.clone(), peer: l.key.peer.clone(), stands, failure }
        });
        stats.collect()
    }
}
