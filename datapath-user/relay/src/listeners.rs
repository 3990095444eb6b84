//! What peers are told of this node's listeners: a pod that says "connect to my port 40123" is right as soon as it says so.

use std::{
    collections::VecDeque,
    time::{Duration, Instant, SystemTime},
};

use control_api::ids::DomainName;

use crate::{
    api::Listening,
    shared::{Hold as _, Shared},
};

/// What is older has reached a peer by the hub.
const RECENT: Duration = Duration::from_secs(3);
const MOST: usize = 256;

/// What was told a moment ago, for carriers that stand a moment later.
pub(crate) struct Recent {
    told: VecDeque<(Instant, DomainName, Listening)>,
    sequence: u64,
}

impl Default for Recent {
    fn default() -> Self {
        // Beyond what an earlier process of this node has said.
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self {
            told: VecDeque::new(),
            sequence: u64::try_from(since.as_nanos()).unwrap_or_default(),
        }
    }
}

impl Recent {
    fn next(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }

    fn add(&mut self, now: Instant, domain: DomainName, told: Listening) {
        self.told.push_back((now, domain, told));
        let is_old = |at: &Instant| now.saturating_duration_since(*at) > RECENT;
        while self.told.len() > MOST || self.told.front().is_some_and(|(at, ..)| is_old(at)) {
            self.told.pop_front();
        }
    }

    pub(crate) fn of<'a>(&'a self, domain: &'a DomainName) -> impl Iterator<Item = Listening> {
        self.told.iter().filter(move |(_, d, _)| d == domain).map(|(.., told)| *told)
    }
}

impl Shared {
    /// Queues what the owner has heard of listeners on every carrier, ahead of all else. Called after bytes were read from an
    /// application and before they are queued; no lock of a link or flow may be held.
    pub(crate) fn tell_listeners(&self) {
        // Held to the end: whoever finds nothing new relies on it that what another has found is queued.
        let mut recent = self.listeners.hold();
        let news = self.deliver.turned();
        if news.is_empty() {
            return;
        }
        let (now, links) = (Instant::now(), self.all_links());
        for (domain, at, open) in news {
            let told = Listening { sequence: recent.next(), at, open };
            let of_domain = links.iter().filter(|link| link.key.domain == domain);
            of_domain.flat_map(|link| link.carriers()).for_each(|c| c.tell_listening(told));
            recent.add(now, domain, told);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_told_a_moment_ago_is_told_again() {
        let (mut recent, now) = (Recent::default(), Instant::now());
        let (d, e): (DomainName, DomainName) = ("d".parse().unwrap(), "e".parse().unwrap());
        let mut told = |port: u16| Listening {
            sequence: recent.next(),
            at: ([10, 98, 0, 1], port).into(),
            open: port > 1,
        };
        let [first, second, third, fourth] = [1, 2, 3, 4].map(&mut told);
        assert!(first.sequence < second.sequence);
        recent.add(now, d.clone(), first);
        recent.add(now + RECENT / 2, e.clone(), second);
        recent.add(now + RECENT * 5 / 4, d.clone(), third);
        assert_eq!(recent.of(&d).collect::<Vec<_>>(), [third]);
        assert_eq!(recent.of(&e).collect::<Vec<_>>(), [second]);
        (0..1000).for_each(|_| recent.add(now + RECENT * 5 / 4, e.clone(), fourth));
        assert_eq!(recent.of(&e).count(), MOST);
    }
}
