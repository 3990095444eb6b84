//! Which real addresses of other machines of the site this machine can reach by itself, from its
//! IPv4 routes. Pure but for [`Reach::of_this_machine`].
//!
//! Pod ranges need not be unique or routed within a site: two machines may both have 10.244.0.0/24
//! (an address there is a *local* pod), or there may be no route but the default one (it leads to
//! the world, not to a neighbour's pod). Such peers are relayed.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr},
};

use cidr::Ipv4Cidr;

const ROUTES: &str = "/proc/thread-self/net/route";

/// Routes other than default ones, by the interface's name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    routes: Vec<(Ipv4Cidr, String)>,
}

impl Reach {
    /// The routes of now. Without them (no procfs) nothing is known to be reachable.
    #[must_use]
    pub fn of_this_machine() -> Self {
        match std::fs::read_to_string(ROUTES) {
            Ok(text) => Self::parse(&text),
            Err(error) => {
                tracing::warn!(%error, "{ROUTES} cannot be read; peers on other machines are relayed");
                Self::default()
            }
        }
    }

    /// The text of `/proc/net/route`: interface, destination, gateway, …, mask in column 7; numbers
    /// in hexadecimal and network byte order as this machine reads it.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let number = |word: &str| {
            u32::from_str_radix(word, 16).ok().map(|n| Ipv4Addr::from(n.to_ne_bytes()))
        };
        let route = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let (to, mask) = (number(words.get(1)?)?, number(words.get(7)?)?);
            let length = u8::try_from(mask.to_bits().leading_ones()).ok()?;
            let to = Ipv4Cidr::new(to, length).ok()?;
            (length > 0).then(|| ((*words.first().unwrap_or(&"")).to_owned(), to))
        };
        let routes = text.lines().skip(1).filter_map(route).map(|(name, to)| (to, name));
        Self { routes: routes.collect() }
    }

    fn interface(&self, to: IpAddr) -> Option<&str> {
        let IpAddr::V4(to) = to else { return None };
        let matching = self.routes.iter().filter(|(cidr, _)| cidr.contains(&to));
        matching.max_by_key(|(cidr, _)| cidr.network_length()).map(|(_, name)| name.as_str())
    }

    /// The interfaces behind which this machine's own pods are.
    #[must_use]
    pub fn of_pods(&self, pods: impl IntoIterator<Item = IpAddr>) -> BTreeSet<&str> {
        pods.into_iter().filter_map(|ip| self.interface(ip)).collect()
    }

    /// Whether `to`, a pod of another machine, is behind a route that is not this machine's pods'.
    #[must_use]
    pub fn leads_to(&self, to: IpAddr, own: &BTreeSet<&str>) -> bool {
        self.interface(to).is_some_and(|name| !own.contains(name))
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

    #[test]
    #[cfg(target_endian = "little")]
    fn only_a_route_that_leads_off_this_machine_counts() {
        let reach = Reach::parse(TEXT);
        let ip = |s: &str| s.parse::<IpAddr>().unwrap();
        let own = reach.of_pods([ip("10.244.0.2")]);
        assert_eq!(own, BTreeSet::from(["rlark0"]));
        assert!(reach.leads_to(ip("10.244.1.7"), &own));
        assert!(!reach.leads_to(ip("10.244.0.7"), &own), "the same range on both machines");
        assert!(!reach.leads_to(ip("10.244.2.7"), &own), "only the default route");
        assert!(!reach.leads_to(ip("fd00::1"), &own));
        assert!(Reach::parse("").of_pods([ip("10.244.0.2")]).is_empty());
    }
}
