//! The direct way to a peer, past the hub: tried beside the hub whenever a carrier is needed, and
//! again from time to time while only the hub's stands. Flows that we opened move to it when it
//! stands ([`Link::upgrade`]); the peer moves its own.
//!
//! ```text
//!   nothing known ─ offer, race, probe ─▶ due ─ attempt ─▶ stands ─ broke ─▶ due (at once, in the race)
//!         ▲                                │ failed            └ broke within a minute ─▶ rests
//!         └── the peer listens nowhere ────┘──▶ rests for `direct_every`, then due
//! ```

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use rand::RngExt as _;
use tokio::time::Instant;

use super::{Link, State};
use crate::{
    api::{BoxFuture, Lane, Path, RelayConfig, Via},
    carrier::Carrier,
    shared::{Hold as _, Shared, add},
    ssh,
};

/// A direct carrier that breaks sooner is not trusted: its peer rests before it is tried again.
const TRUSTED_AFTER: Duration = Duration::from_secs(60);
/// A change of addresses comes in several steps.
const SETTLE: Duration = Duration::from_millis(500);

/// What a link knows of the direct way.
#[derive(Default)]
pub(super) struct Direct {
    /// A task tries when `next` has come.
    runs: bool,
    /// `None`: there is nothing to try until somebody says so.
    next: Option<Instant>,
    /// Not even in a race before this: it stood and broke at once.
    rests_until: Option<Instant>,
    /// Where the peer says that it listens.
    offered: Vec<SocketAddr>,
    /// Why the last attempt came to nothing.
    pub(super) failure: Option<String>,
    /// The peer was cut off: no direct carrier is let in before this.
    closed_until: Option<Instant>,
}

impl Direct {
    /// When an attempt may be made, if not now.
    fn barred_until(&self) -> Option<Instant> {
        self.rests_until.max(self.closed_until).filter(|t| *t > Instant::now())
    }

    /// An attempt ended. The next is due `again`, or sooner where somebody asked for that meanwhile: what ended began
    /// before, and may have been of the other lane.
    fn ended(&mut self, now: Instant, again: Instant, failure: Option<&io::Error>) {
        let asked = self.next.filter(|next| *next > now);
        self.next = match failure {
            Some(e) if e.kind() == io::ErrorKind::Unsupported => asked,
            _ => Some(asked.map_or(again, |next| next.min(again))),
        };
        self.failure = failure.map(ToString::to_string);
    }
}

/// Not at the same moment as everybody else who lost the same path.
fn later(every: Duration) -> Instant {
    Instant::now() + every.mul_f64(rand::rng().random_range(0.8..1.2))
}

impl State {
    /// The best living carrier of `lane`: a direct one, and of those the newest.
    pub(super) fn best(&self, lane: Lane) -> Option<&Arc<Carrier>> {
        let of_lane = self.carriers.iter().filter(|c| c.lane == lane && !c.is_dead());
        // Of equals the last is taken.
        of_lane.max_by_key(|c| c.via == Via::Direct)
    }

    /// Lanes that have a carrier through the hub and no better one.
    fn improvable(&self) -> Vec<Lane> {
        let only_hub = |lane: &Lane| self.best(*lane).is_some_and(|c| c.via == Via::Hub);
        [Lane::Interactive, Lane::Bulk].into_iter().filter(only_hub).collect()
    }

    /// Carriers through the hub need not stay while a direct one does their work.
    pub(super) fn mark_spare(&self) {
        for c in &self.carriers {
            let spare =
                c.via == Via::Hub && self.best(c.lane).is_some_and(|b| b.via == Via::Direct);
            c.spare.store(spare, Relaxed);
        }
    }
}

impl Link {
    /// Whether a direct carrier of `lane` stands.
    pub(super) fn is_direct(&self, lane: Lane) -> bool {
        self.state.hold().best(lane).is_some_and(|c| c.via == Via::Direct)
    }

