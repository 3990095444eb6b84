//! The network of a site whose tasks get theirs from us: a bridge, a veth pair per task, and NAT to the outside.

use std::{
    fs,
    io::{self, Write as _},
    net::IpAddr,
    os::fd::{AsFd, BorrowedFd},
    process::{Command, Stdio},
};

use crate::{
    netlink::{LinkKind, Netlink, NetlinkError},
    netns::{Netns, NetnsError, in_netns},
};

const IP_FORWARD: &str = "/proc/sys/net/ipv4/ip_forward";

/// NAT could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum NatError {
    #[error("cannot enter the network namespace")]
    Netns(#[source] NetnsError),
    #[error("cannot switch on IPv4 forwarding")]
    Forwarding(#[source] io::Error),
    #[error("cannot run nft")]
    Run(#[source] io::Error),
    #[error("nft refuses the table {table}: {message}")]
    Refused { table: String, message: String },
}

/// Makes a bridge with an address in the calling thread's namespace, or completes one that is there.
///
/// # Errors
/// The name is taken by something that takes no address, or the kernel refuses.
pub fn create_bridge(name: &str, address: IpAddr, prefix_length: u8) -> Result<(), NetlinkError> {
    let mut netlink = Netlink::current()?;
    netlink.add_link(name, LinkKind::Bridge)?;
    netlink.add_address(name, address, prefix_length)?;
    netlink.set_up(name)
}

/// Deletes an interface of the calling thread's namespace; whether there was one.
///
/// # Errors
/// The kernel refuses.
pub fn delete_link(name: &str) -> Result<bool, NetlinkError> {
    Netlink::current()?.delete_link(name)
}

/// One task's end of the site's network.
#[derive(Clone, Debug)]
pub struct Veth<'a> {
    /// The task's namespace.
    pub netns: BorrowedFd<'a>,
    /// The bridge, in the calling thread's namespace.
    pub bridge: &'a str,
    /// Name of the end at the bridge, at most 15 bytes, unique on the machine.
    pub host_name: &'a str,
    /// Name of the end in the task, `eth0`.
    pub name: &'a str,
    pub address: IpAddr,
    pub prefix_length: u8,
    /// Where everything else goes; `None`: nowhere.
    pub gateway: Option<IpAddr>,
}

/// Connects a namespace to a bridge. Both ends go when either namespace goes. On an error nothing is left.
///
/// # Errors
/// A name is taken, the bridge is missing, or the kernel refuses.
pub fn veth_into(veth: &Veth<'_>) -> Result<(), NetlinkError> {
    let mut host = Netlink::current()?;
    host.add_veth(veth.host_name, veth.name, veth.netns)?;
    let rest = configure(&mut host, veth);
    if rest.is_err() {
        let _first_error_counts = host.delete_link(veth.host_name);
    }
    rest
}

fn configure(host: &mut Netlink, veth: &Veth<'_>) -> Result<(), NetlinkError> {
    host.set_master(veth.host_name, veth.bridge)?;
    host.set_up(veth.host_name)?;
    let mut task = Netlink::in_netns(veth.netns)?;
    task.set_up("lo")?;
    task.add_address(veth.name, veth.address, veth.prefix_length)?;
    task.set_up(veth.name)?;
    match veth.gateway {
        Some(gateway) => task.set_default_route(gateway),
        None => Ok(()),
    }
}

/// NAT for what a network sends elsewhere; its own nftables table, gone on drop. Needs the `nft` program.
#[derive(Debug)]
pub struct Masquerade {
    table: String,
    netns: Netns,
    forwarding_was_off: bool,
}

impl Masquerade {
    /// Switches forwarding on in the calling thread's namespace and hides `network` behind the machine's own addresses. A table
    /// of the same name that an earlier process left is replaced.
    ///
    /// # Errors
    /// `nft` is missing or refuses, or forwarding cannot be switched on.
    pub fn install(table: &str, network: IpAddr, prefix_length: u8) -> Result<Self, NatError> {
        let netns = Netns::current().map_err(NatError::Netns)?;
        let family = if network.is_ipv4() { "ip" } else { "ip6" };
        let rules = format!(
            "table inet {table}\n\
             delete table inet {table}\n\
             table inet {table} {{\n\
               chain postrouting {{\n\
                 type nat hook postrouting priority srcnat;\n\
                 {family} saddr {network}/{prefix_length} {family} daddr != {network}/{prefix_length} masquerade\n\
               }}\n\
             }}\n"
        );
        nft(table, &rules)?;
        let mut this = Self { table: table.to_owned(), netns, forwarding_was_off: false };
        if fs::read_to_string(IP_FORWARD).map_err(NatError::Forwarding)?.trim() == "0" {
            fs::write(IP_FORWARD, "1").map_err(NatError::Forwarding)?;
            this.forwarding_was_off = true;
        }
        Ok(this)
    }
}

impl Drop for Masquerade {
    fn drop(&mut self) {
        let rules = format!("delete table inet {}\n", self.table);
        let _namespace_gone = in_netns(self.netns.as_fd(), || {
            let _table_gone = nft(&self.table, &rules);
            if self.forwarding_was_off {
                let _read_only_proc = fs::write(IP_FORWARD, "0");
            }
        });
    }
}

fn nft(table: &str, rules: &str) -> Result<(), NatError> {
    let mut child = Command::new("nft")
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(NatError::Run)?;
    let written = child.stdin.take().map_or(Ok(()), |mut stdin| stdin.write_all(rules.as_bytes()));
    let output = child.wait_with_output().map_err(NatError::Run)?;
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr);
        let message = message.lines().next().unwrap_or("no message").to_owned();
        return Err(NatError::Refused { table: table.to_owned(), message });
    }
    written.map_err(NatError::Run)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    type Tested = Result<(), Box<dyn std::error::Error + Send + Sync>>;

    fn veth<'a>(netns: &'a Netns, host_name: &'a str, last: u8) -> Veth<'a> {
        Veth {
            netns: netns.as_fd(),
            bridge: "br0",
            host_name,
            name: "eth0",
            address: [10, 9, 0, last].into(),
            prefix_length: 24,
            gateway: Some([10, 9, 0, 1].into()),
        }
    }

    #[test]
    fn tasks_on_a_bridge_reach_each_other_and_its_machine() -> Tested {
        let (site, a, b) = (Netns::anonymous()?, Netns::anonymous()?, Netns::anonymous()?);
        site.run(|| -> Tested {
            create_bridge("br0", [10, 9, 0, 1].into(), 24)?;
            create_bridge("br0", [10, 9, 0, 1].into(), 24)?;
            veth_into(&veth(&a, "va", 2))?;
            veth_into(&veth(&b, "vb", 3))?;
            let missing = Veth { bridge: "none", ..veth(&b, "vc", 4) };
            assert!(veth_into(&Veth { name: "eth1", ..missing }).is_err());
            assert!(!delete_link("vc")?, "a failed attempt leaves nothing");
            Ok(())
        })??;
        let listener = b.run(|| TcpListener::bind("10.9.0.3:0"))??;
        let to = listener.local_addr()?;
        let client = a.run(|| TcpStream::connect(to))??;
        assert_eq!(client.local_addr()?.ip(), IpAddr::from([10, 9, 0, 2]));
        Ok(())
    }

    #[test]
    fn masquerade_hides_the_network_and_leaves_nothing() -> Tested {
        let (site, task, outside) = (Netns::anonymous()?, Netns::anonymous()?, Netns::anonymous()?);
        let nat = site.run(|| -> Result<_, Box<dyn std::error::Error + Send + Sync>> {
            create_bridge("br0", [10, 9, 0, 1].into(), 24)?;
            veth_into(&veth(&task, "va", 2))?;
            create_bridge("br1", [192, 0, 2, 1].into(), 24)?;
            veth_into(&Veth {
                bridge: "br1",
                address: [192, 0, 2, 9].into(),
                gateway: None,
                ..veth(&outside, "vo", 0)
            })?;
            Ok(Masquerade::install("rl_test", [10, 9, 0, 0].into(), 24)?)
        })??;
        let listener = outside.run(|| TcpListener::bind("192.0.2.9:0"))??;
        let to = listener.local_addr()?;
        let _client = task.run(|| TcpStream::connect(to))??;
        assert_eq!(listener.accept()?.1.ip(), IpAddr::from([192, 0, 2, 1]));
        drop(nat);
        let left = site.run(|| Command::new("nft").args(["list", "tables"]).output())??;
        assert_eq!(String::from_utf8_lossy(&left.stdout), "");
        assert_eq!(site.run(|| fs::read_to_string(IP_FORWARD))??.trim(), "0");
        Ok(())
    }
}
