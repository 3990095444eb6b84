//! What machines (agents, nodes) and the hub say to each other over port 8443.
//!
//! A machine enrols once ([`EnrollRequest`]) and from then on speaks mutual TLS. It makes plain
//! requests (`POST` to the paths below) and keeps one *session*: a TLS connection with ALPN
//! [`SESSION_ALPN`] on which the machine *serves* HTTP/2 and the hub calls the paths of
//! [`machine`]. So a machine opens no port, and the hub reaches it through any NAT.
//!
//! ```text
//!   machine ── POST /enroll, /renew, /hub/v1/... ──▶ hub
//!   machine ══ TLS, ALPN rlark-session/1 ══════════▶ hub     (dialled by the machine)
//!   machine ◀─ HTTP/2: /v1/routes, /v1/dial, ... ─── hub     (inside that connection)
//! ```

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use crate::{
    direct::{DirectOffer, PeerMachine},
    ids::{ClusterId, DomainName, NodeRef},
    ports::{PodPorts, PortRange, Ports},
};

/// ALPN by which a machine hands its connection over to the hub.
pub const SESSION_ALPN: &[u8] = b"rlark-session/1";
/// First bytes on port 7443, followed by the ticket's 64 hexadecimal digits and a line feed. The
/// hub answers [`RELAY_PAIRED`] once both sides are there; every later byte is the peer's.
pub const RELAY_HELLO: &str = "RLARK-RELAY/1 ";
/// The hub's whole answer on port 7443 when both ends of a ticket have arrived.
pub const RELAY_PAIRED: &[u8] = b"PAIRED\n";

/// Paths that the hub serves.
pub mod hub {
    /// Join token instead of a client certificate: `EnrollRequest` → `EnrollResponse`.
    pub const ENROLL: &str = "/enroll";
    /// `RenewRequest` → `RenewResponse`; the client certificate may have expired at most 30 days ago.
    pub const RENEW: &str = "/renew";
    /// `DomainCertificateRequest` → `DomainCertificateResponse`; nodes only.
    pub const DOMAIN_CERTIFICATES: &str = "/hub/v1/domain-certificates";
    /// `CarrierRequest` → `CarrierTicket`; nodes only. The hub sends the peer a [`super::DialRequest`].
    pub const CARRIERS: &str = "/hub/v1/carriers";
    /// `CarrierRequest` → [`super::DirectOffer`], for an attempt past the hub alone; nodes only. The
    /// hub sends the peer an [`crate::direct::ExpectRequest`].
    pub const DIRECT: &str = "/hub/v1/direct";
    /// `GET`, admins: `Vec<super::NodeFlows>` of all connected nodes.
    pub const FLOWS: &str = "/hub/v1/flows";
    /// `GET`, admins: `Vec<super::MachineSession>`.
    pub const SESSIONS: &str = "/hub/v1/sessions";
    /// `POST`, admins: `TokenRequest` → `TokenResponse`.
    pub const TOKENS: &str = "/hub/v1/tokens";
    /// `POST`, admins: [`super::ProbeRequest`] → [`super::ProbeReport`], forwarded to the source's node.
    pub const PROBE: &str = "/hub/v1/probe";
}

/// Paths that a machine serves to the hub inside its session.
pub mod machine {
    /// Nodes: `POST`, an endless body of [`super::RouteUpdate`] lines.
    pub const ROUTES: &str = "/v1/routes";
    /// Nodes: `GET`, an endless body of [`super::NodeUpdate`] lines.
    pub const REPORT: &str = "/v1/report";
    /// Nodes: `POST` [`super::DialRequest`] → 202.
    pub const DIAL: &str = "/v1/dial";
    /// Nodes: `POST` [`crate::direct::ExpectRequest`] → 202.
    pub const EXPECT: &str = "/v1/expect";
    /// Nodes: `GET` → `Vec<super::Flow>`.
    pub const FLOWS: &str = "/v1/flows";
    /// Nodes: `POST` [`super::ProbeRequest`] → [`super::ProbeReport`].
    pub const PROBE: &str = "/v1/probe";
    /// Agents: `GET /v1/pods/{uid}/log?follow=bool&tailLines=n&previous=bool` → text stream.
    pub const PODS: &str = "/v1/pods";
}

/// The two kinds of machine identities.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MachineRole {
    Agent,
    Node,
}

