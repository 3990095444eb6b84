//! What happens on a node, as it happens: `GET` [`PATH`] on the node's socket answers with one [`Event`] as JSON a line, until the
//! reader goes or the node stops. Only what begins after the call is told. A reader that is slow loses events, and is told how
//! many ([`What::Lost`]).

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::{
    ids::{DomainName, NodeRef},
    session::{Flow, Protocol},
};

/// On the node's socket.
pub const PATH: &str = "/v1/events";

/// One line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Event {
    /// Milliseconds since 1970, by the node's clock.
    pub at_ms: u64,
    #[serde(flatten)]
    pub what: What,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", tag = "type")]
pub enum What {
    /// The first line of every stream: from now on all is told.
    Listening {
        node: NodeRef,
    },
    /// A connection stands, or the first datagram of a pair passed.
    Opened(Flow),
    /// It ended; [`Flow::age_ms`] is how long it lasted. A datagram flow ends by silence.
    Closed(Flow),
    /// A connection that never stood, or a datagram that was not let through.
    Refused(Refused),
    CarrierUp(CarrierChange),
    CarrierDown(CarrierChange),
    /// So many events were not told to this reader, because it read too slowly or too much happened at once.
    Lost {
        events: u64,
    },
}

/// Who was refused what.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Refused {
    pub domain: DomainName,
    pub protocol: Protocol,
    /// `-`: not known.
    pub from_pod: String,
    /// The port is 0 where a connect had none yet.
    pub from: SocketAddr,
    pub to_pod: String,
    pub to: SocketAddr,
    /// Stable code: the kernel's (`no_listener`, `unknown_vip`, …) or the relay's (`refused`, `denied`, …).
    pub reason: String,
    /// What the program is told; `None`: a reset, or nothing at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub errno: Option<u32>,
    pub by: Refuser,
    /// The process that asked, as the machine numbers it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
}

/// Where it was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Refuser {
    /// The hooks, inside the call.
    Kernel,
    /// This machine's node.
    Node,
    /// The far end, or the way to it.
    Peer,
}

/// A carrier came or went.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CarrierChange {
    pub domain: DomainName,
    pub peer: NodeRef,
    /// Path, peer and lane, such as `hub:site-b/n1:bulk`.
    pub carrier: String,
    /// Why it went.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_flat_and_says_its_type() {
        let what = What::CarrierDown(CarrierChange {
            domain: "d".parse().unwrap(),
            peer: "s/n".parse().unwrap(),
            carrier: "hub:s/n:bulk".into(),
            why: "silent".into(),
        });
        let event = Event { at_ms: 7, what };
        let line = serde_json::to_string(&event).unwrap();
        let want = r#"{"atMs":7,"type":"carrierDown","domain":"d","peer":"s/n","carrier":"hub:s/n:bulk","why":"silent"}"#;
        assert_eq!(line, want);
        assert_eq!(serde_json::from_str::<Event>(&line).unwrap(), event);
    }
}
