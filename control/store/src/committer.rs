//! The only writer: takes every waiting write, makes them durable together, shows them.

use std::io;
use std::mem;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use serde_json::Value;
use tokio::sync::oneshot;

use crate::backend::Backend;
use crate::error::WriteError;
use crate::key::Key;
use crate::log::{Event, EventKind};
use crate::object::Object;
use crate::snapshot::Snapshot;
use crate::workspace::{Precondition, Shared};

type Done = oneshot::Sender<Result<(), String>>;

/// A write that has its revision and waits for the disk.
#[derive(Debug)]
pub(crate) struct Pending(pub(crate) Arc<Object>);

/// Writes on their way to the disk, and the state they lead to.
#[derive(Debug)]
pub(crate) struct Queue {
    inner: Mutex<Inner>,
    wake: Condvar,
}

#[derive(Debug)]
struct Inner {
    /// The published state plus everything in `waiting` and in the batch being committed.
    ahead: Snapshot,
    waiting: Vec<(Event, Done)>,
    closed: bool,
}

impl Queue {
    pub(crate) fn new(ahead: Snapshot) -> Self {
        let inner = Inner { ahead, waiting: Vec::new(), closed: false };
        Self { inner: Mutex::new(inner), wake: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn latest(&self, key: &Key) -> Option<Arc<Object>> {
        self.lock().ahead.get(key)
    }

    pub(crate) fn closed(&self) -> bool {
        self.lock().closed
    }

    pub(crate) fn put(
        &self,
        key: Key,
        value: Value,
        precondition: Precondition,
        done: Done,
    ) -> Result<Pending, WriteError> {
        let mut inner = self.lock();
        let previous = inner.check(&key, precondition)?;
        let revision = inner.ahead.revision + 1;
        let name = format!("{key:?}");
        let object = Object::stamp(key, value, revision)
            .map_err(|source| WriteError::Serialise { key: name, source })?;
        let object = Arc::new(object);
        inner.ahead.state.insert_mut(object.key.clone(), Arc::clone(&object));
        let kind = if previous.is_some() { EventKind::Modified } else { EventKind::Added };
        Ok(self.enqueue(inner, Event { kind, object, previous }, done))
    }

    pub(crate) fn delete(
        &self,
        key: &Key,
        last: Option<Value>,
        precondition: Precondition,
        done: Done,
    ) -> Result<Pending, WriteError> {
        let mut inner = self.lock();
        let previous = inner
            .check(key, precondition)?
            .ok_or_else(|| WriteError::NotFound { key: format!("{key:?}") })?;
        let revision = inner.ahead.revision + 1;
        let last = last.unwrap_or_else(|| previous.value.clone());
        let object = Object::stamp(key.clone(), last, revision)
            .map_err(|source| WriteError::Serialise { key: format!("{key:?}"), source })?;
        inner.ahead.state.remove_mut(key.as_str());
        let event =
            Event { kind: EventKind::Deleted, object: Arc::new(object), previous: Some(previous) };
        Ok(self.enqueue(inner, event, done))
    }

    fn enqueue(&self, mut inner: MutexGuard<'_, Inner>, event: Event, done: Done) -> Pending {
        inner.ahead.revision = event.object.revision;
        let pending = Pending(Arc::clone(&event.object));
        inner.waiting.push((event, done));
        drop(inner);
        self.wake.notify_one();
        pending
    }

    /// Blocks until there are writes; `None` when the queue is closed and empty.
    fn take(&self) -> Option<(Vec<(Event, Done)>, Snapshot)> {
        let mut inner = self.lock();
        while inner.waiting.is_empty() {
            if inner.closed {
                return None;
            }
            inner = self.wake.wait(inner).unwrap_or_else(PoisonError::into_inner);
        }
        Some((mem::take(&mut inner.waiting), inner.ahead.clone()))
    }

    /// Forgets every write that was built on a batch that failed. Revisions are not used again.
    fn rewind(&self, published: &Snapshot) -> Vec<(Event, Done)> {
        let mut inner = self.lock();
        inner.ahead.state = published.state.clone();
        mem::take(&mut inner.waiting)
    }

    /// Takes no more writes and gives up those that wait.
    fn abandon(&self) -> Vec<(Event, Done)> {
        let mut inner = self.lock();
        inner.closed = true;
        mem::take(&mut inner.waiting)
    }

    fn close(&self) {
        self.lock().closed = true;
        self.wake.notify_one();
    }
}

impl Inner {
    fn check(
        &self,
        key: &Key,
        precondition: Precondition,
    ) -> Result<Option<Arc<Object>>, WriteError> {
        if self.closed {
            return Err(WriteError::Closed);
        }
        let previous = self.ahead.get(key);
        let name = || format!("{key:?}");
        match (precondition, &previous) {
            (Precondition::Absent, Some(_)) => Err(WriteError::AlreadyExists { key: name() }),
            (Precondition::Revision(_), None) => Err(WriteError::NotFound { key: name() }),
            (Precondition::Revision(expected), Some(o)) if o.revision != expected => {
                Err(WriteError::Conflict { key: name(), expected, actual: o.revision })
            }
            _ => Ok(previous),
        }
    }
}

/// Owns the thread; dropping it commits what waits and ends the thread.
#[derive(Debug)]
pub(crate) struct Committer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Committer {
    pub(crate) fn start(
        name: &str,
        shared: Arc<Shared>,
        backend: Box<dyn Backend>,
    ) -> io::Result<Self> {
        let worker = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name(format!("commit-{name}"))
            .spawn(move || run(&worker, backend))?;
        Ok(Self { shared, thread: Some(thread) })
    }
}

impl Drop for Committer {
    fn drop(&mut self) {
        self.shared.queue.close();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            // The thread panicked; its writers were told by their dropped channels.
        }
        self.shared.wake_all();
    }
}

/// Lets nobody wait for a committer that has ended, however it ended.
struct Farewell<'a>(&'a Shared);

impl Drop for Farewell<'_> {
    fn drop(&mut self) {
        drop(self.0.queue.abandon());
        self.0.wake_all();
    }
}

fn run(shared: &Shared, mut backend: Box<dyn Backend>) {
    let _farewell = Farewell(shared);
    while let Some((batch, snapshot)) = shared.queue.take() {
        let (events, done): (Vec<_>, Vec<_>) = batch.into_iter().unzip();
        match backend.commit(&events) {
            Ok(()) => {
                shared.publish(snapshot, events);
                answer(done, &Ok(()));
            }
            Err(reason) => {
                let lost = shared.queue.rewind(&shared.published());
                let failure = Err(reason);
                answer(done, &failure);
                answer(lost.into_iter().map(|(_, done)| done).collect(), &failure);
            }
        }
    }
}

fn answer(waiting: Vec<Done>, outcome: &Result<(), String>) {
    for done in waiting {
        // A writer that went away (its connection closed) does not need the answer.
        drop(done.send(outcome.clone()));
    }
}