/// Asks for a join token; it is good for `uses` enrolments into one cluster.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TokenRequest {
    pub cluster: ClusterId,
    pub ttl_seconds: u64,
    pub uses: u32,
}

/// `token` is a secret: shown once, never logged.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TokenResponse {
    pub token: String,
    pub expires: String,
}

impl std::fmt::Debug for TokenResponse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TokenResponse").field("expires", &self.expires).finish_non_exhaustive()
    }
}

/// A machine's first message. The key behind `csr_pem` never leaves the machine.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EnrollRequest {
    pub token: String,
    pub role: MachineRole,
    /// The machine's name within its cluster.
    pub name: crate::ids::NodeName,
    pub csr_pem: String,
}

impl std::fmt::Debug for EnrollRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EnrollRequest")
            .field("role", &self.role)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EnrollResponse {
    pub cluster: ClusterId,
    pub certificate_pem: String,
    pub ca_pem: String,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RenewRequest {
    pub csr_pem: String,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RenewResponse {
    pub certificate_pem: String,
}

/// A node asks for an OpenSSH certificate of a Domain for a key of its own. Given only to a node
/// that hosts a pod of the Domain.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DomainCertificateRequest {
    pub domain: DomainName,
    /// OpenSSH text form, ed25519.
    pub public_key: String,
}

/// The certificate's only principal is the node's [`NodeRef`]; it lives 24 hours.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DomainCertificateResponse {
    /// OpenSSH text form.
    pub certificate: String,
}

/// Which of a pair's two carriers: small messages must not wait behind bulk data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Lane {
    Interactive,
    Bulk,
}

/// A node asks the hub to pair it with `peer`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CarrierRequest {
    pub domain: DomainName,
    pub peer: NodeRef,
    pub lane: Lane,
}

/// One-time, 64 hexadecimal digits, good for 30 seconds.
#[derive(Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CarrierTicket {
    pub ticket: String,
    /// How the peer may be reached past the hub, when one of the two listens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub direct: Option<DirectOffer>,
}

impl std::fmt::Debug for CarrierTicket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CarrierTicket(..)")
    }
}

/// The hub tells a node that `peer` wants a carrier and waits with the same ticket. The one who
/// asked is the SSH client, the one told is the SSH server.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DialRequest {
    pub domain: DomainName,
    pub peer: NodeRef,
    pub lane: Lane,
    pub ticket: CarrierTicket,
}

/// One line of the route stream. The first is always a `Snapshot`; later ones apply in order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "type")]
pub enum RouteUpdate {
    /// Replaces all that was known.
    Snapshot {
        domains: Vec<DomainRoutes>,
    },
    /// Adds or replaces one Domain whole (its CIDR, keys or options changed).
    Domain {
        domain: DomainRoutes,
    },
    /// The node hosts no pod of this Domain any more, or it was deleted.
    DomainGone {
        name: DomainName,
    },
    /// Adds or replaces the member with this uid.
    Member {
        domain: DomainName,
        member: Member,
    },
    MemberGone {
        domain: DomainName,
        uid: String,
    },
    /// What is open at the member with this uid, whole; `None`: not known at the moment.
    Ports {
        domain: DomainName,
        uid: String,
        ports: Option<Ports>,
    },
    /// The machines behind the Domains' other nodes, all of them. A node that is not among them, or
    /// with another machine than before, is cut off.
    Peers {
        peers: Vec<PeerMachine>,
    },
    /// One of them: another machine, or none any more.
    Peer {
        node: NodeRef,
        machine: Option<String>,
    },
    /// Sent every second: it bounds for how long a dead stream can make what is known of ports wrong.
    KeepAlive,
}

/// One line of a node's report; the hub passes it on to the nodes that may know. The first is always a `Snapshot`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "type")]
pub enum NodeUpdate {
    /// Replaces all that was said before.
    Snapshot {
        pods: Vec<PodPorts>,
        /// The node has no hooks: its pods are reached through the relay alone, from their own site as well.
        #[serde(default)]
        relayed_only: bool,
    },
    /// Replaces what was said of one pod.
    Pod {
        pod: PodPorts,
    },
    PodGone {
        domain: DomainName,
        uid: String,
    },
    /// Where this node listens for direct carriers, whole: `addresses`, and at `port` of the address
    /// that the hub sees it come from. Said by nodes that listen, at first and when it changes.
    Direct {
        addresses: Vec<SocketAddr>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        port: Option<u16>,
    },
    /// Every second, for the same reason as [`RouteUpdate::KeepAlive`].
    KeepAlive,
}

