//! The bounded log of recent changes, which every watch reads from at its own pace.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::error::WatchError;
use crate::key::Scope;
use crate::object::Object;

/// What happened to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    Added,
    Modified,
    Deleted,
}

/// One change. For a deletion `object` is the last state, stamped with the deletion's revision.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    pub kind: EventKind,
    pub object: Arc<Object>,
    /// The state before; `None` for additions, and for changes read back from disk whose
    /// predecessor had already left the log.
    pub previous: Option<Arc<Object>>,
}

/// Most bytes of objects that the log keeps: large objects shorten it.
const BUDGET: usize = 64 << 20;
/// Most bytes of objects that are taken from the log in one step: what a reader that does not read may hold.
const STEP: usize = 1 << 20;

/// Events in revision order, complete after `floor`.
#[derive(Debug)]
pub(crate) struct Log {
    events: VecDeque<Event>,
    /// Bytes of the objects in `events`.
    bytes: usize,
    floor: u64,
    /// Scopes that are not kept on disk: for them the log is complete only after `volatile_floor`.
    volatile: Vec<Scope>,
    volatile_floor: u64,
    capacity: usize,
}

impl Log {
    pub(crate) fn new(
        capacity: usize,
        floor: u64,
        volatile: Vec<Scope>,
        volatile_floor: u64,
    ) -> Self {
        let capacity = capacity.max(1);
        Self { events: VecDeque::new(), bytes: 0, floor, volatile, volatile_floor, capacity }
    }

    pub(crate) fn push(&mut self, event: Event) {
        self.bytes += event.object.json.len();
        while (self.events.len() >= self.capacity || self.bytes > BUDGET)
            && let Some(oldest) = self.events.pop_front()
        {
            self.bytes -= oldest.object.json.len();
            self.floor = self.floor.max(oldest.object.revision);
        }
        self.events.push_back(event);
    }

    /// Events after `revision`, the latest first; none when the log does not reach back that far for every scope.
    pub(crate) fn back_to(&self, revision: u64) -> Option<impl Iterator<Item = &Event>> {
        if revision < self.floor.max(self.volatile_floor) {
            return None;
        }
        Some(self.events.iter().rev().take_while(move |e| e.object.revision > revision))
    }

    /// The oldest revision a watch of `scope` may start from.
    fn floor_of(&self, scope: &Scope) -> u64 {
        let overlaps = self
            .volatile
            .iter()
            .any(|v| v.start().starts_with(scope.start()) || scope.start().starts_with(v.start()));
        if overlaps { self.floor.max(self.volatile_floor) } else { self.floor }
    }

    /// Up to `limit` events of `scope` after `position`, and the position reached.
    pub(crate) fn after(
        &self,
        scope: &Scope,
        position: u64,
        limit: usize,
        head: u64,
    ) -> Result<(Vec<Event>, u64), WatchError> {
        let floor = self.floor_of(scope);
        if position < floor {
            return Err(WatchError::Expired { wanted: position, floor });
        }
        let start = self.events.partition_point(|e| e.object.revision <= position);
        let mut found = Vec::new();
        let mut bytes = 0;
        for event in self.events.range(start..).filter(|e| scope.contains(&e.object.key)) {
            if found.len() >= limit || bytes >= STEP {
                let reached = found.last().map_or(position, |e: &Event| e.object.revision);
                return Ok((found, reached));
            }
            bytes += event.object.json.len();
            found.push(event.clone());
        }
        Ok((found, head.max(position)))
    }
}
