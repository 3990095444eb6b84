//! Which real address a pod gets. Pure: what is taken comes from the pods' records.

use std::{collections::BTreeSet, net::Ipv4Addr};

use cidr::Ipv4Cidr;

/// The site's network: its first address is the bridge, the rest are pods'.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PodNetwork {
    cidr: Ipv4Cidr,
    gateway: Ipv4Addr,
}

impl PodNetwork {
    /// `None` when there is no room for a few pods (longer than /29).
    #[must_use]
    pub(crate) fn new(cidr: Ipv4Cidr) -> Option<Self> {
        if cidr.network_length() > 29 {
            return None;
        }
        let gateway = Ipv4Addr::from_bits(cidr.first_address().to_bits().checked_add(1)?);
        Some(Self { cidr, gateway })
    }

    #[must_use]
    pub(crate) fn cidr(&self) -> Ipv4Cidr {
        self.cidr
    }

    #[must_use]
    pub(crate) fn prefix(&self) -> u8 {
        self.cidr.network_length()
    }

    #[must_use]
    pub(crate) fn gateway(&self) -> Ipv4Addr {
        self.gateway
    }

    /// A free address. The one after the highest taken is preferred, so that an address that was
    /// just given back rests as long as possible.
    #[must_use]
    pub(crate) fn allocate(&self, taken: &BTreeSet<Ipv4Addr>) -> Option<Ipv4Addr> {
        let first = self.gateway.to_bits().saturating_add(1);
        let last = self.cidr.last_address().to_bits().saturating_sub(1);
        let highest = taken.range(..=Ipv4Addr::from_bits(last)).next_back();
        let after = highest.map_or(first, |a| a.to_bits().saturating_add(1)).max(first);
        (after..=last)
            .chain(first..after)
            .map(Ipv4Addr::from_bits)
            .find(|address| !taken.contains(address))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_run_out_and_come_back() {
        let net = PodNetwork::new("10.1.0.0/29".parse().unwrap()).unwrap();
        let mut taken = BTreeSet::new();
        while let Some(a) = net.allocate(&taken) {
            assert!(taken.insert(a));
        }
        let all: Vec<_> = taken.iter().map(Ipv4Addr::to_string).collect();
        assert_eq!(all, ["10.1.0.2", "10.1.0.3", "10.1.0.4", "10.1.0.5", "10.1.0.6"]);
        let freed: Ipv4Addr = "10.1.0.4".parse().unwrap();
        taken.remove(&freed);
        assert_eq!(net.allocate(&taken), Some(freed));
    }

    #[test]
    fn a_network_without_room_is_refused() {
        assert!(PodNetwork::new("10.1.0.0/30".parse().unwrap()).is_none());
    }
}
