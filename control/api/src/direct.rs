//! Direct carriers: what nodes and hub say of a TCP connection from node to node, past the hub.
//!
//! The hub gives both ends a one-time ticket through their sessions and to each the other's
//! addresses. The dialling end sends one line, [`HELLO`] and the ticket, so that a stranger at the
//! port costs a short read and no cryptography; inside is the same SSH as through the hub.

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use crate::{
    ids::{DomainName, NodeRef},
    session::Lane,
};

/// First bytes at a node's direct port, followed by the ticket's 64 hexadecimal digits and a line
/// feed. They name neither Domain nor peer, which the ticket stands for and a listener on the way
/// need not know. The answer is [`READY`], and every later byte SSH.
pub const HELLO: &str = "RLARK-DIRECT/1 ";
/// The node's whole answer to a ticket that it expects.
pub const READY: &[u8] = b"READY\n";
/// The most addresses of a node that are passed on and tried.
pub const MAX_ADDRESSES: usize = 8;
/// Peers are never sent to a port below this one: it may be any service of their own network.
pub const LEAST_PORT: u16 = 1024;

/// The hub's reason to refuse an attempt past it: the peer listens nowhere.
pub const NO_DIRECT_ADDRESS: &str = "no-direct-address";

/// What one end is given for one attempt.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DirectOffer {
    /// One-time, 64 hexadecimal digits, good for 30 seconds. Another secret than the ticket for the
    /// hub's relay, since it crosses the network in the clear.
    pub ticket: String,
    /// Where the *other* end listens; empty when it does not.
    pub addresses: Vec<SocketAddr>,
}

impl std::fmt::Debug for DirectOffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DirectOffer").field("addresses", &self.addresses).finish_non_exhaustive()
    }
}

/// The hub tells a node that `peer` may dial its direct port with this ticket, for `domain` and
/// `lane`, and where the node in its turn may dial `peer`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ExpectRequest {
    pub domain: DomainName,
    pub peer: NodeRef,
    pub lane: Lane,
    pub offer: DirectOffer,
}

/// The machine behind a peer: who is cut off when it is removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PeerMachine {
    pub node: NodeRef,
    /// Changes when the machine is enrolled anew under its name, not when it renews a certificate.
    pub machine: String,
}

/// Whether a peer can be sent there: an address of one machine, beyond its own link, and no port of
/// the well-known ones.
#[must_use]
pub fn is_plausible(address: &SocketAddr) -> bool {
    let ip = address.ip().to_canonical();
    let nowhere = ip.is_unspecified() || ip.is_loopback() || ip.is_multicast();
    let link = match ip {
        IpAddr::V4(v4) => v4.is_link_local() || v4.is_broadcast() || v4.octets()[0] == 0,
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    !nowhere && !link && address.port() >= LEAST_PORT
}

/// What may be passed on or tried of a list that somebody else wrote: plausible, each once, in
/// order, at most [`MAX_ADDRESSES`].
#[must_use]
pub fn tidy(addresses: impl IntoIterator<Item = SocketAddr>) -> Vec<SocketAddr> {
    let mut all: Vec<SocketAddr> = Vec::new();
    for address in addresses {
        let address = SocketAddr::new(address.ip().to_canonical(), address.port());
        if all.len() < MAX_ADDRESSES && is_plausible(&address) && !all.contains(&address) {
            all.push(address);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_of_one_machine_beyond_its_link_are_kept() {
        let parse = |s: &&str| s.parse::<SocketAddr>().unwrap();
        let bad = [
            "127.0.0.1:7400",
            "[::ffff:127.0.0.1]:7400",
            "0.0.0.0:7400",
            "0.1.2.3:7400",
            "255.255.255.255:7400",
            "224.0.0.1:7400",
            "169.254.169.254:7400",
            "[::1]:7400",
            "[::]:7400",
            "[fe80::1]:7400",
            "[ff02::1]:7400",
            "192.0.2.1:0",
            "192.0.2.1:22",
        ];
        assert_eq!(tidy(bad.iter().map(parse)), []);
        let good = ["192.0.2.1:7400", "10.0.0.1:1024", "[2001:db8::1]:7400", "[fd00::1]:7400"];
        let good: Vec<SocketAddr> = good.iter().map(parse).collect();
        assert_eq!(tidy(good.iter().copied()), good);
        let mapped = ["[::ffff:192.0.2.1]:7400", "192.0.2.1:7400"];
        assert_eq!(tidy(mapped.iter().map(parse)), [parse(&"192.0.2.1:7400")]);
        let many = (0..100).map(|i| SocketAddr::from(([192, 0, 2, i], 7400)));
        assert_eq!(tidy(many).len(), MAX_ADDRESSES);
    }

    #[test]
    fn a_ticket_is_not_logged() {
        let offer = DirectOffer { ticket: "secret".to_owned(), addresses: vec![] };
        assert!(!format!("{offer:?}").contains("secret"));
    }
}
