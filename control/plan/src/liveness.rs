//! Whether a site's agent is heard of.
//!
//! The clocks of machines differ, so the time inside a Lease says nothing. What counts is when the
//! control plane last *saw it change* on its own clock.

use std::time::Duration;

use control_api::v1alpha1::{Node, NodePhase};

/// An agent renews its Lease every ten seconds and is lost after four misses.
pub const GRACE: Duration = Duration::from_secs(40);
/// `status.reason` of a Node that this control plane took offline.
pub const HEARTBEAT_LOST: &str = "AgentHeartbeatLost";

/// What to do with a Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing; look again after this time, if any.
    Keep(Option<Duration>),
    /// Write this phase and reason.
    Set(NodePhase, &'static str),
}

/// Judges a Node by the age of the last change of its agent's Lease; `None`: there is no Lease.
#[must_use]
pub fn judge(node: &Node, age: Option<Duration>, grace: Duration) -> Verdict {
    let Some(age) = age else { return Verdict::Keep(None) };
    let status = node.status.as_ref();
    let phase = status.and_then(|s| s.phase.as_ref());
    let by_us = status.is_some_and(|s| s.reason == HEARTBEAT_LOST);
    match grace.checked_sub(age).filter(|left| !left.is_zero()) {
        None if phase == Some(&NodePhase::Offline) => Verdict::Keep(None),
        None => Verdict::Set(NodePhase::Offline, HEARTBEAT_LOST),
        Some(_) if phase == Some(&NodePhase::Offline) && by_us => {
            Verdict::Set(NodePhase::Online, "")
        }
        Some(left) => Verdict::Keep(Some(left)),
    }
}

#[cfg(test)]
mod tests {
    use control_api::v1alpha1::{NodeSpec, NodeStatus};

    use super::*;

    fn node(phase: NodePhase, reason: &str) -> Node {
        let mut n = Node::new("n", NodeSpec::default());
        n.status =
            Some(NodeStatus { phase: Some(phase), reason: reason.into(), ..NodeStatus::default() });
        n
    }
    const S: Duration = Duration::from_secs(1);

    #[test]
    fn a_silent_agent_is_offline_after_the_grace_and_online_when_heard_again() {
        let online = node(NodePhase::Online, "");
        assert_eq!(judge(&online, Some(10 * S), GRACE), Verdict::Keep(Some(30 * S)));
        assert_eq!(
            judge(&online, Some(40 * S), GRACE),
            Verdict::Set(NodePhase::Offline, HEARTBEAT_LOST)
        );
        let lost = node(NodePhase::Offline, HEARTBEAT_LOST);
        assert_eq!(judge(&lost, Some(50 * S), GRACE), Verdict::Keep(None));
        assert_eq!(judge(&lost, Some(S), GRACE), Verdict::Set(NodePhase::Online, ""));
    }

    #[test]
    fn without_a_lease_and_when_the_agent_itself_said_offline_nothing_changes() {
        assert_eq!(judge(&node(NodePhase::Online, ""), None, GRACE), Verdict::Keep(None));
        let said = node(NodePhase::Offline, "NotReady");
        assert_eq!(judge(&said, Some(S), GRACE), Verdict::Keep(Some(39 * S)));
    }
}
