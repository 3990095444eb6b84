//! What can go wrong in the raw runtime.

use std::{io, path::PathBuf};

use crate::{artifact::ArtifactError, logs::reader::LogError, spec::PodUid};

/// This machine cannot run raw pods as configured. For people.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    #[error("running raw tasks needs root: start rlark-agent as root")]
    NotRoot,
    #[error("no cgroup v2 hierarchy is mounted: mount one (mount -t cgroup2 none /sys/fs/cgroup)")]
    NoCgroup2,
    #[error("{path} is not inside a cgroup v2 hierarchy")]
    NotCgroup2 { path: PathBuf },
    #[error(
        "pod CIDR {cidr} has no room: at least a /29 is needed, and as many addresses of IPv6 as of IPv4"
    )]
    SmallCidr { cidr: String },
    #[error("bridge name {name:?} is not an interface name of 1 to 15 letters, digits or '-'")]
    BridgeName { name: String },
    #[error("the program nft is missing: install nftables, it gives pods their way out")]
    NoNft,
    #[error("cannot set up masquerading: nft says {message}")]
    Nft { message: String },
    #[error("data directory {path} is in use by another rlark-agent")]
    InUse { path: PathBuf },
    #[error("cannot {what} {path}")]
    Io {
        what: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Net(#[from] NetError),
}

/// A network step failed.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    #[error("cannot open a netlink socket")]
    Socket(#[source] io::Error),
    #[error("cannot {what} interface {name}")]
    Link {
        what: &'static str,
        name: String,
        #[source]
        source: rtnetlink::Error,
    },
    #[error("interface {name} is not there")]
    NoLink { name: String },
    #[error("cannot {what} network namespace {path}")]
    Namespace {
        what: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot write {path}")]
    Switch {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the thread that set up network namespace {path} ended early")]
    Thread { path: PathBuf },
}

/// An operation on one pod failed.
#[derive(Debug, thiserror::Error)]
pub enum PodError {
    #[error("pod {uid} does not exist")]
    Unknown { uid: PodUid },
    #[error("no address is left in {cidr} for pod {uid}")]
    NoAddress { uid: PodUid, cidr: String },
    #[error("pod {uid} asks for nothing to run: it has neither artifact nor entrypoint")]
    NothingToRun { uid: PodUid },
    #[error("pod {uid}: environment variable name {name:?} is not usable")]
    Environment { uid: PodUid, name: String },
    #[error("pod {uid}: {name:?} is not a host name")]
    HostName { uid: PodUid, name: String },
    #[error("pod {uid} asks for the machine's network, which no pod may have here")]
    HostNetwork { uid: PodUid },
    #[error(transparent)]
    Artifact(#[from] ArtifactError),
    #[error(transparent)]
    Net(#[from] NetError),
    #[error(transparent)]
    Log(#[from] LogError),
    #[error("cannot {what} {path}")]
    Io {
        what: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("pod {uid} still has processes {seconds} s after all of them were killed")]
    Undying { uid: PodUid, seconds: u64 },
}

impl PodError {
    /// Whether trying again may help; otherwise the pod has failed for good.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Unknown { .. }
            | Self::NothingToRun { .. }
            | Self::Environment { .. }
            | Self::HostNetwork { .. }
            | Self::HostName { .. } => false,
            Self::Artifact(e) => e.is_transient(),
            _ => true,
        }
    }
}
