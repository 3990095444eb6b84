//! Loads the data path's BPF programs and is the only writer of their maps.
//!
//! ```text
//! probe() ─ what this kernel has, each missing feature by name
//! Datapath::load(Config) ─ hooks on a cgroup, beside whatever else is attached there; or none, and guards decide
//!   ├ set_pod / remove_pod          namespace cookie → Domain, VIP, real address
//!   ├ set_host_pod / remove_host_pod    the same for a cgroup in the machine's own namespace
//!   ├ set_vip / remove_vip / reconcile   VIP → deny, direct, relay
//!   ├ attach_guard(netns, …) → Guard     sk_lookup of one pod; dropped = detached
//!   ├ land(slot, listener)          where that guard lands relayed connections
//!   ├ mirror(id, …), trust_mirror    what is open at pods of other machines
//!   ├ take_events, listeners, direct_flows, counters  what the programs saw
//!   └ watch, take_watch             refusals and direct connections as they happen
//! ```
//!
//! Without [`Config::pins`] nothing outlives the value: maps are shared between the hooks and the guards
//! through a BPF file system that is mounted nowhere. The compiled programs are part of this crate
//! (`object/datapath.o`), so building it needs no BPF toolchain. Needs root (CAP_BPF, CAP_NET_ADMIN) and Linux 5.15.

mod address;
mod counters;
mod datapath;
mod directory;
mod error;
mod events;
mod flows;
mod guard;
mod hooks;
mod host;
mod link;
mod listeners;
mod mirror;
mod object;
mod pods;
mod ports;
mod probe;
mod routes;
mod table;
mod watch;

pub use counters::Count;
pub use datapath::{Config, Datapath};
pub use directory::{BpffsMount, discard_pins, mount_bpffs};
pub use error::{AddressError, GuardError, LoadError, MapError};
pub use events::{Changed, Events, Protocol};
pub use flows::DirectFlow;
pub use guard::{Guard, GuardConfig, Slot};
pub use hooks::Hook;
pub use host::CgroupId;
pub use listeners::{ANY_V6_ONLY, Listening};
pub use mirror::{MirrorId, Open};
pub use pods::{DomainId, Face, NetnsCookie, PodEntry};
pub use probe::{CgroupRoot, Feature, Finding, Need, Probe, cgroup2_mount, probe};
pub use routes::{Changes, Denial, Listeners, Route};

/// What the hooks saw while somebody read.
pub mod seen {
    pub use crate::watch::{Connection, End, Seen, Watch, What};
}

/// Version of the map layouts; part of the pin directory's name.
pub use datapath_abi::LAYOUT;
/// `SO_MARK` of sockets that may be bound to addresses of a pod's peers in its namespace.
pub use datapath_abi::RELAY_MARK;
/// Why a program did what it did: the label of a counter.
pub use datapath_abi::Reason;
