//! Carriers whose way may be gone: told from those that live by asking, not by waiting for their silence.

use std::{sync::Arc, time::Duration};

use datapath_net::address_watch::is_here;

use super::Link;
use crate::{carrier::Carrier, shared::Shared};

/// How long a carrier that is doubted may take to say something; and at least so many of its round trips.
const ANSWER: Duration = Duration::from_secs(1);
const ROUND_TRIPS: u32 = 8;

impl Link {
    /// This machine's addresses or routes changed: carriers from an address that is gone end, the others must prove
    /// that they live, and what waits for the next attempt tries at once.
    pub(crate) fn moved(self: &Arc<Self>, shared: &Arc<Shared>) {
        for c in self.carriers() {
            if c.local_ip().is_some_and(|ip| !is_here(ip)) {
                c.kill();
            } else {
                doubt(shared, c);
            }
        }
        self.changed.notify_waiters();
    }

    /// The peer dialled or accepted a new carrier of a lane that has one: most likely it lost that one, and knows it
    /// before this end.
    pub(super) fn doubt_others(&self, shared: &Arc<Shared>, new: &Arc<Carrier>) {
        for c in self.carriers() {
            if c.lane == new.lane && !Arc::ptr_eq(&c, new) {
                doubt(shared, c);
            }
        }
    }
}

/// Ends a carrier that says nothing to a question.
fn doubt(shared: &Arc<Shared>, c: Arc<Carrier>) {
    shared.lane(c.lane).spawn(async move {
        let asked = c.asks();
        let limit = ANSWER.max(c.rtt().unwrap_or_default() * ROUND_TRIPS);
        tokio::select! {
            () = c.dead.cancelled() => {}
            () = tokio::time::sleep(limit) => {
                if !c.was_heard_since(asked) {
                    tracing::info!(carrier = %c.name, "the carrier does not answer any more");
                    c.kill();
                }
            }
        }
    });
}
