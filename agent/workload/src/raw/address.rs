//! Which real address a pod gets. Pure: what is taken comes from the pods' records.

use std::{
    collections::BTreeSet,
    net::{Ipv4Addr, Ipv6Addr},
};

use cidr::{Ipv4Cidr, Ipv6Cidr};

/// Unique local addresses (RFC 4193) for pods, made of their IPv4 ones in the last four bytes: so they are unique wherever those
/// are, and no second list of what is taken is needed. The 40 bits are not random: sites need not differ.
const OWN: Ipv6Addr = Ipv6Addr::new(0xfd72, 0x6c61, 0x726b, 0, 0, 0, 0, 0);

/// The range of IPv6 addresses of a machine that was given one of IPv4 only.
#[must_use]
pub fn derived(cidr: Ipv4Cidr) -> Option<Ipv6Cidr> {
    let first = OWN.to_bits() | u128::from(cidr.first_address().to_bits());
    Ipv6Cidr::new(Ipv6Addr::from_bits(first), cidr.network_length().checked_add(96)?).ok()
}

/// The site's network: its first address is the bridge, the rest are pods'.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PodNetwork {
    cidr: Ipv4Cidr,
    gateway: Ipv4Addr,
    v6: Option<Ipv6Cidr>,
}

impl PodNetwork {
    /// `None` when there is no room for a few pods (longer than /29), or less in `v6` than in `cidr`.
    #[must_use]
    pub(crate) fn new(cidr: Ipv4Cidr, v6: Option<Ipv6Cidr>) -> Option<Self> {
        let longest = cidr.network_length().checked_add(96)?;
        if cidr.network_length() > 29 || v6.is_some_and(|v6| v6.network_length() > longest) {
            return None;
        }
        let gateway = Ipv4Addr::from_bits(cidr.first_address().to_bits().checked_add(1)?);
        Some(Self { cidr, gateway, v6 })
    }

    /// The IPv6 address and its prefix length of the pod with this IPv4 address: the same place in the other range.
    #[must_use]
    pub(crate) fn v6(&self, address: Ipv4Addr) -> Option<(Ipv6Addr, u8)> {
        let v6 = self.v6?;
        let place = address.to_bits().wrapping_sub(self.cidr.first_address().to_bits());
        let bits = v6.first_address().to_bits() | u128::from(place);
        Some((Ipv6Addr::from_bits(bits), v6.network_length()))
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
        let net = PodNetwork::new("10.1.0.0/29".parse().unwrap(), None).unwrap();
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
    fn an_ipv6_address_is_the_ipv4_one_in_another_range() {
        let cidr: Ipv4Cidr = "10.244.1.0/24".parse().unwrap();
        let of = |v6: &str| {
            let net = PodNetwork::new(cidr, Some(v6.parse().unwrap()))?;
            net.v6(Ipv4Addr::new(10, 244, 1, 7)).map(|(ip, length)| format!("{ip}/{length}"))
        };
        assert_eq!(derived(cidr).unwrap().to_string(), "fd72:6c61:726b::af4:100/120");
        assert_eq!(of("fd72:6c61:726b::af4:100/120").unwrap(), "fd72:6c61:726b::af4:107/120");
        assert_eq!(of("fd00:1::/64").unwrap(), "fd00:1::7/64");
        assert_eq!(of("fd00:1::/121"), None, "no room for all");
        assert_eq!(PodNetwork::new(cidr, None).unwrap().v6(cidr.first_address()), None);
    }

    #[test]
    fn a_network_without_room_is_refused() {
        assert!(PodNetwork::new("10.1.0.0/30".parse().unwrap(), None).is_none());
    }
}
