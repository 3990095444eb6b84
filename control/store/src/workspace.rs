//! A workspace: current state, pending writes, log.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use tokio::sync::{Semaphore, oneshot, watch};

use crate::backend::{Backend, Loaded, Memory};
use crate::committer::{Committer, Pending, Queue};
use crate::disk::Database;
use crate::error::{OpenError, WatchError, WriteError};
use crate::key::{Key, Scope};
use crate::log::{Event, EventKind, Log};
use crate::object::Object;
use crate::snapshot::{Snapshot, State};
use crate::watch::Watch;

/// Writes that may wait for the disk at once; further writers wait their turn.
const WRITES_IN_FLIGHT: usize = 4096;
/// Snapshots kept for lists that are read page by page.
const PINNED: usize = 256;

/// How a workspace keeps history.
#[derive(Clone, Debug)]
pub struct Options {
    /// Events kept for watches, in memory and on disk.
    pub history: usize,
    /// Scopes whose changes are too frequent and too dull to be kept on disk (leases): the objects
    /// are durable, their history is in memory only.
    pub volatile: Vec<Scope>,
}

impl Default for Options {
    fn default() -> Self {
        Self { history: 10_000, volatile: Vec::new() }
    }
}

/// What must hold for a write to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precondition {
    /// There is no such object.
    Absent,
    /// The object is at exactly this revision.
    Revision(u64),
    /// Whatever is there is replaced; for a deletion, something is there.
    Any,
}

/// Everything of a workspace that readers, writers, watches and the committer share.
#[derive(Debug)]
pub(crate) struct Shared {
    current: Mutex<Current>,
    pub(crate) queue: Queue,
    head: watch::Sender<u64>,
    permits: Semaphore,
}

#[derive(Debug)]
struct Current {
    /// Durable, and what everybody reads.
    published: Snapshot,
    log: Log,
    pinned: VecDeque<Snapshot>,
}

/// One isolated state. Clones share it; when the last one goes, what was written is on disk and
/// the committer has ended.
#[derive(Clone, Debug)]
pub struct Workspace {
    shared: Arc<Shared>,
    _committer: Arc<Committer>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every critical section leaves the data consistent at each step, so a poisoned lock is usable.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn new(loaded: Loaded, options: &Options) -> Self {
        let mut state = State::new_sync();
        for object in loaded.objects {
            state.insert_mut(object.key.clone(), object);
        }
        let mut log =
            Log::new(options.history, loaded.floor, options.volatile.clone(), loaded.revision);
        let mut last_of = std::collections::HashMap::<Key, Arc<Object>>::new();
        for (kind, object) in loaded.history {
            let previous = last_of.insert(object.key.clone(), Arc::clone(&object));
            let previous = previous.filter(|_| kind != EventKind::Added);
            log.push(Event { kind, object, previous });
        }
        let published = Snapshot { revision: loaded.revision, state };
        Self {
            queue: Queue::new(published.clone()),
            head: watch::Sender::new(loaded.revision),
            current: Mutex::new(Current { published, log, pinned: VecDeque::new() }),
            permits: Semaphore::new(WRITES_IN_FLIGHT),
        }
    }

    /// Called by the committer once `events` are on disk.
    pub(crate) fn publish(&self, snapshot: Snapshot, events: Vec<Event>) {
        let revision = snapshot.revision;
        let mut current = lock(&self.current);
        for event in events {
            current.log.push(event);
        }
        current.published = snapshot;
        drop(current);
        self.head.send_replace(revision);
    }

    pub(crate) fn published(&self) -> Snapshot {
        lock(&self.current).published.clone()
    }

    pub(crate) fn head(&self) -> watch::Receiver<u64> {
        self.head.subscribe()
    }

    pub(crate) fn events_after(
        &self,
        scope: &Scope,
        position: u64,
        limit: usize,
    ) -> Result<(Vec<Event>, u64), WatchError> {
        if self.queue.closed() {
            return Err(WatchError::Closed);
        }
        let current = lock(&self.current);
        current.log.after(scope, position, limit, current.published.revision)
    }

    /// Wakes every watch so that it sees the end.
    pub(crate) fn wake_all(&self) {
        self.head.send_modify(|_| ());
    }
}

impl Workspace {
    /// A workspace that lives as long as the process.
    pub fn in_memory(options: &Options) -> Result<Self, OpenError> {
        Self::start("memory", Loaded::default(), Box::new(Memory), options)
    }

