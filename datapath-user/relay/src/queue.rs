//! The frames that wait for a carrier. Small ones overtake large ones; a flow has at most one DATA
//! frame in it (its *turn*), so flows take turns and a flow's own order is kept.

use std::{collections::VecDeque, pin::Pin, sync::Mutex, time::Duration};

use bytes::{Bytes, BytesMut};
use tokio::{
    sync::{Notify, OwnedSemaphorePermit},
    time::{Instant, Sleep},
};

use crate::shared::Hold as _;

/// Frames up to this size are small.
const SMALL: usize = 4200;
/// Small frames are joined up to this many bytes per SSH packet.
const BATCH: usize = 32 << 10;
/// So many batches of small frames in a row, then a large one has its turn.
const RUN: u8 = 4;
/// How long a frame that nobody waits for may wait for one to travel with. A packet costs both ends
/// a wake-up, an encryption and three system calls.
const LINGER: Duration = Duration::from_millis(5);
/// A peer that reads nothing but makes us answer is cut off at this many bytes of answers. What flows send is bounded by their
/// turns, and may be more after an outage that thousands waited for.
const MAX_ANSWERS: usize = 16 << 20;
/// Packets beyond this are lost, as in any full queue of a network: who sends them expects that, and a
/// packet that comes late is worth less than the next.
const MAX_PACKETS: usize = 256 << 10;
/// Frames that go first; more come only while the peer does not read.
const MAX_FIRST: usize = 1024;

struct Item {
    frame: Bytes,
    /// Given back when the frame leaves the queue, or is dropped with it.
    turn: Option<OwnedSemaphorePermit>,
}

#[derive(Default)]
struct State {
    /// What the peer must know before all else.
    first: VecDeque<Bytes>,
    small: VecDeque<Item>,
    small_bytes: usize,
    /// Of the small ones those that no turn bounds.
    answer_bytes: usize,
    packets: VecDeque<Bytes>,
    packet_bytes: usize,
    /// Packets have the next turn: what flows need must not wait behind all of them.
    packets_next: bool,
    large: VecDeque<Item>,
    run: u8,
    /// Something waits that must leave now, and everything with it.
    urgent: bool,
    closed: bool,
}

/// One per carrier.
#[derive(Default)]
pub(crate) struct Queue {
    state: Mutex<State>,
    wake: Notify,
}

/// The reader's clock for lazy frames. It is not stopped when they leave before it rings: setting a
/// timer that becomes the next to ring wakes the runtime's reactor, and most would be set in vain.
pub(crate) struct Linger {
    sleep: Pin<Box<Sleep>>,
    runs: bool,
}

impl Linger {
    /// Must be called inside the runtime that will wait.
    pub(crate) fn new() -> Self {
        Self { sleep: Box::pin(tokio::time::sleep(LINGER)), runs: false }
    }

    fn start(&mut self) {
        if !std::mem::replace(&mut self.runs, true) {
            self.sleep.as_mut().reset(Instant::now() + LINGER);
        }
    }
}

/// The carrier is gone, or its peer does not read.
#[derive(Debug)]
pub(crate) struct Closed;

impl Queue {
    /// Never waits. A DATA or FIN frame comes with its flow's turn.
    pub(crate) fn push(
        &self,
        frame: Bytes,
        turn: Option<OwnedSemaphorePermit>,
    ) -> Result<(), Closed> {
        {
            let mut s = self.state.hold();
            if s.closed || (turn.is_none() && s.answer_bytes > MAX_ANSWERS) {
                return Err(Closed);
            }
            s.urgent = true;
            let item = Item { frame, turn };
            if item.frame.len() <= SMALL {
                s.push_small(item);
            } else {
                s.large.push_back(item);
            }
        }
        self.wake.notify_one();
        Ok(())
    }

    /// As [`Queue::push`], for a small frame that may wait [`LINGER`] for others.
    pub(crate) fn push_lazily(&self, frame: Bytes) -> Result<(), Closed> {
        let first = {
            let mut s = self.state.hold();
            if s.closed || s.answer_bytes > MAX_ANSWERS {
                return Err(Closed);
            }
            s.push_small(Item { frame, turn: None });
            s.small.len() == 1 && !s.urgent
        };
        if first {
            self.wake.notify_one();
        }
        Ok(())
    }

    /// A small frame that overtakes all that waits; lost when the peer does not read for long.
    pub(crate) fn push_first(&self, frame: Bytes) {
        {
            let mut s = self.state.hold();
            if s.closed || s.first.len() >= MAX_FIRST {
                return;
            }
            s.urgent = true;
            s.first.push_back(frame);
        }
        self.wake.notify_one();
    }

