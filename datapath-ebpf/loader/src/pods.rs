//! The pods of this machine: who a network namespace is.

use std::net::IpAddr;

use datapath_abi as abi;

use crate::{
    address::{address, mask, words},
    datapath::Datapath,
    error::{AddressError, MapError},
};

/// A network namespace's cookie (`SO_NETNS_COOKIE`): the identity the hooks go by. Unique until reboot, and nothing inside a pod can
/// change it. For pods on the host network, see [`crate::CgroupId::key`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NetnsCookie(pub u64);

/// The caller's number of a Domain on this machine. Two Domains never see each other's addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DomainId(pub u32);

/// A pod's place in one address family of its Domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Face {
    /// Its virtual address.
    pub vip: IpAddr,
    /// Its address on the site's network, if direct connections shall be possible.
    pub real: Option<IpAddr>,
    /// Any address of the Domain's network.
    pub network: IpAddr,
    pub prefix_length: u8,
}

impl Face {
    fn to_abi(self) -> Result<abi::Face, AddressError> {
        let Self { vip, real, network, prefix_length: length } = self;
        for other in real.iter().chain([&network]) {
            if other.is_ipv4() != vip.is_ipv4() {
                return Err(AddressError::Family { vip, other: *other });
            }
        }
        if length > if vip.is_ipv4() { 32 } else { 128 } {
            return Err(AddressError::Prefix { address: network, length });
        }
        let mask = mask(network, length);
        let masked = |ip: abi::Ip| {
            let [a, b, c, d] = ip;
            let [w, x, y, z] = mask;
            [a & w, b & x, c & y, d & z]
        };
        let net = masked(words(network));
        if masked(words(vip)) != net {
            return Err(AddressError::Outside { vip, network: address(&net), length });
        }
        Ok(abi::Face { vip: words(vip), real: real.map_or([0; 4], words), net, mask })
    }
}

/// What the programs know of a pod; made by [`PodEntry::new`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodEntry {
    pub(crate) domain: DomainId,
    pub(crate) restricted: bool,
    pub(crate) device: u32,
    pub(crate) v4: abi::Face,
    pub(crate) v6: abi::Face,
}

impl PodEntry {
    /// A pod of `domain` with one face per address family.
    ///
    /// # Errors
    /// Families are mixed within a face, the VIP is outside the network, or a family is given twice.
    pub fn new(
        domain: DomainId,
        faces: impl IntoIterator<Item = Face>,
    ) -> Result<Self, AddressError> {
        let mut entry = Self {
            domain,
            restricted: false,
            device: 0,
            v4: abi::Face::ABSENT,
            v6: abi::Face::ABSENT,
        };
        for face in faces {
            let slot = if face.vip.is_ipv4() { &mut entry.v4 } else { &mut entry.v6 };
            if *slot != abi::Face::ABSENT {
                return Err(AddressError::Twice(face.vip));
            }
            *slot = face.to_abi()?;
        }
        Ok(entry)
    }

    /// The same, but reaching only the ports that [`Datapath::set_ports`] allows in its Domain.
    #[must_use]
    pub const fn restricted(self) -> Self {
        Self { restricted: true, ..self }
    }

    /// The same, with the index of the interface that has the VIPs: a socket that is bound to it (`SO_BINDTODEVICE`) is let
    /// loose when it binds, listens, connects or sends in the Domain, since no connection passes that interface.
    #[must_use]
    pub const fn on_device(self, index: u32) -> Self {
        Self { device: index, ..self }
    }

    pub(crate) const fn to_abi(self) -> abi::Pod {
        let flags = if self.restricted { abi::POD_PORTS } else { 0 };
        let Self { domain, device, v4, v6, .. } = self;
        abi::Pod { domain: domain.0, flags, device, landing: 0, cgroup: 0, v4, v6 }
    }

    pub(crate) const fn from_abi(pod: &abi::Pod) -> Self {
        let restricted = pod.flags & abi::POD_PORTS != 0;
        Self {
            domain: DomainId(pod.domain),
            restricted,
            device: pod.device,
            v4: pod.v4,
            v6: pod.v6,
        }
    }

    /// The Domain it was made for.
    pub const fn domain(&self) -> DomainId {
        self.domain
    }
}

impl Datapath {
    /// Makes a namespace a pod, or changes what it is. From here on its connects to the Domain's network are
    /// judged, and all unknown addresses in it refused: set the routes first.
    ///
    /// # Errors
    /// The map is full (4096 pods) or the kernel refuses.
    pub fn set_pod(&self, netns: NetnsCookie, pod: &PodEntry) -> Result<(), MapError> {
        self.tables().pods.set(netns.0, pod.to_abi())
    }

    /// Forgets a namespace with all that was known of its listeners and flows. Unknown ones are no error.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn remove_pod(&self, netns: NetnsCookie) -> Result<(), MapError> {
        self.tables().pods.delete(&netns.0)?;
        self.forget_sockets(netns)
    }

    pub(crate) fn forget_sockets(&self, netns: NetnsCookie) -> Result<(), MapError> {
        let tables = self.tables();
        for table in [&tables.listen, &tables.udp_vip] {
            for (key, _) in table.entries()? {
                if key.netns == netns.0 {
                    table.delete(&key)?;
                }
            }
        }
        for (key, flow) in tables.flows.entries()? {
            if flow.netns == netns.0 {
                tables.flows.delete(&key)?;
            }
        }
        Ok(())
    }

    /// The namespaces that are pods, for a caller that adopts pinned maps.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn pods(&self) -> Result<Vec<(NetnsCookie, PodEntry)>, MapError> {
        let pods = self.tables().pods.entries()?.into_iter();
        let pods = pods.filter(|(_, pod)| pod.flags & abi::POD_MACHINE == 0);
        Ok(pods.map(|(netns, pod)| (NetnsCookie(netns), PodEntry::from_abi(&pod))).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn face(vip: [u8; 4], network: [u8; 4], prefix_length: u8) -> Face {
        Face { vip: vip.into(), real: None, network: network.into(), prefix_length }
    }

    #[test]
    fn a_vip_outside_its_network_is_refused() {
        let pod = PodEntry::new(DomainId(1), [face([10, 3, 0, 4], [10, 2, 0, 9], 24)]);
        let outside = AddressError::Outside {
            vip: [10, 3, 0, 4].into(),
            network: [10, 2, 0, 0].into(),
            length: 24,
        };
        assert_eq!(pod, Err(outside));
    }

    #[test]
    fn a_prefix_longer_than_the_family_is_refused() {
        let pod = PodEntry::new(DomainId(1), [face([10, 2, 0, 4], [10, 2, 0, 0], 33)]);
        assert!(matches!(pod, Err(AddressError::Prefix { length: 33, .. })));
    }

    #[test]
    fn a_family_given_twice_is_refused() {
        let one = face([10, 2, 0, 4], [10, 2, 0, 0], 24);
        assert!(matches!(PodEntry::new(DomainId(1), [one, one]), Err(AddressError::Twice(_))));
    }
}
