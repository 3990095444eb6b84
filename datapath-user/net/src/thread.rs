//! Threads with a runtime of their own that do not fall asleep between the messages of a conversation.
//!
//! An idle processor takes 20 to 50 us to wake (a virtual one more: it was given away), and a relayed message passes three
//! machines. So a thread whose last wait was short looks for its next event a while before it sleeps, as KVM and its guests
//! do (`halt_poll_ns`). It yields the processor meanwhile, and one that turns out to be taken by a neighbour who computes is
//! left to it: woken from sleep the thread gets its turn at once, in a queue of the runnable it would wait.

use std::{
    cell::RefCell,
    io,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use tokio::{runtime::Handle, sync::Notify};
use tokio_util::sync::CancellationToken;

/// How long a thread may wait awake, if nobody says otherwise: what KVM takes.
pub const HALT_POLL_US: u32 = 200;

/// A turn of the loop that took longer, and four times as long as the shortest, did something.
const EMPTY_TURN: Duration = Duration::from_micros(5);
/// A wait ends after so many times its measure, whatever was found meanwhile.
const LONGEST: u32 = 20;
/// Off the processor so long: others have something to do (an empty turn of another waiting thread takes 2 to 5), so the
/// processor stays awake without this thread, which is woken among them soon enough. With 50 instead of 10 a machine that
/// opens flows as fast as it can spends a tenth more on each; with 5 datagrams take longer.
const CROWD: Duration = Duration::from_micros(10);
/// Off the processor so long: a neighbour computes, for a slice or more.
const NEIGHBOUR: Duration = Duration::from_micros(500);
/// How long a neighbour is believed to stay, at first and at most.
const STAY: Duration = Duration::from_millis(100);
const STAY_MOST: Duration = Duration::from_secs(10);

/// Starts a thread that runs what is spawned on the handle until `stop`, and then drops it. It waits awake for at most
/// `halt_poll` (0: never).
///
/// # Errors
/// The machine gives no thread or no descriptor.
pub fn start(name: String, halt_poll: Duration, stop: CancellationToken) -> io::Result<Handle> {
    let watch = Arc::new(Watch::new(halt_poll));
    let (park, unpark) = (Arc::clone(&watch), Arc::clone(&watch));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .on_thread_park(move || park.sleeps())
        .on_thread_unpark(move || unpark.wakes())
        .build()?;
    let handle = runtime.handle().clone();
    let here = Arc::clone(&watch);
    handle.spawn(async move { watch.run().await });
    std::thread::Builder::new().name(name).spawn(move || {
        HERE.set(Some(here));
        runtime.block_on(stop.cancelled());
    })?;
    Ok(handle)
}

thread_local! {
    static HERE: RefCell<Option<Arc<Watch>>> = const { RefCell::new(None) };
}

/// Lets others have the processor for a moment, unless a neighbour is known who would keep it. For a thread of [`start`] that has
/// overtaken somebody who is about to do what it would wait for next.
pub fn offer() {
    HERE.with_borrow(|here| {
        if let Some(watch) = here {
            watch.offer();
        }
    });
}

/// When the thread became idle, and when it may wait awake.
#[derive(Debug)]
struct Watch {
    halt_poll: Duration,
    born: Instant,
    /// Nanoseconds after `born`; of a vain wait, when that began.
    idle_since: AtomicU64,
    waited: AtomicU64,
    /// Waits in a row that a neighbour ended, and until when nothing is offered to it.
    neighbours: AtomicU32,
    not_before: AtomicU64,
    wake: Notify,
}

impl Watch {
    fn new(halt_poll: Duration) -> Self {
        Self {
            halt_poll,
            born: Instant::now(),
            idle_since: AtomicU64::new(0),
            waited: AtomicU64::new(0),
            neighbours: AtomicU32::new(0),
            not_before: AtomicU64::new(0),
            wake: Notify::new(),
        }
    }

    fn sleeps(&self) {
        let waited = self.waited.swap(0, Relaxed);
        let since = if waited > 0 { waited } else { nanos(self.born.elapsed()) };
        self.idle_since.store(since, Relaxed);
    }

    fn wakes(&self) {
        let now = nanos(self.born.elapsed());
        let idle = now.saturating_sub(self.idle_since.load(Relaxed));
        if idle < nanos(self.halt_poll) && now >= self.not_before.load(Relaxed) {
            self.wake.notify_one();
        }
    }

    fn offer(&self) {
        let start = self.born.elapsed();
        if self.halt_poll.is_zero() || nanos(start) < self.not_before.load(Relaxed) {
            return;
        }
        std::thread::yield_now();
        self.note(self.born.elapsed().saturating_sub(start) > NEIGHBOUR);
    }

    /// Whether a neighbour kept the processor that it was offered.
    fn note(&self, kept: bool) {
        if !kept {
            self.neighbours.store(0, Relaxed);
            return;
        }
        // The first may be one who had much to do once.
        let again = self.neighbours.fetch_add(1, Relaxed);
        if again > 0 {
            let stay = (STAY * 2u32.saturating_pow(again - 1)).min(STAY_MOST);
            self.not_before.store(nanos(self.born.elapsed() + stay), Relaxed);
        }
    }

    async fn run(&self) {
        loop {
            self.wake.notified().await;
            let mut wait = Wait::new(self.halt_poll, self.born.elapsed());
            let end = loop {
                // The runtime looks at its sockets meanwhile.
                tokio::task::yield_now().await;
                if let Some(end) = wait.looked(self.born.elapsed()) {
                    break end;
                }
                std::thread::yield_now();
                if let Some(end) = wait.yielded(self.born.elapsed()) {
                    break end;
                }
            };
            if let End::InVain { since } = end {
                self.waited.store(nanos(since), Relaxed);
            }
            self.note(end == End::Neighbour);
        }
    }
}

/// Why the thread goes to sleep after all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    InVain { since: Duration },
    Crowd,
    Neighbour,
}