    /// A PACKET, of any size; false when there is no room and it is lost. Packets keep their order.
    pub(crate) fn push_packet(&self, frame: Bytes) -> Result<bool, Closed> {
        {
            let mut s = self.state.hold();
            if s.closed {
                return Err(Closed);
            }
            if s.packet_bytes + frame.len() > MAX_PACKETS {
                return Ok(false);
            }
            s.urgent = true;
            s.packet_bytes += frame.len();
            s.packets.push_back(frame);
        }
        self.wake.notify_one();
        Ok(true)
    }

    /// The next SSH write: one frame as it is, or as many small ones as fit together. `None` once
    /// closed.
    pub(crate) async fn next(&self, linger: &mut Linger) -> Option<Bytes> {
        loop {
            {
                let mut s = self.state.hold();
                if s.closed {
                    return None;
                }
                if s.urgent
                    && let Some(b) = s.take()
                {
                    return Some(b);
                }
                if !s.small.is_empty() {
                    linger.start();
                }
            }
            tokio::select! {
                biased;
                () = self.wake.notified() => {}
                () = linger.sleep.as_mut(), if linger.runs => {
                    linger.runs = false;
                    self.state.hold().urgent = true;
                }
            }
        }
    }

    /// Drops what waits: the flows keep it for a resume.
    pub(crate) fn close(&self) {
        let dropped = {
            let mut s = self.state.hold();
            s.closed = true;
            (s.small_bytes, s.answer_bytes, s.packet_bytes) = (0, 0, 0);
            s.packets.clear();
            s.first.clear();
            (std::mem::take(&mut s.small), std::mem::take(&mut s.large))
        };
        drop(dropped);
        self.wake.notify_one();
    }

    pub(crate) fn is_empty(&self) -> bool {
        let s = self.state.hold();
        s.has_none()
    }
}

impl State {
    fn take(&mut self) -> Option<Bytes> {
        let next = self.pick();
        self.urgent = !self.has_none();
        next
    }

    fn has_none(&self) -> bool {
        self.first.is_empty()
            && self.small.is_empty()
            && self.large.is_empty()
            && self.packets.is_empty()
    }

    fn pick(&mut self) -> Option<Bytes> {
        if !self.first.is_empty() {
            let all: Vec<u8> = self.first.drain(..).flatten().collect();
            return Some(all.into());
        }
        let others = !(self.small.is_empty() && self.large.is_empty());
        if !self.packets.is_empty() && (self.packets_next || !others) {
            self.packets_next = false;
            return self.pick_packets();
        }
        self.packets_next = true;
        if self.small.is_empty() || (self.run >= RUN && !self.large.is_empty()) {
            self.run = 0;
            return self.large.pop_front().map(|i| i.frame);
        }
        self.run = self.run.saturating_add(1);
        let first = self.pop_small(usize::MAX)?;
        if self.small.is_empty() {
            return Some(first);
        }
        let all = first.len() + self.small_bytes;
        let mut out = BytesMut::with_capacity(all.min(BATCH + SMALL));
        out.extend_from_slice(&first);
        while let Some(frame) = self.pop_small(BATCH.saturating_sub(out.len())) {
            out.extend_from_slice(&frame);
        }
        Some(out.freeze())
    }

    fn push_small(&mut self, item: Item) {
        let len = item.frame.len();
        self.small_bytes += len;
        self.answer_bytes += if item.turn.is_none() { len } else { 0 };
        self.small.push_back(item);
    }

    /// The first if it has at most that many bytes.
    fn pop_small(&mut self, most: usize) -> Option<Bytes> {
        let Item { frame, turn } = self.small.pop_front_if(|i| i.frame.len() <= most)?;
        self.small_bytes -= frame.len();
        self.answer_bytes -= if turn.is_none() { frame.len() } else { 0 };
        Some(frame)
    }

