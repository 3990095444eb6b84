//! The map that the demo, the bench and the end-to-end tests share.
//!
//! ```text
//!                     internet (router)
//!        198.51.100.0/30 │      │ 192.0.2.0/30, 192.0.2.4/30
//!                 hub ───┘      ├── NAT ── site a: machine 192.168.1.10, pods 10.244.0.0/24
//!                               │                  machine 192.168.1.11, pods 10.244.1.0/24
//!                               └── NAT ── site b: machine 192.168.1.10, pods 10.244.0.0/24
//! ```
//!
//! All sites use the same private ranges, as sites do; the NATs let nothing in. The machines of one
//! site reach each other's pods, as on a routed LAN.

use anyhow::Result;

use crate::{
    lab::Lab,
    net::{Netns, veth},
};

/// The hub's address, as everybody else sees it.
pub const HUB: &str = "198.51.100.2";
/// The ranges that the pods of *every* site are in.
pub const SITE_CIDR: &str = "10.244.0.0/16";

/// A LAN behind a NAT, and how many machines are on it.
#[derive(Debug)]
pub struct Site {
    pub nat: Netns,
    name: String,
    gateway: String,
    /// Names of the machines' namespaces.
    machines: Vec<String>,
}

/// A machine on a site's LAN.
#[derive(Debug)]
pub struct Place {
    pub netns: Netns,
    pub pod_cidr: String,
}

impl Site {
    /// One more machine, at most 90, with routes to the pods of the others and theirs to it.
    pub fn machine(&mut self, prefix: &str) -> Result<Place> {
        let n = self.machines.len();
        let suffix = if n == 0 { String::new() } else { format!("-{n}") };
        let netns = Netns::new(&format!("{prefix}-{}{suffix}", self.name))?;
        let port = format!("lan{n}");
        self.nat.ip(&format!("link add {port} type veth peer name eth0 netns {}", netns.name()))?;
        self.nat.ip(&format!("link set {port} master lan up"))?;
        let address = |n: usize| format!("192.168.1.{}", 10 + n);
        netns.ip(&format!("addr add {}/24 dev eth0", address(n)))?;
        netns.ip("link set eth0 up")?;
        netns.ip("route add default via 192.168.1.1")?;
        for (other, name) in self.machines.iter().enumerate() {
            let to_us = format!("-n {name} route add 10.244.{n}.0/24 via {}", address(n));
            crate::command::ip(&to_us)?;
            netns.ip(&format!("route add 10.244.{other}.0/24 via {}", address(other)))?;
        }
        self.machines.push(netns.name().to_owned());
        Ok(Place { netns, pod_cidr: format!("10.244.{n}.0/24") })
    }

    /// Lets the world reach a port of one of its machines at the NAT's own address, as a person does
    /// on a router.
    pub fn forward_port(&self, machine: usize, port: u16) -> Result<()> {
        let to = 10 + machine;
        self.nat.nft(&format!(
            "table ip forward{port} {{
                chain arriving {{
                    type nat hook prerouting priority dstnat
                    iifname wan tcp dport {port} dnat to 192.168.1.{to}:{port}
                }}
            }}
            add rule ip filter passing iifname wan tcp dport {port} ct status dnat accept
            "
        ))
    }

    /// Swallows everything to and from a forwarded port, connections that stand too; or no more.
    pub fn swallow_port(&self, port: u16, yes: bool) -> Result<()> {
        let table = format!("table ip swallow{port}");
        if !yes {
            return self.nat.nft(&format!("delete {table}"));
        }
        self.nat.nft(&format!(
            "{table} {{
                chain passing {{
                    type filter hook forward priority -10
                    tcp dport {port} drop
                    tcp sport {port} drop
                }}
            }}
            "
        ))
    }

    /// Cuts the site from the rest of the world, or joins it again.
    pub fn uplink(&self, up: bool) -> Result<()> {
        self.nat.ip(if up { "link set wan up" } else { "link set wan down" })?;
        if up {
            self.nat.ip(&format!("route replace default via {}", self.gateway))
        } else {
            Ok(())
        }
    }
}

#[derive(Debug)]
pub struct Internet {
    pub hub: Netns,
    router: Netns,
    prefix: String,
    sites: u8,
}

impl Internet {
    pub fn new(lab: &Lab) -> Result<Self> {
        let prefix = lab.id().to_owned();
        let router = Netns::new(&format!("{prefix}-inet"))?;
        let hub = Netns::new(&format!("{prefix}-hub"))?;
        router.forward()?;
        veth((&router, "hub", "198.51.100.1/30"), (&hub, "eth0", &format!("{HUB}/30")))?;
        hub.ip("route add default via 198.51.100.1")?;
        Ok(Self { hub, router, prefix, sites: 0 })
    }

    /// One more site behind its own NAT, at most 60.
    pub fn site(&mut self, name: &str) -> Result<Site> {
        let base = self.sites * 4;
        self.sites += 1;
        let nat = Netns::new(&format!("{}-{name}-nat", self.prefix))?;
        nat.forward()?;
        let (up, down) = (format!("192.0.2.{}", base + 1), format!("192.0.2.{}", base + 2));
        let ends =
            ((&self.router, &*format!("to-{name}"), &*format!("{up}/30")), &*format!("{down}/30"));
        veth(ends.0, (&nat, "wan", ends.1))?;
        nat.ip(&format!("route add default via {up}"))?;
        nat.ip("link add lan type bridge")?;
        nat.ip("addr add 192.168.1.1/24 dev lan")?;
        nat.ip("link set lan up")?;
        nat.nft(
            "table ip nat {
                chain leaving {
                    type nat hook postrouting priority srcnat
                    oifname wan masquerade
                }
            }
            table ip filter {
                chain passing {
                    type filter hook forward priority filter; policy drop
                    ct state established,related accept
                    iifname lan oifname { lan, wan } accept
                }
                chain arriving {
                    type filter hook input priority filter
                    iifname wan ct state new drop
                }
            }
            ",
        )?;
        Ok(Site { nat, name: name.to_owned(), gateway: up, machines: vec![] })
    }
}
