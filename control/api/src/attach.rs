//! How a runtime hands a pod to `rlark-node` on the same machine.
//!
//! JSON over HTTP/1 on a Unix socket (default [`SOCKET`], mode 0600, root only):
//!
//! | request | answer |
//! |---|---|
//! | `PUT /v1/attachments/{uid}` [`AttachRequest`] | 200 [`Attached`] once interface, guard, routes and names stand; else [`crate::session::Refusal`] |
//! | `DELETE /v1/attachments/{uid}` | 204; an unknown uid too |
//! | `GET /v1/attachments` | `Vec<Attached>` |
//! | `GET /v1/flows` | `Vec<crate::session::Flow>` |
//! | `GET /v1/doctor` | [`NodeReport`] |
//! | `GET /v1/events` | [`crate::events::Event`], one a line, until the reader goes |
//!
//! A runtime starts a pod's processes only after `Attached`. A pod on the host network is a cgroup in the machine's own namespace
//! ([`AttachRequest::cgroup`]); its processes are born in it, or in one below it.

use std::{net::IpAddr, path::PathBuf};

use serde::{Deserialize, Serialize};

use crate::{ids::DomainName, session::ProbeHop};

/// Where `rlark-node` listens for runtimes.
pub const SOCKET: &str = "/run/rlark/node.sock";
/// The interface in a pod that owns its virtual address.
pub const INTERFACE: &str = "rl0";

/// A pod that is about to start. Idempotent: the same uid may be sent again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AttachRequest {
    pub domain: DomainName,
    /// A file that names the pod's network namespace (a bind mount or `/proc/PID/ns/net`).
    pub netns: PathBuf,
    /// The pod's cgroup v2 directory, exactly when `netns` is the machine's own namespace: there the kernel knows a pod by it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<PathBuf>,
    /// The pod's own hosts file, into which the node writes its section; absent: no names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hosts: Option<PathBuf>,
    /// How long to wait for the control plane to give the pod its address.
    pub timeout_ms: u64,
}

/// The pod is in its Domain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Attached {
    pub uid: String,
    pub domain: DomainName,
    /// One per subnet of the Domain and in their order.
    pub addresses: Vec<VirtualAddress>,
    /// Empty for a pod on the host network, which has no interface of its own.
    pub interface: String,
    /// By which the kernel knows the pod: its network namespace's cookie (`SO_NETNS_COOKIE`); of a pod on the host network its
    /// cgroup's id, with the highest bit set.
    pub netns_cookie: u64,
}

impl Attached {
    /// Whether this is one of its virtual addresses.
    #[must_use]
    pub fn is_vip(&self, ip: IpAddr) -> bool {
        self.addresses.iter().any(|a| a.vip == ip)
    }
}

/// An address of the pod on [`INTERFACE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VirtualAddress {
    pub vip: IpAddr,
    pub prefix_len: u8,
}

/// What the node knows of this machine and of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeReport {
    /// Kernel features and attachments, each with what was found.
    pub checks: Vec<ProbeHop>,
}
