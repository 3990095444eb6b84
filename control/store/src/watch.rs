//! A reader of the log.

use std::sync::Arc;

use tokio::sync::watch;

use crate::error::WatchError;
use crate::key::Scope;
use crate::log::Event;
use crate::workspace::Shared;

/// Events taken from the log in one step; what is left waits in the log.
const BATCH: usize = 256;

/// Follows one scope from a revision on. It holds a position and no queue: a reader that is slower
/// than the log is long gets [`WatchError::Expired`] and costs nobody else anything.
#[derive(Debug)]
pub struct Watch {
    shared: Arc<Shared>,
    scope: Scope,
    position: u64,
    head: watch::Receiver<u64>,
}

impl Watch {
    pub(crate) fn new(shared: Arc<Shared>, scope: Scope, position: u64) -> Self {
        let head = shared.head();
        Self { shared, scope, position, head }
    }

    /// Everything up to this revision has been returned: what a bookmark may say.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Events that are there already, possibly none.
    pub fn ready(&mut self) -> Result<Vec<Event>, WatchError> {
        let (events, position) = self.shared.events_after(&self.scope, self.position, BATCH)?;
        self.position = position;
        Ok(events)
    }

    /// Waits for events of the scope; never returns an empty list. Cancel-safe.
    pub async fn next(&mut self) -> Result<Vec<Event>, WatchError> {
        loop {
            self.head.mark_unchanged();
            let events = self.ready()?;
            if !events.is_empty() {
                return Ok(events);
            }
            self.head.changed().await.map_err(|_closed| WatchError::Closed)?;
        }
    }
}
