//! What this machine is, as the kernel tells it.

use std::{
    collections::BTreeMap,
    fs,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    path::Path,
    time::Duration,
};

use control_api::v1alpha1::{Disk, NodeAddress, NodeInfo};
use control_identity::client::ServerAddress;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// Below this share of free space a disk is under pressure.
const PRESSURE: u64 = 10;

/// The machine's host name, lower case, as a Node's name.
#[must_use]
pub(crate) fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().to_ascii_lowercase()
}

#[must_use]
pub(crate) fn node_info() -> NodeInfo {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    NodeInfo {
        architecture: architecture.to_owned(),
        kernel_version: rustix::system::uname().release().to_string_lossy().into_owned(),
        agent_version: env!("CARGO_PKG_VERSION").to_owned(),
        operating_system: std::env::consts::OS.to_owned(),
    }
}

/// Processors and memory.
#[must_use]
pub(crate) fn capacity() -> BTreeMap<String, Quantity> {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let mut found = BTreeMap::from([("cpu".to_owned(), Quantity(cpus.to_string()))]);
    if let Some(kib) = fs::read_to_string("/proc/meminfo").ok().and_then(|t| total_kib(&t)) {
        found.insert("memory".to_owned(), Quantity(format!("{kib}Ki")));
    }
    found
}

fn total_kib(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|l| l.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

/// Use of the file system that holds `path`, and whether it is nearly full. Rounded to 16 MiB, so
/// that a log line is no news.
#[must_use]
pub(crate) fn disk(path: &Path) -> Option<(Disk, bool)> {
    let fs = rustix::fs::statvfs(path).ok()?;
    let bytes = |blocks: u64| blocks.saturating_mul(fs.f_frsize) >> 24 << 24;
    let (total, free) = (bytes(fs.f_blocks), bytes(fs.f_bfree));
    let available = bytes(fs.f_bavail);
    let disk = Disk {
        used_bytes: i64::try_from(total.saturating_sub(free)).ok(),
        total_bytes: i64::try_from(total).ok(),
        available_bytes: i64::try_from(available).ok(),
    };
    Some((disk, available < total / 100 * PRESSURE))
}

/// The machine's addresses on its network, and its name.
pub(crate) async fn addresses(server: &ServerAddress) -> Vec<NodeAddress> {
    let of_type = |type_: &str, address: String| NodeAddress { type_: type_.to_owned(), address };
    let own = own_addresses(server).await;
    let own = own.iter().map(|a| of_type("InternalIP", a.to_string()));
    own.chain([of_type("Hostname", host_name())]).collect()
}

/// How long the server's name may take to be looked up.
const LOOK_UP: Duration = Duration::from_secs(2);
/// Addresses that nobody has (RFC 5737, RFC 3849): the way there is the default route, if the machine has one of that family.
const ANYWHERE: [IpAddr; 2] = [
    IpAddr::V4(Ipv4Addr::new(203, 0, 113, 1)),
    IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)),
];

/// One address per family by which others on its network reach this machine: by which it speaks to the server, and in the other family,
/// or beside a server on this very machine, to the world. None while the server's name cannot be looked up: then they are what they were.
pub(crate) async fn own_addresses(server: &ServerAddress) -> Vec<IpAddr> {
    let look_up = tokio::time::timeout(LOOK_UP, tokio::net::lookup_host(server.authority()));
    let Ok(Ok(targets)) = look_up.await else { return Vec::new() };
    let temporary = fs::read_to_string("/proc/net/if_inet6").unwrap_or_default();
    let mut found: Vec<IpAddr> = Vec::new();
    for target in targets.chain(ANYWHERE.map(|ip| SocketAddr::new(ip, 9))) {
        let Some(own) = towards(target).await.filter(is_of_the_network) else { continue };
        if !found.iter().any(|other| other.is_ipv4() == own.is_ipv4()) {
            found.push(lasting(own, &temporary));
        }
    }
    found
}

/// Connecting a datagram socket sends nothing; it only looks up the route.
async fn towards(target: SocketAddr) -> Option<IpAddr> {
    let any = if target.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = tokio::net::UdpSocket::bind(any).await.ok()?;
    socket.connect(target).await.ok()?;
    Some(socket.local_addr().ok()?.ip())
}

fn is_of_the_network(ip: &IpAddr) -> bool {
    let link_local = match ip {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    !ip.is_loopback() && !ip.is_unspecified() && !link_local
}

/// Instead of a temporary address (RFC 8981), which changes every day, the one that stays of the same network and interface. `table` is
/// the text of `/proc/net/if_inet6`: address, index, prefix length, scope, flags, all hexadecimal, and the interface's name.
fn lasting(own: IpAddr, table: &str) -> IpAddr {
    const TEMPORARY: u8 = 0x01;
    let IpAddr::V6(own) = own else { return own };
    let number = |word: Option<&&str>| u8::from_str_radix(word?, 16).ok();
    let entries: Vec<(Ipv6Addr, u8, u8, &str)> = table
        .lines()
        .filter_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let address = u128::from_str_radix(words.first()?, 16).ok()?;
            let (length, flags) = (number(words.get(2))?, number(words.get(4))?);
            Some((Ipv6Addr::from_bits(address), length, flags, *words.get(5)?))
        })
        .collect();
    let mine = entries.iter().find(|(ip, _, flags, _)| *ip == own && flags & TEMPORARY != 0);
    let Some((_, length, _, interface)) = mine else { return own.into() };
    let host_bits = u32::from(128_u8.saturating_sub(*length));
    let network = |ip: Ipv6Addr| ip.to_bits().checked_shr(host_bits).unwrap_or(0);
    let stays = entries.iter().find(|(ip, _, flags, name)| {
        flags & TEMPORARY == 0 && name == interface && network(*ip) == network(own)
    });
    stays.map_or(own, |(ip, ..)| *ip).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_as_the_kernel_writes_it() {
        assert_eq!(total_kib("MemTotal:       24576 kB\nMemFree: 1 kB\n"), Some(24576));
        assert_eq!(total_kib("nothing"), None);
        assert!(capacity().contains_key("memory"));
    }

    #[test]
    fn a_disk_has_a_size() {
        let (disk, _) = disk(Path::new("/")).unwrap();
        assert!(disk.total_bytes > Some(0));
        assert!(disk.used_bytes <= disk.total_bytes);
    }
    #[test]
    fn of_ipv6_the_address_that_stays_is_told() {
        let table = "20010db800000000000000000000aaaa 02 40 00 01     eth0\n\
                     20010db8000000000000000000000010 03 40 00 00     eth1\n\
                     20010db8000000000000000000000011 02 40 00 00     eth0\n\
                     fe800000000000000000000000000011 02 40 20 80     eth0\n";
        let of = |own: &str| lasting(own.parse().unwrap(), table).to_string();
        assert_eq!(of("2001:db8::aaaa"), "2001:db8::11");
        assert_eq!(of("2001:db8::10"), "2001:db8::10");
        assert_eq!(of("192.168.1.10"), "192.168.1.10");
        assert_eq!(lasting("2001:db8::aaaa".parse().unwrap(), "").to_string(), "2001:db8::aaaa");
    }

    #[tokio::test]
    async fn a_server_on_this_machine_does_not_make_loopback_its_address() {
        let server = ServerAddress::parse("https://127.0.0.1:8443").unwrap();
        let own = own_addresses(&server).await;
        assert!(own.iter().all(is_of_the_network), "{own:?}");
        let families = own.iter().filter(|ip| ip.is_ipv4()).count();
        assert!(families <= 1 && own.len() <= 2, "{own:?}");
    }
}
