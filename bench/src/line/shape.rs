//! When a frame leaves: delay, rate and loss of one direction. No sockets and no clock of its own.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use super::segments;

/// What a direction does to its frames.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) delay: Duration,
    pub(super) bits_per_second: f64,
    /// Of 1.
    pub(super) loss: f64,
    /// What may wait for the rate.
    pub(super) queue: Duration,
}

/// One direction.
#[derive(Debug)]
pub(super) struct Shaper {
    shape: Shape,
    /// When the wire is free again.
    free: Option<Instant>,
    waiting: VecDeque<(Instant, Vec<u8>)>,
    spare: Vec<Vec<u8>>,
    random: u64,
}

impl Shaper {
    pub(super) fn new(shape: Shape, seed: u64) -> Self {
        let random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        Self { shape, free: None, waiting: VecDeque::new(), spare: vec![], random }
    }

    /// A frame that has left: its memory is used again.
    pub(super) fn give_back(&mut self, frame: Vec<u8>) {
        self.spare.push(frame);
    }

    /// A frame arrived. Of a long one each segment is lost or not by itself.
    pub(super) fn push(&mut self, frame: &[u8], now: Instant) {
        let Some(cut) = segments::cut(frame).filter(|_| self.shape.loss > 0.0) else {
            if self.chance() >= self.shape.loss {
                self.queue(frame, now);
            }
            return;
        };
        let mut from = 0;
        for n in 0..=cut.count {
            let lost = n == cut.count || self.chance() < self.shape.loss;
            if lost && from < n {
                if from == 0 && n == cut.count {
                    self.queue(frame, now);
                } else if let Some(part) = segments::part(frame, cut, &(from..n)) {
                    self.queue(&part, now);
                }
            }
            if lost {
                from = n + 1;
            }
        }
    }

    fn queue(&mut self, frame: &[u8], now: Instant) {
        let start = self.free.map_or(now, |f| f.max(now));
        if start - now > self.shape.queue {
            return;
        }
        #[expect(clippy::cast_precision_loss, reason = "a frame's length is small")]
        let bits = segments::wire_length(frame) as f64 * 8.0;
        let end = start + Duration::from_secs_f64(bits / self.shape.bits_per_second);
        self.free = Some(end);
        let mut kept = self.spare.pop().unwrap_or_default();
        kept.clear();
        kept.extend_from_slice(frame);
        self.waiting.push_back((end + self.shape.delay, kept));
    }

    /// When the next frame leaves.
    pub(super) fn due(&self) -> Option<Instant> {
        self.waiting.front().map(|(at, _)| *at)
    }

    pub(super) fn pop(&mut self, now: Instant) -> Option<Vec<u8>> {
        self.due().filter(|at| *at <= now)?;
        self.waiting.pop_front().map(|(_, frame)| frame)
    }

    /// Below 1.
    fn chance(&mut self) -> f64 {
        let r = &mut self.random;
        *r ^= *r << 13;
        *r ^= *r >> 7;
        *r ^= *r << 17;
        #[expect(clippy::cast_precision_loss, reason = "53 bits are enough for a chance")]
        let c = (*r >> 11) as f64 / (1u64 << 53) as f64;
        c
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape() -> Shape {
        let ms = Duration::from_millis;
        Shape { delay: ms(10), bits_per_second: 1e6, loss: 0.0, queue: ms(50) }
    }

    /// A frame of one packet of that length.
    fn frame(length: usize) -> Vec<u8> {
        vec![0; segments::NOTE + 14 + length]
    }

    #[test]
    fn frames_leave_in_order_one_transmission_apart_after_the_delay() {
        let (mut s, now) = (Shaper::new(shape(), 1), Instant::now());
        let ms = Duration::from_millis;
        // 1,250 bytes are 10 ms at 1 Mbit/s.
        s.push(&frame(1250), now);
        s.push(&frame(2500), now);
        assert_eq!(s.due(), Some(now + ms(20)));
        assert_eq!(s.pop(now + ms(19)), None);
        assert_eq!(s.pop(now + ms(20)), Some(frame(1250)));
        assert_eq!(s.due(), Some(now + ms(40)));
    }

    #[test]
    fn what_would_wait_longer_than_the_queue_is_lost() {
        let (mut s, now) = (Shaper::new(shape(), 1), Instant::now());
        for _ in 0..20 {
            s.push(&frame(1250), now);
        }
        // The wire takes one at once; five more wait up to 50 ms for it.
        assert_eq!(s.waiting.len(), 6);
    }

    #[test]
    fn the_share_that_is_lost_is_the_one_asked_for() {
        let lossy = Shape { loss: 0.01, bits_per_second: 1e12, ..shape() };
        let (mut s, now) = (Shaper::new(lossy, 3), Instant::now());
        for _ in 0..100_000 {
            s.push(&frame(100), now);
        }
        let lost = 100_000 - s.waiting.len();
        assert!((800..1200).contains(&lost), "{lost}");
    }
}
