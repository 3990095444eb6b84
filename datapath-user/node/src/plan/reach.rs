//! Which real addresses of other machines of the site this machine can reach by itself, from its
//! routes. Pure but for [`Reach::of_this_machine`].
//!
//! Pod ranges need not be unique or routed within a site: two machines may both have 10.244.0.0/24
//! (an address there is a *local* pod), or there may be no route but the default one (it leads to
//! the world, not to a neighbour's pod). Such peers are relayed.

use std::{
    collections::BTreeSet,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use cidr::IpCidr;
use datapath_net::netlink::{Netlink, NetlinkError};

const ROUTES: &str = "/proc/thread-self/net/route";
const ROUTES6: &str = "/proc/thread-self/net/ipv6_route";
/// `RTF_REJECT`: it says that there is no way.
const REJECT: u32 = 0x0200;

/// Routes other than default ones, by the interface's name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    routes: Vec<(IpCidr, String)>,
    /// Interfaces with a router behind them.
    uplinks: BTreeSet<String>,
    /// The machine's own addresses.
    own: BTreeSet<IpAddr>,
    bridges: BTreeSet<String>,
    /// No hooks lead a connection to another address than it asked for.
    unsteered: bool,
}

impl Reach {
    /// The routes of now. Without them (no procfs) nothing is known to be reachable.
    #[must_use]
    pub fn of_this_machine() -> Self {
        let read = |path: &str| match std::fs::read_to_string(path) {
            Ok(text) => text,
            // A machine may be without IPv6.
            Err(e) if e.kind() == io::ErrorKind::NotFound && path == ROUTES6 => String::new(),
            Err(error) => {
                tracing::warn!(%error, "{path} cannot be read; peers on other machines are relayed");
                String::new()
            }
        };
        let mut reach = Self::parse(&read(ROUTES), &read(ROUTES6));
        let links = || -> Result<_, NetlinkError> {
            let mut netlink = Netlink::current()?;
            Ok((netlink.addresses()?, netlink.bridges()?))
        };
        match links() {
            Ok((addresses, bridges)) => {
                reach.own = addresses.into_iter().map(|a| a.address).collect();
                reach.bridges = bridges.into_iter().collect();
            }
            Err(error) => tracing::warn!(%error, "the machine's addresses cannot be read"),
        }
        reach
    }

    /// The text of `/proc/net/route`: interface, destination, gateway, …, mask in column 7; numbers
    /// in hexadecimal and network byte order as this machine reads it. And of `/proc/net/ipv6_route`: destination, its prefix
    /// length, …, flags in column 8, interface; all hexadecimal, addresses as they are written.
    #[must_use]
    pub fn parse(v4: &str, v6: &str) -> Self {
        let number = |word: &str| {
            u32::from_str_radix(word, 16).ok().map(|n| Ipv4Addr::from(n.to_ne_bytes()))
        };
        let route = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let (to, via, mask) =
                (number(words.get(1)?)?, number(words.get(2)?)?, number(words.get(7)?)?);
            let length = u8::try_from(mask.to_bits().leading_ones()).ok()?;
            let to = IpCidr::new(to.into(), length).ok()?;
            Some((to, !via.is_unspecified(), (*words.first()?).to_owned()))
        };
        let route6 = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let address = |word| u128::from_str_radix(word, 16).ok().map(Ipv6Addr::from_bits);
            let (to, via) = (address(words.first()?)?, address(words.get(4)?)?);
            let length = u8::from_str_radix(words.get(1)?, 16).ok()?;
            let flags = u32::from_str_radix(words.get(8)?, 16).ok()?;
            let to = IpCidr::new(to.into(), length).ok()?;
            (flags & REJECT == 0)
                .then(|| Some((to, !via.is_unspecified(), (*words.get(9)?).to_owned())))?
        };
        let mut reach = Self::default();
        let v4 = v4.lines().skip(1).filter_map(route);
        for (to, has_router, name) in v4.chain(v6.lines().filter_map(route6)) {
            if has_router {
                reach.uplinks.insert(name.clone());
            }
            if to.network_length() > 0 {
                reach.routes.push((to, name));
            }
        }
        reach
    }

    /// The same on a machine with hooks or without.
    #[must_use]
    pub fn steered(self, steered: bool) -> Self {
        Self { unsteered: !steered, ..self }
    }

    pub(super) const fn is_steered(&self) -> bool {
        !self.unsteered
    }

    fn interface(&self, to: IpAddr) -> Option<&str> {
        let matching = self.routes.iter().filter(|(cidr, _)| cidr.contains(&to));
        matching.max_by_key(|(cidr, _)| cidr.network_length()).map(|(_, name)| name.as_str())
    }

    /// Whether a route other than a default one leads to this address.
    #[must_use]
    pub fn has_route(&self, to: IpAddr) -> bool {
        self.interface(to).is_some()
    }

    /// The interfaces behind which this machine's own pods are: where these are, or, without any that is not at the machine's own
    /// address, every bridge that leads nowhere else.
    #[must_use]
    pub fn of_pods(&self, pods: impl IntoIterator<Item = IpAddr>) -> BTreeSet<&str> {
        let apart = pods.into_iter().filter(|ip| !self.own.contains(ip));
        let found: BTreeSet<&str> = apart.filter_map(|ip| self.interface(ip)).collect();
        if !found.is_empty() {
            return found;
        }
        self.bridges.difference(&self.uplinks).map(String::as_str).collect()
    }

    /// Whether `to`, a pod of another machine, is behind a route that is not this machine's pods'.
    #[must_use]
    pub fn leads_to(&self, to: IpAddr, own: &BTreeSet<&str>) -> bool {
        self.interface(to).is_some_and(|name| !own.contains(name))
    }
}

