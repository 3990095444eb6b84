//! The tickets with which peers may come to our port: from the hub, each for one peer, Domain and
//! lane, once, and not for long.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use control_api::ids::{DomainName, NodeRef};
use control_identity::KeyHash;
use datapath_relay::Lane;

/// As long as the hub keeps a ticket.
const LIFE: Duration = Duration::from_secs(30);
/// Two lanes with each of so many peers at a time; further ones come through the hub.
const MAX: usize = 2048;
/// And of one peer, in all Domains: it must not take the others' room.
const MAX_OF_ONE: usize = 64;

/// For whom a ticket stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meeting {
    pub domain: DomainName,
    pub peer: NodeRef,
    pub lane: Lane,
}

/// By their hash, so that the time a look-up takes tells nothing of others.
#[derive(Default)]
pub struct Expected(Mutex<HashMap<KeyHash, (Instant, Meeting)>>);

impl std::fmt::Debug for Expected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Expected(..)")
    }
}

impl Expected {
    fn hold(&self) -> MutexGuard<'_, HashMap<KeyHash, (Instant, Meeting)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on `ticket` admits one connection. False when too many are expected already.
    pub fn expect(&self, now: Instant, ticket: &str, meeting: Meeting) -> bool {
        let mut all = self.hold();
        all.retain(|_, (until, _)| *until > now);
        let of_one = all.values().filter(|(_, m)| m.peer == meeting.peer).count();
        if all.len() >= MAX || of_one >= MAX_OF_ONE {
            return false;
        }
        all.insert(KeyHash::of_spki(ticket.as_bytes()), (now + LIFE, meeting));
        true
    }

    /// Somebody shows `ticket`: whom to expect behind it. It is spent.
    pub fn take(&self, now: Instant, ticket: &str) -> Option<Meeting> {
        let entry = self.hold().remove(&KeyHash::of_spki(ticket.as_bytes()));
        entry.filter(|(until, _)| *until > now).map(|(_, meeting)| meeting)
    }

    /// `peer` is to come no more.
    pub fn revoke(&self, peer: &NodeRef) {
        self.hold().retain(|_, (_, meeting)| meeting.peer != *peer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meeting(peer: &str) -> Meeting {
        Meeting {
            domain: "d".parse().unwrap(),
            peer: peer.parse().unwrap(),
            lane: Lane::Interactive,
        }
    }

    #[test]
    fn a_ticket_is_good_once_in_time_and_until_its_peer_is_revoked() {
        let (all, now) = (Expected::default(), Instant::now());
        assert!(all.expect(now, "a", meeting("s/n1")));
        assert_eq!(all.take(now, "a"), Some(meeting("s/n1")));
        assert_eq!(all.take(now, "a"), None, "spent");
        assert_eq!(all.take(now, "b"), None, "unknown");
        assert!(all.expect(now, "late", meeting("s/n1")));
        assert_eq!(all.take(now + LIFE, "late"), None);
        assert!(
            all.expect(now, "gone", meeting("s/n1")) && all.expect(now, "stays", meeting("s/n2"))
        );
        all.revoke(&"s/n1".parse().unwrap());
        assert_eq!(all.take(now, "gone"), None);
        assert_eq!(all.take(now, "stays"), Some(meeting("s/n2")));
    }

    #[test]
    fn no_more_than_so_many_are_kept_and_old_ones_make_room() {
        let (all, now) = (Expected::default(), Instant::now());
        for i in 0..MAX {
            let peer = meeting(&format!("s/n{}", i / MAX_OF_ONE));
            assert!(all.expect(now, &i.to_string(), peer.clone()));
            let is_last = i % MAX_OF_ONE == MAX_OF_ONE - 1;
            assert!(!is_last || !all.expect(now, "another of it", peer));
        }
        assert!(!all.expect(now, "more", meeting("s/other")));
        assert!(all.expect(now + LIFE, "more", meeting("s/other")));
    }
}
