//! The interface that owns a pod's virtual address, and the routes that keep its Domain's network inside the pod.
//!
//! | to | protocol | goes |
//! |---|---|---|
//! | the own VIP | any | to the pod itself, over `lo` |
//! | other addresses of the network | UDP, ICMP | out of the interface, which leads nowhere: [`crate::packet::Tap`] reads them |
//! | other addresses of the network | TCP and the rest | to `lo`, where the guard lands or drops them |

use std::{fs, io, net::IpAddr, os::fd::BorrowedFd};

use rtnetlink::packet_route::IpProtocol;

use crate::{
    netlink::{LinkKind, Netlink, NetlinkError, Rule},
    netns::visit_netns,
    packet::MTU,
};

/// The kernel's own table of local addresses.
const LOCAL: u32 = 255;
/// What leaves by the interface.
const OUT: u32 = 7400;
/// The routes to the own VIP and, before those of the machine's own making, to the rest of the network: where that overlaps the
/// site's, the pod's real address is some other pod's VIP.
const SELF: u32 = 7401;
/// Before anything else: the kernel asks `LOCAL` first by a rule of priority 0, which has to come after ours.
const OWN: u32 = 1;
const CAUGHT: u32 = 2;
const NETWORK: u32 = 3;
const REST: u32 = 4;
/// RFC 4443.
const ICMPV6: i32 = 58;

/// What a pod's namespace gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VipInterface {
    /// `rl0`: frameworks choose it by name.
    pub name: String,
    pub vip: IpAddr,
    /// The first address of the Domain's network.
    pub network: IpAddr,
    pub prefix_length: u8,
}

impl VipInterface {
    /// Makes it so: interface up with the address, `lo` up, the Domain's network local. May be called again. Attach the guard
    /// *before*: with the route and without a guard, connections to peers reach the pod's own listeners.
    ///
    /// # Errors
    /// The kernel has neither dummy, bridge nor ifb links, or refuses. Without rules by protocol (Linux 4.17) only datagrams are
    /// missing, which is logged.
    pub fn ensure(&self, netns: BorrowedFd<'_>) -> Result<(), NetlinkError> {
        let host = self.host();
        let mut netlink = Netlink::in_netns(netns)?;
        if netlink.index(&self.name)?.is_none() {
            self.add_link(&mut netlink)?;
        }
        if self.vip.is_ipv6() {
            enable_ipv6(netns, "lo")?;
            enable_ipv6(netns, &self.name)?;
        }
        netlink.set_up("lo")?;
        netlink.set_up(&self.name)?;
        netlink.add_address(&self.name, self.vip, host)?;
        // The kernel's own route to the address names this interface, and packets that the pod sends to itself then seem to
        // have come in by it. With `lo` in its place the guard can tell them from a neighbour's by one number. The one of IPv6
        // comes back, made by a thread of the kernel's when it has done with the address: so ours stands where it is asked first.
        netlink.set_local_route(self.vip, host, self.vip, LOCAL)?;
        netlink.set_local_route(self.vip, host, self.vip, SELF)?;
        netlink.delete_local_route(&self.name, self.vip, host, LOCAL)?;
        for table in [LOCAL, SELF] {
            netlink.set_local_route(self.network, self.prefix_length, self.vip, table)?;
        }
        netlink.set_lonely(&self.name, MTU)?;
        netlink.set_link_route(&self.name, (self.network, self.prefix_length), self.vip, OUT)?;
        for rule in self.rules() {
            match netlink.add_rule(&rule) {
                // Older than Linux 4.17, or without policy routing: connections work, datagrams end at the guard.
                Err(e) if e.is_unsupported() => {
                    tracing::warn!(error = %e, "no datagrams between sites on this kernel");
                    return Ok(());
                }
                done => done?,
            }
        }
        netlink.delete_rule(&self.local_first()).map(drop)
    }

    fn rules(&self) -> [Rule; 5] {
        let rule = |priority, to, protocol, table| Rule {
            priority,
            is_v4: self.vip.is_ipv4(),
            to,
            protocol,
            table,
        };
        let network = Some((self.network, self.prefix_length));
        let icmp = if self.vip.is_ipv4() { IpProtocol::Icmp } else { IpProtocol::Other(ICMPV6) };
        [
            rule(REST, None, None, LOCAL),
            rule(OWN, Some((self.vip, self.host())), None, SELF),
            rule(CAUGHT, network, Some(IpProtocol::Udp), OUT),
            rule(CAUGHT, network, Some(icmp), OUT),
            rule(NETWORK, network, None, SELF),
        ]
    }

