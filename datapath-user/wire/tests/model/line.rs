//! A carrier as an adversary sees it: two queues and a byte stream each way, which he may cut at any byte.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use datapath_wire::{Decoder, Frame, Hello, frame::VERSION};

/// Frames up to this and larger ones overtake each other, as in the relay's queue; each kind keeps its order.
pub(crate) const SMALL: usize = 4200;

struct Item {
    frame: Bytes,
    turn: bool,
}

/// One direction.
pub(crate) struct Way {
    small: VecDeque<Item>,
    large: VecDeque<Item>,
    stream: BytesMut,
    decoder: Decoder,
    closed: bool,
}

impl Way {
    fn new() -> Self {
        let hello = Hello { version: VERSION, features: 0, epoch: 1, node: "a/b".to_owned() };
        let stream = Frame::Hello(hello).to_bytes().into();
        let (small, large) = (VecDeque::new(), VecDeque::new());
        Self { small, large, stream, decoder: Decoder::new(), closed: false }
    }

    /// Queues a frame; over a broken carrier it is lost, as the sender may not know yet.
    pub(crate) fn post(&mut self, frame: Bytes, turn: bool) {
        if self.closed {
            return;
        }
        let queue = if frame.len() <= SMALL { &mut self.small } else { &mut self.large };
        queue.push_back(Item { frame, turn });
    }

    /// One frame leaves the queue.
    pub(crate) fn flush(&mut self, large_first: bool) {
        let (first, second) = if large_first {
            (&mut self.large, &mut self.small)
        } else {
            (&mut self.small, &mut self.large)
        };
        if let Some(item) = first.pop_front().or_else(|| second.pop_front()) {
            self.stream.extend_from_slice(&item.frame);
        }
    }

    /// Whether the flow's turn is in this queue.
    pub(crate) fn holds_turn(&self) -> bool {
        self.small.iter().chain(&self.large).any(|i| i.turn)
    }

    /// Breaks: what is queued is lost, and of what is under way all but `keep` bytes.
    fn cut(&mut self, keep: usize) {
        self.closed = true;
        self.small.clear();
        self.large.clear();
        self.stream.truncate(keep);
    }

    /// The next bytes, with the decoder that continues with them; [`Way::give_back`] it.
    pub(crate) fn take(&mut self, most: usize) -> (BytesMut, Decoder) {
        let n = most.min(self.stream.len());
        (self.stream.split_to(n), std::mem::take(&mut self.decoder))
    }

    pub(crate) fn give_back(&mut self, decoder: Decoder) {
        self.decoder = decoder;
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.small.is_empty() && self.large.is_empty() && self.stream.is_empty()
    }
}

/// Both directions: `ways[n]` carries what end `n` sends.
pub(crate) struct Line {
    pub(crate) ways: [Way; 2],
    /// Who knows that it broke. Until then he sends into it, and gets what was under way.
    pub(crate) noticed: [bool; 2],
}

impl Line {
    pub(crate) fn new() -> Self {
        Self { ways: [Way::new(), Way::new()], noticed: [false; 2] }
    }

    pub(crate) fn cut(&mut self, keep: [usize; 2]) {
        for (way, keep) in self.ways.iter_mut().zip(keep) {
            way.cut(keep);
        }
    }

    pub(crate) fn is_cut(&self) -> bool {
        self.ways[0].closed
    }
}