#[cfg(test)]
impl Reach {
    /// On a machine with these addresses and bridges.
    pub(crate) fn on(self, own: &[IpAddr], bridges: &[&str]) -> Self {
        let bridges = bridges.iter().map(|name| (*name).to_owned()).collect();
        Self { own: own.iter().copied().collect(), bridges, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a machine with 10.244.0.0/24 on a bridge and a neighbour's 10.244.1.0/24.
    pub(crate) const TEXT: &str = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n\
        eth0\t00000000\t0101A8C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n\
        rlark0\t0000F40A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n\
        eth0\t0001F40A\t0B01A8C0\t0003\t0\t0\t0\t00FFFFFF\t0\t0\t0\n\
        eth0\t0001A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n";

    /// The same machine's ranges of IPv6, a default route, and one that refuses.
    const TEXT6: &str = "fd72000000000000000000000af40000 78 00000000000000000000000000000000 00 00000000000000000000000000000000 00000100 00000001 00000000 00000001   rlark0\n\
        fd72000000000000000000000af40100 78 00000000000000000000000000000000 00 fe8000000000000000000000000000b0 00000400 00000001 00000000 00000003     eth0\n\
        fd72000000000000000000000af40300 78 00000000000000000000000000000000 00 00000000000000000000000000000000 00000400 00000001 00000000 00000201       lo\n\
        00000000000000000000000000000000 00 00000000000000000000000000000000 00 fe800000000000000000000000000001 00000400 00000001 00000000 00000003     eth0\n";

    #[test]
    #[cfg(target_endian = "little")]
    fn only_a_route_that_leads_off_this_machine_counts() {
        let reach = Reach::parse(TEXT, TEXT6);
        let ip = |s: &str| s.parse::<IpAddr>().unwrap();
        let own = reach.of_pods([ip("10.244.0.2")]);
        assert_eq!(own, BTreeSet::from(["rlark0"]));
        assert!(reach.leads_to(ip("10.244.1.7"), &own));
        assert!(!reach.leads_to(ip("10.244.0.7"), &own), "the same range on both machines");
        assert!(!reach.leads_to(ip("10.244.2.7"), &own), "only the default route");
        assert!(!reach.leads_to(ip("fd00::1"), &own));
        let own = reach.of_pods([ip("fd72::10.244.0.2")]);
        assert_eq!(own, BTreeSet::from(["rlark0"]));
        assert!(reach.leads_to(ip("fd72::10.244.1.7"), &own));
        assert!(!reach.leads_to(ip("fd72::10.244.0.7"), &own), "the same range on both machines");
        assert!(!reach.leads_to(ip("fd72::10.244.2.7"), &own), "only the default route");
        assert!(!reach.leads_to(ip("fd72::10.244.3.7"), &own), "refused");
        assert!(Reach::parse("", "").of_pods([ip("10.244.0.2")]).is_empty());
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn without_pods_of_its_own_a_machine_still_has_a_bridge_for_them() {
        let ip = |s: &str| s.parse::<IpAddr>().unwrap();
        let own = ip("192.168.1.10");
        // A LAN may be on a bridge as well.
        let reach = Reach::parse(TEXT, "").on(&[own], &["rlark0", "eth0"]);
        for pods in [vec![], vec![own]] {
            let behind = reach.of_pods(pods);
            assert_eq!(behind, BTreeSet::from(["rlark0"]));
            assert!(!reach.leads_to(ip("10.244.0.7"), &behind));
            assert!(reach.leads_to(ip("192.168.1.11"), &behind));
        }
    }
}
