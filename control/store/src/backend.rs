//! Where committed writes go.

use std::sync::Arc;

use crate::log::{Event, EventKind};
use crate::object::Object;

/// What a backend held when it was opened.
#[derive(Debug, Default)]
pub(crate) struct Loaded {
    pub(crate) revision: u64,
    pub(crate) objects: Vec<Arc<Object>>,
    /// Kept history, oldest first: the kind and the object as of that event.
    pub(crate) history: Vec<(EventKind, Arc<Object>)>,
    /// Revisions up to this one are no longer in `history`.
    pub(crate) floor: u64,
}

/// Makes batches durable. Called by the committer thread alone.
pub(crate) trait Backend: Send {
    /// Returns once the whole batch is on disk, or an error when nothing of it is.
    fn commit(&mut self, batch: &[Event]) -> Result<(), String>;
}

/// Keeps nothing: for tests and throw-away workspaces.
#[derive(Debug, Default, Clone, Copy)]
pub struct Memory;

impl Backend for Memory {
    fn commit(&mut self, _batch: &[Event]) -> Result<(), String> {
        Ok(())
    }
}