    /// The kernel's own first rule.
    fn local_first(&self) -> Rule {
        let is_v4 = self.vip.is_ipv4();
        Rule { priority: 0, is_v4, to: None, protocol: None, table: LOCAL }
    }

    const fn host(&self) -> u8 {
        if self.vip.is_ipv4() { 32 } else { 128 }
    }

    fn add_link(&self, netlink: &mut Netlink) -> Result<(), NetlinkError> {
        // All three are up with a carrier and no peer; not every kernel has each.
        match netlink.add_link(&self.name, LinkKind::Dummy) {
            Err(e) if e.is_unsupported() => {}
            done => return done,
        }
        match netlink.add_link(&self.name, LinkKind::Bridge) {
            Err(e) if e.is_unsupported() => netlink.add_link(&self.name, LinkKind::Ifb),
            done => done,
        }
    }

    /// Takes route and interface away, the route first: what is sent to a peer then leaves the namespace unrouted and never
    /// reaches a listener of the pod. Missing parts are no error.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn remove(&self, netns: BorrowedFd<'_>) -> Result<(), NetlinkError> {
        let mut netlink = Netlink::in_netns(netns)?;
        let ruled = self.remove_rules(&mut netlink);
        for table in [LOCAL, SELF] {
            netlink.delete_local_route("lo", self.network, self.prefix_length, table)?;
            netlink.delete_local_route("lo", self.vip, self.host(), table)?;
        }
        netlink.delete_link(&self.name)?;
        ruled
    }

    fn remove_rules(&self, netlink: &mut Netlink) -> Result<(), NetlinkError> {
        match netlink.add_rule(&self.local_first()) {
            Err(e) if e.is_unsupported() => return Ok(()),
            done => done?,
        }
        for rule in self.rules() {
            netlink.delete_rule(&rule)?;
        }
        Ok(())
    }
}

/// Lets an interface have IPv6 addresses: where the machine's default is off (`disable_ipv6`), a namespace begins with that.
///
/// # Errors
/// The machine has no IPv6 at all ([`NetlinkError::NoIpv6`]), or the switch cannot be written.
pub fn enable_ipv6(netns: BorrowedFd<'_>, interface: &str) -> Result<(), NetlinkError> {
    let switch = format!("/proc/sys/net/ipv6/conf/{interface}/disable_ipv6");
    let failed = |source| NetlinkError::Ipv6 { interface: interface.to_owned(), source };
    let enable = || match fs::read_to_string(&switch) {
        Ok(off) if off.trim() == "0" => Ok(()),
        Ok(_) => fs::write(&switch, "0").map_err(failed),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Err(NetlinkError::NoIpv6),
        Err(e) => Err(failed(e)),
    };
    visit_netns(netns, enable).map_err(failed)?
}

#[cfg(test)]
mod tests {
    use std::{net::TcpListener, os::fd::AsFd as _};

    use super::*;
    use crate::netns::Netns;

    #[test]
    fn any_address_of_the_network_can_be_bound_until_it_is_removed()
    -> Result<(), Box<dyn std::error::Error>> {
        let netns = Netns::anonymous()?;
        let rl0 =
            |vip: &str, network: &str, prefix_length| -> Result<_, std::net::AddrParseError> {
                Ok(VipInterface {
                    name: "rl0".to_owned(),
                    vip: vip.parse()?,
                    network: network.parse()?,
                    prefix_length,
                })
            };
        let v4 = rl0("10.2.0.4", "10.2.0.0", 24)?;
        let v6 = rl0("fd00:2::4", "fd00:2::", 64)?;
        for _twice in 0..2 {
            v4.ensure(netns.as_fd())?;
            v6.ensure(netns.as_fd())?;
        }
        for address in ["10.2.0.4:0", "10.2.0.77:0", "[fd00:2::4]:0"] {
            netns.run(|| TcpListener::bind(address))?.map_err(|e| format!("{address}: {e}"))?;
        }
        assert!(netns.run(|| TcpListener::bind("10.3.0.1:0"))?.is_err());
        v6.remove(netns.as_fd())?;
        v4.remove(netns.as_fd())?;
        v4.remove(netns.as_fd())?;
        assert!(netns.run(|| TcpListener::bind("10.2.0.77:0"))?.is_err());
        assert!(netns.run(|| TcpListener::bind("10.2.0.4:0"))?.is_err());
        Ok(())
    }

