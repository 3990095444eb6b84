//! How often the programs decided what, and why.

use std::fmt;

use aya::{
    Ebpf,
    maps::{MapData, PerCpuHashMap},
};
use datapath_abi::{Counter, Reason};

use crate::{
    datapath::Datapath,
    error::{LoadError, MapError},
    pods::DomainId,
    table::is_absent,
};

const ALL: [Reason; 17] = [
    Reason::Outside,
    Reason::OwnVip,
    Reason::Direct,
    Reason::Relay,
    Reason::BoundToVip,
    Reason::UnknownVip,
    Reason::Policy,
    Reason::NoListener,
    Reason::RecentlyRefused,
    Reason::Landed,
    Reason::NoRelay,
    Reason::Injected,
    Reason::VipListener,
    Reason::Datagram,
    Reason::Port,
    Reason::ForeignAddress,
    Reason::HostDatagram,
];

/// How often one thing happened in one Domain since the maps were made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Count {
    pub domain: DomainId,
    pub reason: Reason,
    pub count: u64,
}

impl Count {
    pub(crate) fn reason_of(number: u32) -> Option<Reason> {
        ALL.into_iter().find(|r| *r as u32 == number)
    }

    /// A stable metric label.
    pub const fn label(&self) -> &'static str {
        match self.reason {
            Reason::Outside => "outside",
            Reason::OwnVip => "own_vip",
            Reason::Direct => "direct",
            Reason::Relay => "relay",
            Reason::BoundToVip => "relay_bound_to_vip",
            Reason::UnknownVip => "unknown_vip",
            Reason::Policy => "policy",
            Reason::NoListener => "no_listener",
            Reason::RecentlyRefused => "recently_refused",
            Reason::Landed => "landed",
            Reason::NoRelay => "no_relay",
            Reason::Injected => "injected",
            Reason::VipListener => "vip_listener",
            Reason::Datagram => "datagram",
            Reason::Port => "port",
            Reason::ForeignAddress => "foreign_address",
            Reason::HostDatagram => "host_datagram",
        }
    }

    /// The verdict it belongs to: `pass`, `deny`, `direct` or `relay`.
    pub const fn verdict(&self) -> &'static str {
        match self.reason {
            Reason::Outside | Reason::OwnVip | Reason::Datagram => "pass",
            Reason::Direct | Reason::VipListener => "direct",
            Reason::Relay | Reason::BoundToVip | Reason::Landed => "relay",
            Reason::UnknownVip
            | Reason::Policy
            | Reason::Port
            | Reason::ForeignAddress
            | Reason::HostDatagram
            | Reason::NoListener
            | Reason::RecentlyRefused
            | Reason::NoRelay
            | Reason::Injected => "deny",
        }
    }
}

const MAP: &str = "COUNTERS";

pub(crate) struct Counters(PerCpuHashMap<MapData, Counter, u64>);

impl fmt::Debug for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Counters")
    }
}

impl Counters {
    pub(crate) fn take(ebpf: &mut Ebpf) -> Result<Self, LoadError> {
        let map = ebpf.take_map(MAP).ok_or(LoadError::Incomplete(MAP))?;
        PerCpuHashMap::try_from(map)
            .map(Self)
            .map_err(|source| LoadError::MapShape { map: MAP, source: Box::new(source) })
    }
}

impl Datapath {
    /// The counters of all Domains; those never touched are absent.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn counters(&self) -> Result<Vec<Count>, MapError> {
        let map = &self.counter_map().0;
        let read = |source| MapError::Read { map: MAP, source: Box::new(source) };
        let mut counts = Vec::new();
        for key in map.keys() {
            let key = key.map_err(read)?;
            let Some(reason) = Count::reason_of(key.reason) else { continue };
            match map.get(&key, 0) {
                Ok(cells) => counts.push(Count {
                    domain: DomainId(key.domain),
                    reason,
                    count: cells.iter().sum(),
                }),
                Err(e) if is_absent(&e) => {}
                Err(source) => return Err(read(source)),
            }
        }
        Ok(counts)
    }
}
