//! What can go wrong, per operation.

use std::{io, net::IpAddr, path::PathBuf};

use crate::hooks::Hook;

/// [`crate::Datapath::load`] failed; nothing is left attached or pinned that was not there before.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("cannot open the cgroup {}", path.display())]
    OpenCgroup {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{} is not a cgroup v2 directory", path.display())]
    NotCgroup2 { path: PathBuf },
    #[error("cannot make the maps' BPF file system")]
    Directory(#[source] io::Error),
    #[error("cannot make the pin directory {}", path.display())]
    PinDirectory {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("{} is not on a BPF file system", path.display())]
    NotBpffs { path: PathBuf },
    #[error("cannot load the BPF object")]
    Object(#[source] Box<aya::EbpfError>),
    #[error("the BPF object lacks {0}")]
    Incomplete(&'static str),
    #[error("the kernel refuses the program of hook {hook}")]
    Program {
        hook: Hook,
        #[source]
        source: Box<aya::programs::ProgramError>,
    },
    #[error("cannot attach hook {hook} to {}", cgroup.display())]
    Attach {
        hook: Hook,
        cgroup: PathBuf,
        #[source]
        source: Box<aya::programs::ProgramError>,
    },
    #[error("the kernel gives no link for hook {hook} (needs Linux 5.7)")]
    Link {
        hook: Hook,
        #[source]
        source: Box<aya::programs::links::LinkError>,
    },
    #[error("cannot pin hook {hook}")]
    Pin {
        hook: Hook,
        #[source]
        source: Box<aya::pin::PinError>,
    },
    #[error("cannot replace the program behind the pinned hook {hook}")]
    Replace {
        hook: Hook,
        #[source]
        source: io::Error,
    },
    #[error("cannot take the pinned hook {hook} away")]
    Unpin {
        hook: Hook,
        #[source]
        source: io::Error,
    },
    #[error("map {map} has another shape")]
    MapShape {
        map: &'static str,
        #[source]
        source: Box<aya::maps::MapError>,
    },
}

impl LoadError {
    /// Whether it may be the fault of what is pinned, and a load without that would succeed.
    #[must_use]
    pub const fn is_about_pins(&self) -> bool {
        matches!(
            self,
            Self::Object(_) | Self::MapShape { .. } | Self::Pin { .. } | Self::Replace { .. }
        )
    }
}

/// A guard could not be attached, or a listener not be landed on.
#[derive(Debug, thiserror::Error)]
pub enum GuardError {
    #[error("all {0} guard slots of this machine are taken")]
    NoSlot(u32),
    #[error("cannot load the guard")]
    Load(#[source] Box<LoadError>),
    #[error("cannot attach the guard to the network namespace")]
    Attach(#[source] Box<aya::programs::ProgramError>),
    #[error("cannot put the relay's socket into landing slot {slot}")]
    Land {
        slot: u32,
        #[source]
        source: Box<aya::maps::MapError>,
    },
    #[error("cannot empty landing slot {slot}")]
    Unland {
        slot: u32,
        #[source]
        source: Box<aya::maps::MapError>,
    },
}

/// A map operation failed.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    #[error("cannot read map {map}")]
    Read {
        map: &'static str,
        #[source]
        source: Box<aya::maps::MapError>,
    },
    #[error("cannot write to map {map}")]
    Write {
        map: &'static str,
        #[source]
        source: Box<aya::maps::MapError>,
    },
    #[error("cannot delete from map {map}")]
    Delete {
        map: &'static str,
        #[source]
        source: Box<aya::maps::MapError>,
    },
}

/// Addresses that do not fit together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    #[error("{vip} and {other} are of different address families")]
    Family { vip: IpAddr, other: IpAddr },
    #[error("prefix length {length} is longer than {address} allows")]
    Prefix { address: IpAddr, length: u8 },
    #[error("{vip} is not in {network}/{length}")]
    Outside { vip: IpAddr, network: IpAddr, length: u8 },
    #[error("{0} and another address of its family are both given")]
    Twice(IpAddr),
}
