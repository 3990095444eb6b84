//! The event stream: what happens on this node, to everyone who reads at the moment. While nobody does, an event is a look at one
//! number and is never made.
//!
//! Relay, local flows and this node's own refusals tell by themselves; the hooks are asked to, and datagram flows are compared, by
//! [`pump`] while somebody reads.

pub mod pump;
mod tell;

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::SystemTime,
};

use control_api::{
    events::{Event, What},
    ids::NodeRef,
};
use tokio::sync::{Notify, mpsc};

pub use self::tell::{Refusal, told};

/// Events that wait for one reader; of more it is told how many it missed.
const QUEUE: usize = 4096;
/// Readers at a time; more are refused.
pub const MAX_READERS: usize = 16;

/// Where events go. All methods are quick and may be called from any thread.
#[derive(Debug, Default)]
pub struct Feed {
    /// The length of `queues`, readable without the lock.
    readers: AtomicUsize,
    queues: Mutex<Queues>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct Queues {
    all: Vec<Queue>,
    closed: bool,
}

#[derive(Debug)]
struct Queue {
    sender: mpsc::Sender<Arc<Event>>,
    missed: Arc<AtomicU64>,
}

/// One reader's end.
#[derive(Debug)]
pub struct Reader {
    queue: mpsc::Receiver<Arc<Event>>,
    missed: Arc<AtomicU64>,
    feed: Arc<Feed>,
}

fn event(what: What) -> Event {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Event { at_ms: u64::try_from(now.as_millis()).unwrap_or(u64::MAX), what }
}

/// With which every stream begins.
#[must_use]
pub fn first(node: NodeRef) -> Event {
    event(What::Listening { node })
}

impl Feed {
    fn queues(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether anybody reads.
    #[must_use]
    pub fn has_readers(&self) -> bool {
        self.readers.load(Relaxed) > 0
    }

    /// Returns once somebody reads.
    pub async fn wanted(&self) {
        loop {
            let changed = self.changed.notified();
            if self.has_readers() {
                return;
            }
            changed.await;
        }
    }

    /// A reader of what happens from now on; `None` when there are too many, or the node stops.
    #[must_use]
    pub fn subscribe(self: &Arc<Self>) -> Option<Reader> {
        let (sender, queue) = mpsc::channel(QUEUE);
        let missed = Arc::<AtomicU64>::default();
        let mut queues = self.queues();
        if queues.closed || queues.all.len() >= MAX_READERS {
            return None;
        }
        queues.all.push(Queue { sender, missed: Arc::clone(&missed) });
        self.readers.store(queues.all.len(), Relaxed);
        drop(queues);
        self.changed.notify_waiters();
        Some(Reader { queue, missed, feed: Arc::clone(self) })
    }

    /// Tells all readers; `what` is made when there is one.
    pub fn tell(&self, what: impl FnOnce() -> What) {
        if !self.has_readers() {
            return;
        }
        let event = Arc::new(event(what()));
        for queue in &self.queues().all {
            queue.push(&event);
        }
    }

    /// So many could not even be made.
    pub fn lost(&self, events: u64) {
        if events > 0 {
            self.tell(|| What::Lost { events });
        }
    }

    /// Ends all streams, and lets none begin.
    pub fn close(&self) {
        let mut queues = self.queues();
        queues.closed = true;
        queues.all.clear();
        self.readers.store(0, Relaxed);
    }
}

impl Queue {
    /// Under the lock of all queues, so that a reader learns of a gap where it is.
    fn push(&self, new: &Arc<Event>) {
        let missed = self.missed.swap(0, Relaxed);
        let gap = (missed > 0).then(|| Arc::new(event(What::Lost { events: missed })));
        if let Some(gap) = gap
            && self.sender.try_send(gap).is_err()
        {
            self.missed.fetch_add(missed + 1, Relaxed);
        } else if self.sender.try_send(Arc::clone(new)).is_err() {
            self.missed.fetch_add(1, Relaxed);
        }
    }
}

impl Reader {
    /// The next one; `None` when the node stops. Cancel-safe.
    pub async fn next(&mut self) -> Option<Arc<Event>> {
        if let Ok(event) = self.queue.try_recv() {
            return Some(event);
        }
        match self.missed.swap(0, Relaxed) {
            0 => self.queue.recv().await,
            events => Some(Arc::new(event(What::Lost { events }))),
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.queue.close();
        let mut queues = self.feed.queues();
        queues.all.retain(|q| !q.sender.is_closed());
        self.feed.readers.store(queues.all.len(), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lost(n: u64) -> impl FnOnce() -> What {
        move || What::Lost { events: n }
    }

    #[test]
    fn without_a_reader_nothing_is_made() {
        let feed = Arc::new(Feed::default());
        feed.tell(|| panic!("nobody reads"));
        let reader = feed.subscribe().unwrap();
        assert!(feed.has_readers());
        drop(reader);
        feed.tell(|| panic!("nobody reads any more"));
    }

    #[tokio::test]
    async fn a_slow_reader_is_told_how_much_it_missed_and_where() {
        let feed = Arc::new(Feed::default());
        let mut slow = feed.subscribe().unwrap();
        let many = QUEUE as u64 + 10;
        (0..many).for_each(|n| feed.tell(lost(n)));
        for n in 0..QUEUE as u64 {
            assert_eq!(slow.next().await.unwrap().what, What::Lost { events: n });
            if n == 5 {
                // There is room again, first for the word of the gap.
                feed.tell(lost(777));
            }
        }
        assert_eq!(slow.next().await.unwrap().what, What::Lost { events: 10 });
        assert_eq!(slow.next().await.unwrap().what, What::Lost { events: 777 });
        feed.tell(lost(1));
        assert_eq!(slow.next().await.unwrap().what, What::Lost { events: 1 });
    }

    #[tokio::test]
    async fn a_gap_is_told_though_nothing_follows() {
        let feed = Arc::new(Feed::default());
        let mut slow = feed.subscribe().unwrap();
        (0..=QUEUE as u64).for_each(|n| feed.tell(lost(n)));
        for _ in 0..QUEUE {
            slow.next().await.unwrap();
        }
        assert_eq!(slow.next().await.unwrap().what, What::Lost { events: 1 });
    }

    #[tokio::test]
    async fn readers_are_few_and_end_with_the_node() {
        let feed = Arc::new(Feed::default());
        let mut all: Vec<_> = (0..MAX_READERS).map(|_| feed.subscribe().unwrap()).collect();
        assert!(feed.subscribe().is_none());
        all.pop();
        all.push(feed.subscribe().unwrap());
        feed.close();
        assert!(all.pop().unwrap().next().await.is_none());
        assert!(feed.subscribe().is_none() && !feed.has_readers());
    }
}