    /// Resolves when a direct carrier of `lane` stands.
    pub(super) async fn until_direct(&self, lane: Lane) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if self.is_direct(lane) {
                return;
            }
            changed.await;
        }
    }

    /// Whether a carrier that is proved and greeted may be used; the peer may be cut off meanwhile.
    pub(super) fn admits(s: &State, carrier: &Carrier) -> bool {
        carrier.via == Via::Hub || s.direct.closed_until.is_none_or(|t| t < Instant::now())
    }

    /// Moves the flows that we opened from the hub's carrier of the lane to this direct one.
    pub(super) fn upgrade(&self, shared: &Shared, carrier: &Arc<Carrier>) {
        for flow in self.flows() {
            if flow.is_opened_by_hub(carrier.lane) && flow.attach(shared, carrier) {
                add(&shared.tally.upgraded);
            }
        }
    }

    /// The second way of a race. What comes of it shows in the link's carriers.
    pub(super) fn race_direct(
        self: &Arc<Self>,
        shared: &Arc<Shared>,
        lane: Lane,
        dial: BoxFuture<'static, io::Result<Path>>,
    ) {
        if self.state.hold().direct.barred_until().is_some() {
            return;
        }
        let (me, shared2) = (Arc::clone(self), Arc::clone(shared));
        shared.lane(lane).spawn(async move {
            let result = me.make_direct(&shared2, lane, dial).await;
            me.tried(&shared2.config, result.err());
            me.improve(&shared2);
        });
    }

    /// A race had no direct way, though the peer was known to listen: it or the hub has just started
    /// and has not said so yet.
    pub(super) fn miss_direct(&self, shared: &Shared) {
        let mut s = self.state.hold();
        if let Some(next) = s.direct.next {
            s.direct.next = Some(next.min(later(shared.config.offer_delay)));
        }
    }

    /// On the lane's own thread, where the carrier is to live.
    async fn attempt(self: &Arc<Self>, shared: &Arc<Shared>, lane: Lane) -> io::Result<()> {
        let (me, shared2) = (Arc::clone(self), Arc::clone(shared));
        let work = async move {
            let dial = shared2.paths.dial_direct(&me.key.domain, &me.key.peer, lane);
            me.make_direct(&shared2, lane, dial).await
        };
        shared.lane(lane).handle.spawn(work).await.map_err(io::Error::other)?
    }

    async fn make_direct(
        self: &Arc<Self>,
        shared: &Arc<Shared>,
        lane: Lane,
        dial: BoxFuture<'_, io::Result<Path>>,
    ) -> io::Result<()> {
        let none = || io::Error::other("no identity in the Domain");
        let path = tokio::time::timeout(shared.config.dial_timeout, dial).await??;
        let identity = shared.identity(&self.key.domain).ok_or_else(none)?;
        ssh::connect(shared, self, identity, lane, path).await.map_err(io::Error::other)
    }

    /// Remembers how an attempt ended and when the next is due.
    fn tried(&self, config: &RelayConfig, failure: Option<io::Error>) {
        if let Some(error) = &failure {
            tracing::debug!(peer = %self.key.peer, %error, "no direct carrier");
        }
        let again = later(config.direct_every);
        self.state.hold().direct.ended(Instant::now(), again, failure.as_ref());
    }

    /// A direct carrier is gone. One that never stood for long is not tried again at once: flows
    /// would wait for its end time and again.
    pub(super) fn direct_lost(&self, config: &RelayConfig, carrier: &Carrier, why: &'static str) {
        let broke = !matches!(why, "idle" | "the peer's certificate ended");
        if carrier.via == Via::Direct && broke && carrier.born.elapsed() < TRUSTED_AFTER {
            let mut s = self.state.hold();
            s.direct.rests_until = Some(later(config.direct_every));
            s.direct.failure = Some(format!("it broke after {:?}", carrier.born.elapsed()));
        }
    }

    /// A peer that started anew is judged anew.
    pub(super) fn forget_rest(s: &mut State) {
        s.direct.rests_until = None;
    }

    /// The peer says where it listens. Tried soon, unless that is known and was tried: by then its
    /// own attempt may have made a carrier for both.
    pub(crate) fn offer(self: &Arc<Self>, shared: &Arc<Shared>, addresses: &[SocketAddr]) {
        {
            let mut s = self.state.hold();
            if s.direct.offered == addresses && s.direct.next.is_some() {
                return;
            }
            addresses.clone_into(&mut s.direct.offered);
            if addresses.is_empty() {
                return;
            }
            let jitter = rand::rng().random_range(1.0..1.5);
            let due = Instant::now() + shared.config.offer_delay.mul_f64(jitter);
            s.direct.next = Some(s.direct.next.map_or(due, |next| next.min(due)));
        }
        self.improve(shared);
    }

    /// The network changed: what failed may work now.
    pub(crate) fn probe(self: &Arc<Self>, shared: &Arc<Shared>) {
        {
            let mut s = self.state.hold();
            s.direct.rests_until = None;
            s.direct.next = Some(later(SETTLE));
        }
        self.improve(shared);
    }

    /// Closes direct carriers, and lets none in that was begun before. Flows look for another.
    pub(crate) fn cut_direct(&self, config: &RelayConfig) {
        let carriers = {
            let mut s = self.state.hold();
            s.direct.closed_until = Some(Instant::now() + config.cut_for);
            s.direct.offered.clear();
            s.carriers.clone()
        };
        carriers.iter().filter(|c| c.via == Via::Direct).for_each(|c| c.kill());
    }

    /// Whether a direct carrier stands, and why the last attempt at one failed.
    pub(crate) fn direct_state(&self) -> (bool, Option<String>) {
        let s = self.state.hold();
        let stands = s.carriers.iter().any(|c| c.via == Via::Direct && !c.is_dead());
        (stands, s.direct.failure.clone().filter(|_| !stands))
    }

    /// Starts the task that tries again, or has it look again, when there is something to try.
    pub(super) fn improve(self: &Arc<Self>, shared: &Arc<Shared>) {
        {
            let mut s = self.state.hold();
            if s.direct.runs {
                drop(s);
                return self.improving.notify_waiters();
            }
            if s.gone || s.direct.next.is_none() || s.improvable().is_empty() {
                return;
            }
            s.direct.runs = true;
        }
        let (me, shared2) = (Arc::clone(self), Arc::clone(shared));
        shared.lane(Lane::Interactive).spawn(async move { me.improving(&shared2).await });
    }

    async fn improving(self: &Arc<Self>, shared: &Arc<Shared>) {
        loop {
            let changed = self.improving.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let (due, lanes) = {
                let mut s = self.state.hold();
                let lanes = s.improvable();
                let next = s.direct.next.filter(|_| !s.gone && !lanes.is_empty());
                let Some(next) = next else {
                    s.direct.runs = false;
                    return;
                };
                (s.direct.barred_until().map_or(next, |bar| bar.max(next)), lanes)
            };
            if Instant::now() < due {
                tokio::select! { () = changed => {}, () = tokio::time::sleep_until(due) => {} }
                continue;
            }
            for lane in lanes {
                let failure = self.attempt(shared, lane).await.err();
                let failed = failure.is_some();
                self.tried(&shared.config, failure);
                if failed {
                    break;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERY: Duration = Duration::from_secs(60);

    #[test]
    fn an_attempt_that_ends_does_not_put_off_one_that_was_asked_for_meanwhile() {
        let now = Instant::now();
        let asked = Some(now + SETTLE);
        let failure = io::Error::other("no way");
        let nowhere = io::Error::from(io::ErrorKind::Unsupported);
        for end in [None, Some(&failure), Some(&nowhere)] {
            let mut d = Direct { next: asked, ..Direct::default() };
            d.ended(now, now + EVERY, end);
            assert_eq!(d.next, asked, "{end:?}");
        }
    }

    #[test]
    fn an_attempt_that_was_due_is_followed_by_one_a_while_later_or_by_none() {
        let now = Instant::now();
        let nowhere = io::Error::from(io::ErrorKind::Unsupported);
        let mut d = Direct { next: Some(now), ..Direct::default() };
        d.ended(now, now + EVERY, None);
        assert_eq!(d.next, Some(now + EVERY));
        d.ended(now + EVERY, now + EVERY * 2, Some(&nowhere));
        assert_eq!(d.next, None);
        assert!(d.failure.is_some());
    }
}