    /// Opens (or makes) the named workspace of a database.
    pub fn open(database: &Database, name: &str, options: &Options) -> Result<Self, OpenError> {
        let (backend, loaded) = database.load(name, options)?;
        Self::start(name, loaded, Box::new(backend), options)
    }

    fn start(
        name: &str,
        loaded: Loaded,
        backend: Box<dyn Backend>,
        options: &Options,
    ) -> Result<Self, OpenError> {
        let shared = Arc::new(Shared::new(loaded, options));
        let committer = Committer::start(name, Arc::clone(&shared), backend)
            .map_err(|source| OpenError::Thread { workspace: name.to_owned(), source })?;
        Ok(Self { shared, _committer: Arc::new(committer) })
    }

    /// The durable state as of now.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        self.shared.published()
    }

    #[must_use]
    pub fn get(&self, key: &Key) -> Option<Arc<Object>> {
        self.snapshot().get(key)
    }

    /// The newest state of an object, which may still be on its way to the disk: what a
    /// read-modify-write starts from. Never show it to a reader.
    #[must_use]
    pub fn latest(&self, key: &Key) -> Option<Arc<Object>> {
        self.shared.queue.latest(key)
    }

    /// Keeps a snapshot findable by its revision for a list that will be continued.
    pub fn pin(&self, snapshot: &Snapshot) {
        let mut current = lock(&self.shared.current);
        if current.pinned.iter().any(|s| s.revision == snapshot.revision) {
            return;
        }
        if current.pinned.len() >= PINNED {
            current.pinned.pop_front();
        }
        current.pinned.push_back(snapshot.clone());
    }

    /// The state at a revision: the current one, a pinned one, or one that the log still leads back to.
    #[must_use]
    pub fn snapshot_at(&self, revision: u64) -> Option<Snapshot> {
        let current = lock(&self.shared.current);
        if current.published.revision == revision {
            return Some(current.published.clone());
        }
        let pinned = current.pinned.iter().find(|s| s.revision == revision);
        if revision > current.published.revision || pinned.is_some() {
            return pinned.cloned();
        }
        let mut state = current.published.state.clone();
        for event in current.log.back_to(revision)? {
            let key = &event.object.key;
            match (&event.previous, event.kind) {
                (Some(previous), _) => state.insert_mut(key.clone(), Arc::clone(previous)),
                (None, EventKind::Added) => {
                    state.remove_mut(key.as_str());
                }
                // A change read back from disk whose predecessor had left the log before.
                (None, _) => return None,
            }
        }
        Some(Snapshot { revision, state })
    }

    /// Creates or replaces an object; returns once it is durable and visible.
    pub async fn put(
        &self,
        key: Key,
        value: Value,
        precondition: Precondition,
    ) -> Result<Arc<Object>, WriteError> {
        self.write(|done| self.shared.queue.put(key, value, precondition, done)).await
    }

    /// Deletes an object; returns its last state (stamped with the deletion's revision) once the
    /// deletion is durable and visible.
    pub async fn delete(
        &self,
        key: &Key,
        precondition: Precondition,
    ) -> Result<Arc<Object>, WriteError> {
        self.write(|done| self.shared.queue.delete(key, None, precondition, done)).await
    }

    /// As [`delete`](Self::delete), with `last` as the state that watches see the object leave in.
    pub async fn delete_as(
        &self,
        key: &Key,
        last: Value,
        precondition: Precondition,
    ) -> Result<Arc<Object>, WriteError> {
        self.write(|done| self.shared.queue.delete(key, Some(last), precondition, done)).await
    }

    async fn write(
        &self,
        enqueue: impl FnOnce(oneshot::Sender<Result<(), String>>) -> Result<Pending, WriteError>,
    ) -> Result<Arc<Object>, WriteError> {
        let _permit = self.shared.permits.acquire().await.map_err(|_closed| WriteError::Closed)?;
        let (done, outcome) = oneshot::channel();
        let pending = enqueue(done)?;
        match outcome.await {
            Ok(Ok(())) => Ok(pending.0),
            Ok(Err(reason)) => {
                Err(WriteError::Durability { key: format!("{:?}", pending.0.key), reason })
            }
            Err(_gone) => Err(WriteError::Closed),
        }
    }

    /// Follows `scope` from after `revision`.
    ///
    /// # Errors
    /// [`WatchError::Expired`] at once when the log no longer reaches back that far.
    pub fn watch(&self, scope: Scope, revision: u64) -> Result<Watch, WatchError> {
        self.shared.events_after(&scope, revision, 0)?;
        Ok(Watch::new(Arc::clone(&self.shared), scope, revision))
    }
}
