//! The map that the demo, the bench and the end-to-end tests share.
//!
//! ```text
//!                     internet (router)
//!        198.51.100.0/30 │      │ 192.0.2.0/30, 192.0.2.4/30
//!                 hub ───┘      ├── NAT ── site a: machine 192.168.1.10, pods 10.244.0.0/24
//!                               └── NAT ── site b: machine 192.168.1.10, pods 10.244.0.0/24
//! ```
//!
//! Both sites use the same private ranges, as sites do; the NATs let nothing in.

use anyhow::Result;

use crate::{
    lab::Lab,
    net::{Netns, veth},
};

/// The hub's address, as everybody else sees it.
pub const HUB: &str = "198.51.100.2";
/// Pod range of *every* site.
pub const POD_CIDR: &str = "10.244.0.0/24";

/// A machine behind a NAT. Field order is drop order: the machine before its router.
#[derive(Debug)]
pub struct Site {
    pub machine: Netns,
    _nat: Netns,
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
        let machine = Netns::new(&format!("{}-{name}", self.prefix))?;
        nat.forward()?;
        let (up, down) = (format!("192.0.2.{}", base + 1), format!("192.0.2.{}", base + 2));
        let ends =
            ((&self.router, &*format!("to-{name}"), &*format!("{up}/30")), &*format!("{down}/30"));
        veth(ends.0, (&nat, "wan", ends.1))?;
        nat.ip(&format!("route add default via {up}"))?;
        veth((&nat, "lan", "192.168.1.1/24"), (&machine, "eth0", "192.168.1.10/24"))?;
        machine.ip("route add default via 192.168.1.1")?;
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
                    iifname lan oifname wan accept
                }
                chain arriving {
                    type filter hook input priority filter
                    iifname wan ct state new drop
                }
            }
            ",
        )?;
        Ok(Site { machine, _nat: nat })
    }
}