/// One wait, in turns of looking and yielding. Times count from any one moment.
#[derive(Debug)]
struct Wait {
    halt_poll: Duration,
    idle: Duration,
    last: Duration,
    start: Duration,
    /// The shortest turn: what an empty one takes on this machine.
    least: Duration,
}

impl Wait {
    fn new(halt_poll: Duration, now: Duration) -> Self {
        Self { halt_poll, idle: now, last: now, start: now, least: Duration::MAX }
    }

    /// All sockets were looked at, and what there was to do is done.
    fn looked(&mut self, now: Duration) -> Option<End> {
        let turn = now.saturating_sub(self.last);
        self.least = self.least.min(turn);
        if turn > EMPTY_TURN.max(self.least.saturating_mul(4)) {
            self.idle = now;
        }
        self.last = now;
        // Whatever the turns look like: a thread that finds much to do is woken for it.
        let long = now.saturating_sub(self.start) > self.halt_poll.saturating_mul(LONGEST);
        let vain = now.saturating_sub(self.idle) > self.halt_poll;
        (long || vain).then_some(End::InVain { since: self.idle })
    }

    /// The processor was offered to others.
    fn yielded(&mut self, now: Duration) -> Option<End> {
        let off = now.saturating_sub(self.last);
        self.last = now;
        match off {
            off if off > NEIGHBOUR => Some(End::Neighbour),
            off if off > CROWD => Some(End::Crowd),
            _ => None,
        }
    }
}

fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use rustix::time::{ClockId, clock_gettime};

    use super::*;

    fn us(n: u64) -> Duration {
        Duration::from_micros(n)
    }

    #[test]
    fn a_wait_ends_in_vain_a_while_after_the_last_thing_that_was_done() {
        let mut w = Wait::new(us(200), us(0));
        assert_eq!(w.looked(us(1)), None);
        assert_eq!(w.yielded(us(2)), None);
        assert_eq!(w.looked(us(50)), None, "48 us of work");
        assert_eq!(w.looked(us(51)), None);
        let mut now = 51;
        let end = loop {
            now += 2;
            if let Some(end) = w.looked(us(now)) {
                break end;
            }
        };
        assert_eq!(end, End::InVain { since: us(50) });
        assert_eq!(now, 251);
    }

    #[test]
    fn a_slow_machine_does_not_take_empty_turns_for_work() {
        let mut w = Wait::new(us(200), us(0));
        let mut now = 0;
        let end = loop {
            now += 20;
            if let Some(end) = w.looked(us(now)) {
                break end;
            }
            now += 5;
            assert_eq!(w.yielded(us(now)), None);
        };
        assert_eq!(end, End::InVain { since: us(0) });
        // Nor does it wait for ever for anything.
        let mut w = Wait::new(us(200), us(0));
        let busy =
            (1u64..).find(|n| w.looked(us(n * 3 + if n % 2 == 0 { 0 } else { 100 * n })).is_some());
        assert!(busy.is_some_and(|n| n < 1000), "{busy:?}");
    }

    #[test]
    fn who_does_not_get_the_processor_back_stops_waiting_for_it() {
        let mut w = Wait::new(us(200), us(0));
        assert_eq!(w.yielded(us(8)), None);
        assert_eq!(w.yielded(us(108)), Some(End::Crowd));
        assert_eq!(w.yielded(us(1108)), Some(End::Neighbour));
    }

    #[test]
    fn a_neighbour_who_keeps_the_processor_is_left_alone_for_longer_each_time() {
        let w = Watch::new(us(200));
        let stays = || w.not_before.load(Relaxed).saturating_sub(nanos(w.born.elapsed()));
        w.note(true);
        assert_eq!(stays(), 0, "once is no neighbour");
        w.note(true);
        let first = stays();
        w.note(true);
        assert!(first > nanos(STAY) / 2 && stays() > first + nanos(STAY) / 2);
        for _ in 0..100 {
            w.note(true);
        }
        assert!(stays() <= nanos(STAY_MOST));
        w.note(false);
        w.note(true);
        w.note(true);
        assert!(stays() <= nanos(STAY));
    }

    fn used(handle: &Handle) -> Duration {
        let (tx, rx) = std::sync::mpsc::channel();
        handle.spawn(async move { tx.send(clock_gettime(ClockId::ThreadCPUTime)) });
        let t = rx.recv_timeout(Duration::from_secs(10)).unwrap();
        Duration::try_from(t).unwrap()
    }

    /// Events that come seldom must not keep the thread awake, nor a single one.
    #[test]
    fn an_idle_thread_uses_no_processor() {
        let stop = CancellationToken::new();
        let handle = start("idle".into(), us(200), stop.clone()).unwrap();
        let (tx, rx) = std::sync::mpsc::channel();
        let before = used(&handle);
        handle.spawn(async move {
            let mut tick = tokio::time::interval(Duration::from_millis(20));
            for _ in 0..20 {
                tick.tick().await;
            }
            tx.send(())
        });
        rx.recv_timeout(Duration::from_secs(10)).unwrap();
        let used = used(&handle).checked_sub(before).unwrap();
        stop.cancel();
        assert!(used < Duration::from_millis(20), "{used:?} of 400 ms");
    }

    #[test]
    fn it_ends_when_it_is_told_to_and_drops_its_tasks() {
        let stop = CancellationToken::new();
        let handle = start("ends".into(), us(200), stop.clone()).unwrap();
        let (tx, rx) = std::sync::mpsc::channel::<()>();
        handle.spawn(async move {
            std::future::pending::<()>().await;
            drop(tx);
        });
        stop.cancel();
        let end = rx.recv_timeout(Duration::from_secs(10));
        assert_eq!(end, Err(std::sync::mpsc::RecvTimeoutError::Disconnected));
    }
}