    #[test]
    fn a_machine_that_has_ipv6_off_by_default_gives_addresses_all_the_same()
    -> Result<(), Box<dyn std::error::Error>> {
        let netns = Netns::anonymous()?;
        let off = || {
            ["all", "default"].into_iter().try_for_each(|name| {
                fs::write(format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6"), "1")
            })
        };
        netns.run(off)??;
        let rl0 = VipInterface {
            name: "rl0".to_owned(),
            vip: "fd00:2::4".parse()?,
            network: "fd00:2::".parse()?,
            prefix_length: 64,
        };
        rl0.ensure(netns.as_fd())?;
        netns.run(|| TcpListener::bind("[fd00:2::4]:0"))??;
        netns.run(|| TcpListener::bind("[::1]:0"))??;
        let none = enable_ipv6(netns.as_fd(), "nowhere");
        assert!(matches!(none, Err(NetlinkError::NoIpv6)), "{none:?}");
        Ok(())
    }

    #[test]
    fn a_pod_reaches_itself_over_lo() -> Result<(), Box<dyn std::error::Error>> {
        for (vip, network, prefix_length) in
            [("10.2.0.4", "10.2.0.0", 24), ("fd00:2::4", "fd00:2::", 64)]
        {
            let netns = Netns::anonymous()?;
            let rl0 = VipInterface {
                name: "rl0".to_owned(),
                vip: vip.parse()?,
                network: network.parse()?,
                prefix_length,
            };
            let way = || {
                let out = netns.run(|| {
                    let words = ["route", "get", vip];
                    std::process::Command::new("ip").args(words).output()
                })??;
                Ok::<_, Box<dyn std::error::Error>>(String::from_utf8(out.stdout)?)
            };
            for _again in 0..2 {
                rl0.ensure(netns.as_fd())?;
                #[expect(
                    clippy::disallowed_methods,
                    reason = "the kernel is late with its own route and says nothing"
                )]
                std::thread::sleep(std::time::Duration::from_millis(100));
                assert!(way()?.contains("dev lo table 7401"), "{}", way()?);
            }
            rl0.remove(netns.as_fd())?;
            assert!(!way()?.contains("7401"), "{}", way()?);
        }
        Ok(())
    }

    #[test]
    fn an_own_address_within_the_network_is_some_other_pods()
    -> Result<(), Box<dyn std::error::Error>> {
        let netns = Netns::anonymous()?;
        Netlink::in_netns(netns.as_fd())?.set_up("lo")?;
        Netlink::in_netns(netns.as_fd())?.add_address("lo", [10, 2, 0, 9].into(), 32)?;
        let rl0 = VipInterface {
            name: "rl0".to_owned(),
            vip: [10, 2, 0, 4].into(),
            network: [10, 2, 0, 0].into(),
            prefix_length: 24,
        };
        rl0.ensure(netns.as_fd())?;
        let get = ["route", "get", "10.2.0.9", "ipproto", "tcp", "dport", "80"];
        let out = netns.run(|| std::process::Command::new("ip").args(get).output())??;
        let way = String::from_utf8(out.stdout)?;
        assert!(way.contains("dev lo table 7401 src 10.2.0.4"), "{way}");
        Ok(())
    }

    #[test]
    fn mixed_families_are_refused() -> Result<(), Box<dyn std::error::Error>> {
        let mixed = VipInterface {
            name: "rl0".to_owned(),
            vip: "10.2.0.4".parse()?,
            network: "fd00::".parse()?,
            prefix_length: 64,
        };
        let netns = Netns::anonymous()?;
        assert!(matches!(mixed.ensure(netns.as_fd()), Err(NetlinkError::Family(..))));
        Ok(())
    }
}
