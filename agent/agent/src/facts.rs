//! What this machine is, as the kernel tells it.

use std::{collections::BTreeMap, fs, net::IpAddr, path::Path};

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

/// The address by which this machine speaks to the server, and its name.
pub(crate) async fn addresses(server: &ServerAddress) -> Vec<NodeAddress> {
    let host = NodeAddress { type_: "Hostname".to_owned(), address: host_name() };
    let own = own_address(server).await;
    let own = own.map(|a| NodeAddress { type_: "InternalIP".to_owned(), address: a.to_string() });
    own.into_iter().chain([host]).collect()
}

/// Connecting a datagram socket sends nothing; it only looks up the route.
async fn own_address(server: &ServerAddress) -> Option<IpAddr> {
    let mut targets = tokio::net::lookup_host(server.authority()).await.ok()?;
    let target = targets.next()?;
    let any = if target.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = tokio::net::UdpSocket::bind(any).await.ok()?;
    socket.connect(target).await.ok()?;
    Some(socket.local_addr().ok()?.ip())
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
}