    fn pick_packets(&mut self) -> Option<Bytes> {
        let first = self.packets.pop_front()?;
        self.packet_bytes -= first.len();
        if self.packets.front().is_none_or(|next| first.len() + next.len() > BATCH) {
            return Some(first);
        }
        let mut out = BytesMut::with_capacity(BATCH);
        out.extend_from_slice(&first);
        while let Some(next) = self.packets.pop_front_if(|next| out.len() + next.len() <= BATCH) {
            self.packet_bytes -= next.len();
            out.extend_from_slice(&next);
        }
        Some(out.freeze())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(byte: u8, len: usize) -> Bytes {
        Bytes::from(vec![byte; len])
    }

    #[tokio::test]
    async fn small_frames_overtake_but_do_not_starve_large_ones() {
        let (q, mut linger) = (Queue::default(), Linger::new());
        q.push(frame(1, 60_000), None).unwrap();
        q.push(frame(2, 60_000), None).unwrap();
        for _ in 0..100 {
            q.push(frame(3, 4000), None).unwrap();
        }
        let mut order = Vec::new();
        for _ in 0..7 {
            order.push(q.next(&mut linger).await.unwrap()[0]);
        }
        assert_eq!(order, [3, 3, 3, 3, 1, 3, 3]);
    }

    #[tokio::test]
    async fn what_goes_first_overtakes_all_and_is_bounded() {
        let (q, mut linger) = (Queue::default(), Linger::new());
        q.push_packet(frame(1, 100)).unwrap();
        q.push(frame(2, 10), None).unwrap();
        q.push(frame(3, 60_000), None).unwrap();
        (0..2 * MAX_FIRST).for_each(|_| q.push_first(frame(4, 26)));
        let first = q.next(&mut linger).await.unwrap();
        assert_eq!((first[0], first.len()), (4, 26 * MAX_FIRST));
        let mut order = Vec::new();
        while !q.is_empty() {
            order.push(q.next(&mut linger).await.unwrap()[0]);
        }
        order.sort_unstable();
        assert_eq!(order, [1, 2, 3]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_lazy_frame_leaves_with_the_next_or_soon_alone() {
        let (q, mut linger) = (Queue::default(), Linger::new());
        q.push_lazily(frame(1, 10)).unwrap();
        q.push_lazily(frame(2, 10)).unwrap();
        q.push(frame(3, 10), None).unwrap();
        assert_eq!(q.next(&mut linger).await.unwrap().len(), 30);
        let start = Instant::now();
        q.push_lazily(frame(4, 10)).unwrap();
        assert_eq!(q.next(&mut linger).await.unwrap().len(), 10);
        // The clock ran since the first.
        assert!(start.elapsed() <= 2 * LINGER);
        assert!(tokio::time::timeout(2 * LINGER, q.next(&mut linger)).await.is_err());
    }

    #[tokio::test]
    async fn packets_are_lost_when_full_and_do_not_stop_other_frames() {
        let (q, mut linger) = (Queue::default(), Linger::new());
        let n = (0..100).take_while(|_| q.push_packet(frame(1, 60_000)).unwrap()).count();
        assert_eq!(n, MAX_PACKETS / 60_000);
        q.push(frame(2, 10), None).unwrap();
        let mut order = Vec::new();
        for _ in 0..=n {
            order.push(q.next(&mut linger).await.unwrap()[0]);
        }
        assert_eq!(order, [2, 1, 1, 1, 1]);
        assert!(q.push_packet(frame(1, 60_000)).unwrap());
    }

    #[tokio::test]
    async fn what_flows_send_in_their_turns_is_not_taken_for_answers() {
        let (q, mut linger) = (Queue::default(), Linger::new());
        let turns = std::sync::Arc::new(tokio::sync::Semaphore::new(6000));
        let turn = || std::sync::Arc::clone(&turns).try_acquire_owned().unwrap();
        for _ in 0..6000 {
            q.push(frame(1, 4100), Some(turn())).unwrap();
        }
        q.push(frame(2, 10), None).unwrap();
        let answers = (0..).take_while(|_| q.push(frame(3, 4100), None).is_ok()).count();
        assert_eq!(answers, MAX_ANSWERS / 4100 + 1);
        let mut bytes = 0;
        while !q.is_empty() {
            bytes += q.next(&mut linger).await.unwrap().len();
        }
        assert_eq!(bytes, 4100 * (6000 + answers) + 10);
        assert_eq!(turns.available_permits(), 6000);
        q.push(frame(3, 10), None).unwrap();
    }

    #[tokio::test]
    async fn a_closed_queue_gives_turns_back() {
        let (q, mut linger) = (Queue::default(), Linger::new());
        let turn = std::sync::Arc::new(tokio::sync::Semaphore::new(1));
        let permit = std::sync::Arc::clone(&turn).acquire_owned().await.unwrap();
        q.push(frame(1, 10), Some(permit)).unwrap();
        assert_eq!(turn.available_permits(), 0);
        q.close();
        assert_eq!(turn.available_permits(), 1);
        assert!(q.next(&mut linger).await.is_none());
        assert!(q.push(frame(1, 10), None).is_err());
    }
}
