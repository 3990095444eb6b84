//! Getting carriers, and attaching flows that have none or want another lane. One task per link,
//! alive only while some flow needs it.

use std::{sync::Arc, time::Duration};

use rand::RngExt as _;
use tokio::time::Instant;

use super::Link;
use crate::{
    api::{Lane, RelayError},
    flow::{Flow, Need},
    shared::{Hold as _, Shared, add},
    ssh,
};

const BACKOFF: Duration = Duration::from_millis(50);
/// How long a carrier is tried for that no flow waits for.
const WARM: Duration = Duration::from_secs(60);

impl Link {
    /// Sees to it that flows without a carrier get one. Called whenever that may have become
    /// necessary or possible.
    pub(crate) fn tend(self: &Arc<Self>, shared: &Arc<Shared>) {
        {
            let mut s = self.state.hold();
            if s.tending || s.gone {
                return;
            }
            s.tending = true;
        }
        let (me, shared2) = (Arc::clone(self), Arc::clone(shared));
        shared.lane(Lane::Interactive).spawn(async move { me.tending(&shared2).await });
    }

    /// Wakes the tender: a flow's need is new.
    pub(crate) fn need(self: &Arc<Self>, shared: &Arc<Shared>) {
        self.tend(shared);
        self.changed.notify_waiters();
    }

    /// Wants an interactive carrier before a flow needs one, for a while.
    pub(crate) fn warm(self: &Arc<Self>, shared: &Arc<Shared>) {
        if self.carrier(Lane::Interactive).is_none() {
            self.state.hold().warm_until = Some(Instant::now() + WARM);
            self.dial(shared, Lane::Interactive);
        }
    }

    async fn tending(self: &Arc<Self>, shared: &Arc<Shared>) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            let needy: Vec<(Arc<Flow>, Need)> =
                self.flows().into_iter().filter_map(|f| f.need().map(|n| (f, n))).collect();
            let mut next: Option<Instant> = None;
            let mut waiting = false;
            for (flow, need) in needy {
                if self.satisfy(shared, &flow, need) {
                    continue;
                }
                waiting = true;
                if let Need::Carrier { until, .. } = need {
                    next = Some(next.map_or(until, |n| n.min(until)));
                }
            }
            if !waiting {
                let mut s = self.state.hold();
                // A flow that came since is listed now and sees `tending` false later.
                if s.gone || !s.flows.values().any(|f| f.need().is_some()) {
                    s.tending = false;
                    return;
                }
                continue;
            }
            let pause = next.unwrap_or_else(|| Instant::now() + Duration::from_secs(3600));
            tokio::select! { () = changed => {}, () = tokio::time::sleep_until(pause) => {} }
        }
    }

    /// True when nothing is left to wait for.
    fn satisfy(self: &Arc<Self>, shared: &Arc<Shared>, flow: &Arc<Flow>, need: Need) -> bool {
        match need {
            Need::Carrier { until, lane, opener } => {
                if Instant::now() >= until {
                    flow.out_of_time();
                    return true;
                }
                if !opener {
                    return false;
                }
                if let Some(c) = self.any_carrier(lane)
                    && flow.attach(shared, &c)
                {
                    return true;
                }
                self.dial(shared, Lane::Interactive);
                false
            }
            Need::Lane(lane) => {
                if let Some(c) = self.carrier(lane)
                    && flow.attach(shared, &c)
                {
                    add(&shared.tally.moved);
                    return true;
                }
                self.dial(shared, lane);
                false
            }
        }
    }

    /// Whether somebody waits for a carrier of `lane`.
    fn is_wanted(&self, lane: Lane) -> bool {
        let s = self.state.hold();
        let wants = |f: &Arc<Flow>| match f.need() {
            Some(Need::Carrier { opener, .. }) => opener && lane == Lane::Interactive,
            Some(Need::Lane(l)) => l == lane,
            None => false,
        };
        let warm = s.warm_until.is_some_and(|t| t > Instant::now());
        !s.gone && ((warm && lane == Lane::Interactive) || s.flows.values().any(wants))
    }

    /// Starts dialling unless it is under way.
    fn dial(self: &Arc<Self>, shared: &Arc<Shared>, lane: Lane) {
        {
            let mut s = self.state.hold();
            let Some(d) = s.dialing.get_mut(usize::from(lane == Lane::Bulk)) else { return };
            if std::mem::replace(d, true) {
                return;
            }
        }
        let (me, shared2) = (Arc::clone(self), Arc::clone(shared));
        shared.lane(lane).spawn(async move {
            me.dialing(&shared2, lane).await;
            if lane == Lane::Interactive && me.carrier(lane).is_none() {
                me.drop_waiting(&shared2);
            }
            if let Some(d) = me.state.hold().dialing.get_mut(usize::from(lane == Lane::Bulk)) {
                *d = false;
            }
            // Who asked between the last look and now looks again.
            me.changed.notify_waiters();
        });
    }

    async fn dialing(self: &Arc<Self>, shared: &Arc<Shared>, lane: Lane) {
        let mut backoff = BACKOFF;
        while self.carrier(lane).is_none() && self.is_wanted(lane) {
            let longest = match self.dial_once(shared, lane).await {
                Ok(()) => return,
                Err(e) => {
                    add(&shared.tally.dials_failed);
                    tracing::debug!(error = %e, "dialling a carrier");
                    let (closed, max) = (shared.config.backoff_closed, shared.config.backoff_max);
                    if e.is_closed() { closed } else { max }
                }
            };
            backoff = backoff.min(longest);
            let pause = backoff.mul_f64(rand::rng().random_range(0.5..1.0));
            backoff *= 2;
            // A carrier that the peer dialled ends the wait.
            let changed = self.changed.notified();
            tokio::select! { () = tokio::time::sleep(pause) => {}, () = changed => {} }
        }
    }

    async fn dial_once(
        self: &Arc<Self>,
        shared: &Arc<Shared>,
        lane: Lane,
    ) -> Result<(), RelayError> {
        let domain = &self.key.domain;
        let identity = shared
            .identity(domain)
            .ok_or_else(|| RelayError::NoIdentity { domain: domain.clone() })?;
        let fail = |source| RelayError::Path {
            domain: domain.clone(),
            peer: self.key.peer.clone(),
            source,
        };
        let late = |elapsed: tokio::time::error::Elapsed| fail(elapsed.into());
        let until = Instant::now() + shared.config.dial_timeout;
        let race = shared.paths.race(domain, &self.key.peer, lane);
        let race = tokio::time::timeout_at(until, race).await.map_err(late)?.map_err(fail)?;
        match race.direct {
            Some(direct) => self.race_direct(shared, lane, direct),
            None => self.miss_direct(shared),
        }
        let path = tokio::select! {
            path = tokio::time::timeout_at(until, race.hub) => path.map_err(late)?,
            // Nobody waits for the hub any more; who waits there for us sees us go.
            () = self.until_direct(lane) => return Ok(()),
        };
        let path = path.map_err(fail)?;
        ssh::connect(shared, self, identity, lane, path).await
    }
}