/// What a node that hosts a pod of a Domain knows of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DomainRoutes {
    pub name: DomainName,
    /// `network/prefix`, or one of each address family with a comma between.
    pub cidr: String,
    /// The Domain's SSH certificate authority, OpenSSH public key text.
    pub ssh_ca: String,
    /// Whether flows inside a site are encrypted as well.
    #[serde(default)]
    pub encrypt_within_site: bool,
    /// The ports on which members may be reached; `None`: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed_ports: Option<Vec<PortRange>>,
    /// Sorted by uid.
    pub members: Vec<Member>,
}

/// One pod of a Domain.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Member {
    /// The data-plane pod's uid, which is the Pod object's name.
    pub uid: String,
    /// Virtual addresses, one per subnet of the Domain and in their order.
    pub vips: Vec<IpAddr>,
    /// Data-plane name and namespace.
    pub pod: String,
    pub pod_namespace: String,
    /// Where it runs.
    pub node: NodeRef,
    /// The pod's real addresses, at most one per family; meaningful within its own site only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub local_ips: Vec<IpAddr>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub task: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub job: String,
}

impl Member {
    /// The real address of the family of `vip`.
    #[must_use]
    pub fn real_for(&self, vip: IpAddr) -> Option<IpAddr> {
        self.local_ips.iter().find(|real| real.is_ipv4() == vip.is_ipv4()).copied()
    }
}

/// What the data path did with a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    Direct,
    Relay,
    Deny,
}

/// A flow as people see it in `rlark flows`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Flow {
    pub id: u64,
    pub domain: DomainName,
    #[serde(default)]
    pub protocol: Protocol,
    pub from_pod: String,
    pub from: SocketAddr,
    pub to_pod: String,
    pub to: SocketAddr,
    pub verdict: Verdict,
    /// `-` for direct flows, else the carrier's name, such as `hub:site-b/n1:bulk` or
    /// `direct:site-b/n1:bulk`.
    pub carrier: String,
    pub state: FlowState,
    /// From the connecting side to the accepting one, and back.
    pub bytes_out: u64,
    pub bytes_in: u64,
    /// The carrier's smoothed round-trip time in microseconds, when known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rtt_us: Option<u64>,
    /// Segments that the kernel sent again: of a direct flow's own connection, else of its carrier, which it shares. `None`: no TCP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retransmits: Option<u64>,
    /// Packets of a flow of datagrams that this node lost.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub lost: u64,
    pub age_ms: u64,
    /// Whether this node is the connecting side of the flow.
    pub outgoing: bool,
    /// Why a denied, refused or reset flow ended; a stable code such as `refused`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    #[default]
    Tcp,
    Udp,
    Icmp,
}

impl Protocol {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Icmp => "icmp",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FlowState {
    Opening,
    Open,
    HalfClosed,
    Closed,
    Reset,
    Refused,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeFlows {
    pub node: NodeRef,
    pub flows: Vec<Flow>,
    /// Set instead of flows when the node could not be asked.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub error: String,
    /// Counters of refusals by reason code.
    #[serde(default)]
    pub refusals: std::collections::BTreeMap<String, u64>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
const fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// A connected machine.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MachineSession {
    pub role: MachineRole,
    pub machine: NodeRef,
    pub remote: SocketAddr,
    /// Seconds since it connected.
    pub age_seconds: u64,
}

/// Asks the source's node to prove the path between two pods by a real connection made inside the
/// source pod's network namespace.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ProbeRequest {
    pub domain: DomainName,
    /// Pod names or uids.
    pub from: String,
    pub to: String,
    pub port: u16,
}

/// The hops in the order of the path; the first failing one explains the rest.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProbeReport {
    pub hops: Vec<ProbeHop>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProbeHop {
    /// `name`, `policy`, `route`, `carrier`, `listener` or another step of the path.
    pub hop: String,
    pub ok: bool,
    pub detail: String,
}

/// The body of every answer that is not a success, from hub and machines alike.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    /// Stable code, such as `token-expired`.
    pub reason: String,
    /// A sentence that names the object, field or machine.
    pub message: String,
}
