//! The sockets of this machine's pods that peers can reach: the hooks keep the lists, user space reads them, and enters what is
//! older than the hooks.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use datapath_abi as abi;

use crate::{
    address::{address, words},
    datapath::Datapath,
    error::MapError,
    pods::{DomainId, NetnsCookie},
    routes::monotonic_ns,
    table::Table,
};

/// Sockets that listen at one address of one pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listening {
    pub netns: NetnsCookie,
    /// The unspecified IPv6 address stands for any of either family, [`ANY_V6_ONLY`] for any of IPv6.
    pub at: SocketAddr,
    pub sockets: u64,
}

/// [`Listening::at`] of a listener on `::` that takes no IPv4.
pub const ANY_V6_ONLY: IpAddr = IpAddr::V6(Ipv6Addr::from_bits(u128::MAX));

impl Datapath {
    /// All TCP listeners of this machine's pods.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn listeners(&self) -> Result<Vec<Listening>, MapError> {
        live(&self.tables().listen)
    }

    /// All UDP ports with a socket that is bound to its pod's VIP; the address says nothing.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn udp_on_vip(&self) -> Result<Vec<Listening>, MapError> {
        live(&self.tables().udp_vip)
    }

    /// Whether anyone listens there now, as the hooks see it.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn is_listening(&self, netns: NetnsCookie, at: SocketAddr) -> Result<bool, MapError> {
        any(&self.tables().listen, netns, at)
    }

    /// Whether a UDP socket is bound to the pod's VIP and this port now.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn is_udp_on_vip(&self, netns: NetnsCookie, port: u16) -> Result<bool, MapError> {
        any(&self.tables().udp_vip, netns, SocketAddr::new(ANY, port))
    }

    /// `at` are all listeners of the namespace, an address as often as it has sockets: makes those that the hooks do not know
    /// known, because they are older than the hooks or the pod. Call it again when one of them may have ended. At how many
    /// addresses there are some.
    ///
    /// # Errors
    /// The map is full or the kernel refuses.
    pub fn seed_listeners(
        &self,
        netns: NetnsCookie,
        at: impl IntoIterator<Item = SocketAddr>,
    ) -> Result<usize, MapError> {
        seed(&self.tables().listen, netns, at)
    }

    /// The same for UDP ports with a socket that is bound to the VIP.
    ///
    /// # Errors
    /// The map is full or the kernel refuses.
    pub fn seed_udp_on_vip(
        &self,
        netns: NetnsCookie,
        ports: impl IntoIterator<Item = u16>,
    ) -> Result<usize, MapError> {
        seed(&self.tables().udp_vip, netns, ports.into_iter().map(|p| SocketAddr::new(ANY, p)))
    }

    /// A member of the Domain spoke from a socket that is bound to its VIP: for `ttl`, what is sent to it leaves by the
    /// interface that the node reads instead of going to its real address. At most 16,384; the oldest are forgotten first.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn answer_on_vip(
        &self,
        domain: DomainId,
        member: SocketAddr,
        ttl: Duration,
    ) -> Result<(), MapError> {
        let (ip, port) = (words(member.ip()), member.port().into());
        let ttl = u64::try_from(ttl.as_nanos()).unwrap_or(u64::MAX);
        let until = monotonic_ns().saturating_add(ttl);
        self.tables().udp_seen.set(abi::Port { domain: domain.0, ip, port }, until)
    }
}

const ANY: IpAddr = IpAddr::V6(Ipv6Addr::UNSPECIFIED);

fn live(table: &Table<abi::Listener, u64>) -> Result<Vec<Listening>, MapError> {
    let entries = table.entries()?.into_iter();
    let live = entries.filter(|(_, sockets)| *sockets > 0);
    Ok(live
        .map(|(key, sockets)| Listening {
            netns: NetnsCookie(key.netns),
            at: SocketAddr::new(address(&key.ip), u16::try_from(key.port).unwrap_or_default()),
            sockets,
        })
        .collect())
}

fn any(
    table: &Table<abi::Listener, u64>,
    netns: NetnsCookie,
    at: SocketAddr,
) -> Result<bool, MapError> {
    for origin in [abi::ORIGIN_HOOK, abi::ORIGIN_USER] {
        if table.get(&key(netns, at, origin))?.is_some_and(|n| n > 0) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn seed(
    table: &Table<abi::Listener, u64>,
    netns: NetnsCookie,
    at: impl IntoIterator<Item = SocketAddr>,
) -> Result<usize, MapError> {
    let mut wanted: BTreeMap<abi::Listener, u64> = BTreeMap::new();
    for at in at {
        *wanted.entry(key(netns, at, abi::ORIGIN_USER)).or_default() += 1;
    }
    for (user, sockets) in &mut wanted {
        let hooked = abi::Listener { origin: abi::ORIGIN_HOOK, ..*user };
        *sockets = sockets.saturating_sub(table.get(&hooked)?.unwrap_or(0));
    }
    wanted.retain(|_, sockets| *sockets > 0);
    let seeded = |k: &abi::Listener| k.netns == netns.0 && k.origin == abi::ORIGIN_USER;
    for (old, _) in table.entries()?.into_iter().filter(|(k, _)| seeded(k)) {
        if !wanted.contains_key(&old) {
            table.delete(&old)?;
        }
    }
    for (new, sockets) in &wanted {
        table.set(*new, *sockets)?;
    }
    Ok(wanted.len())
}

fn key(netns: NetnsCookie, at: SocketAddr, origin: u32) -> abi::Listener {
    abi::Listener { netns: netns.0, ip: words(at.ip()), port: at.port().into(), origin }
}
