//! The addresses of a namespace.

use std::net::IpAddr;

use rtnetlink::packet_route::{
    RouteNetlinkMessage,
    address::{AddressAttribute, AddressMessage, AddressScope},
    link::{InfoKind, LinkAttribute, LinkInfo, LinkMessage},
};

use super::{Netlink, NetlinkError};

/// An address of the calling thread's namespace and the interface that has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceAddress {
    pub interface: String,
    pub address: IpAddr,
}

fn address_of(message: &AddressMessage) -> Option<IpAddr> {
    // On a link with two ends IFA_ADDRESS is the other one's.
    let find = |local: bool| {
        message.attributes.iter().find_map(|a| match a {
            AddressAttribute::Local(ip) if local => Some(*ip),
            AddressAttribute::Address(ip) if !local => Some(*ip),
            _ => None,
        })
    };
    find(true).or_else(|| find(false))
}

fn name(link: &LinkMessage) -> Option<String> {
    link.attributes.iter().find_map(|a| match a {
        LinkAttribute::IfName(name) => Some(name.clone()),
        _ => None,
    })
}

fn is_bridge(link: &LinkMessage) -> bool {
    let is = |i: &LinkInfo| matches!(i, LinkInfo::Kind(InfoKind::Bridge));
    link.attributes.iter().any(|a| matches!(a, LinkAttribute::LinkInfo(all) if all.iter().any(is)))
}

impl Netlink {
    fn links(&mut self) -> Result<Vec<LinkMessage>, NetlinkError> {
        let all = self.dump("links", RouteNetlinkMessage::GetLink(Default::default()))?;
        let links = all.into_iter().filter_map(|message| match message {
            RouteNetlinkMessage::NewLink(link) => Some(link),
            _ => None,
        });
        Ok(links.collect())
    }

    /// The names of the bridges.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn bridges(&mut self) -> Result<Vec<String>, NetlinkError> {
        Ok(self.links()?.iter().filter(|link| is_bridge(link)).filter_map(name).collect())
    }

    /// The addresses of more than link scope.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn addresses(&mut self) -> Result<Vec<InterfaceAddress>, NetlinkError> {
        let links = self.links()?;
        let name_of = |index: u32| links.iter().find(|l| l.header.index == index).and_then(name);
        let all = self.dump("addresses", RouteNetlinkMessage::GetAddress(Default::default()))?;
        let found = all.iter().filter_map(|message| match message {
            RouteNetlinkMessage::NewAddress(a) if a.header.scope == AddressScope::Universe => {
                let interface = name_of(a.header.index).unwrap_or_default();
                Some(InterfaceAddress { interface, address: address_of(a)? })
            }
            _ => None,
        });
        Ok(found.collect())
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use super::*;
    use crate::{netlink::LinkKind, netns::Netns};

    /// Needs root.
    #[test]
    fn addresses_are_listed_with_their_interfaces_but_not_those_of_a_link() {
        let netns = Netns::anonymous().unwrap();
        let mut netlink = Netlink::in_netns(netns.as_fd()).unwrap();
        netlink.add_link("b0", LinkKind::Bridge).unwrap();
        netlink.set_up("b0").unwrap();
        assert_eq!(netlink.bridges().unwrap(), ["b0"]);
        let on = |address: &str| InterfaceAddress {
            interface: "b0".to_owned(),
            address: address.parse().unwrap(),
        };
        let (v4, v6) = (on("192.0.2.7"), on("2001:db8::7"));
        netlink.add_address("b0", v4.address, 24).unwrap();
        netlink.add_address("b0", v6.address, 64).unwrap();
        netlink.add_address("b0", "fe80::7".parse().unwrap(), 64).unwrap();
        assert_eq!(netlink.addresses().unwrap(), [v4.clone(), v6]);
        assert!(netlink.delete_address("b0", v4.address, 24).unwrap());
        assert!(!netlink.addresses().unwrap().contains(&v4));
    }
}
