//! Two ends of one flow over carriers that an adversary breaks, moves, delays and repeats; what must hold after each of
//! his steps, and at the end. The tests here draw his steps at random, the fuzzer (`fuzz/fuzz_targets`) searches for them.

mod end;
pub(crate) mod hostile;
mod line;
pub(crate) mod stream;

use bytes::Bytes;
use datapath_wire::{
    Phase, Reason,
    flow::{INITIAL_WINDOW, Role},
};
use end::{End, Fate};
use line::Line;

/// So many carriers at most: more show nothing new.
const LINES: usize = 40;

/// See the module.
pub(crate) struct World {
    pub(crate) ends: [End; 2],
    pub(crate) lines: Vec<Line>,
    /// Every OPEN and RESUME, with its carrier.
    starts: Vec<(usize, Bytes)>,
    /// By end: a carrier broke that may have carried its last words, after it had forgotten them.
    lost: [bool; 2],
}

impl World {
    /// The opener wrote `first` bytes before its OPEN leaves.
    pub(crate) fn new(first: u64) -> Self {
        let ends = [End::new(Role::Opener), End::new(Role::Acceptor)];
        let mut w = Self { ends, lines: Vec::new(), starts: Vec::new(), lost: [false; 2] };
        w.ends[0].write(first);
        w.attach();
        w
    }

    /// Steps from bytes: what, and how much.
    pub(crate) fn run(steps: &[u8]) -> Self {
        let mut w = Self::new(u64::from(steps.first().copied().unwrap_or_default()));
        for s in steps.get(1..).unwrap_or_default().chunks_exact(3) {
            w.step(s[0], u16::from_le_bytes([s[1], s[2]]));
        }
        w.finish();
        w
    }

    /// One step of the adversary or of an application. The lowest bit of `op` is the end it is about.
    pub(crate) fn step(&mut self, op: u8, n: u16) {
        let (side, big) = (usize::from(op & 1), u64::from(n));
        let had = self.ends.each_ref().map(|e| e.flow.is_some());
        let some = usize::from(n) % self.lines.len();
        match op / 2 % 17 {
            0 => self.ends[side].write(big % 6 + 1),
            1 => self.ends[side].write(big + 1),
            2 => self.ends[side].read(&mut self.lines, big + 1),
            3 => {
                self.ends[side].pump(&mut self.lines);
            }
            4 => self.lines[some].ways[side].flush(big > 0x8000),
            5 => self.deliver(some, side, usize::from(n / 7) + 1),
            6 => self.ends[side].settle(&mut self.lines, big.is_multiple_of(2)),
            7 => self.everything(side),
            8 => self.attach(),
            9 => self.cut(some, n),
            10 => self.notice(some, side),
            11 => self.ends[1].answer(&mut self.lines, None),
            12 => self.repeat(n),
            13 => self.ends[side].widen(big * 8),
            14 if n.is_multiple_of(4) => self.ends[side].close(),
            15 if n.is_multiple_of(32) => self.ends[side].reset(&mut self.lines, Reason::Reset),
            15 if n % 32 == 1 => self.ends[1].answer(&mut self.lines, Some(Reason::Refused)),
            16 if n.is_multiple_of(16) => self.ends[side].expire(),
            _ => {}
        }
        self.excuse(had);
        self.check();
    }

    /// Whether the last words of an end that went just now are on a carrier that it should not have trusted.
    fn excuse(&mut self, had: [bool; 2]) {
        for (side, had) in had.into_iter().enumerate() {
            if had && self.ends[side].flow.is_none() {
                self.lost[side] |= self.lines.iter().any(|l| l.is_cut() && !l.noticed[side]);
            }
        }
    }

    /// Opener: goes to another carrier, whether or not its own is broken.
    pub(crate) fn attach(&mut self) {
        if self.lines.len() == LINES {
            return;
        }
        self.lines.push(Line::new());
        let to = self.lines.len() - 1;
        if let Some(frame) = self.ends[0].attach(&mut self.lines, to) {
            self.starts.push((to, frame));
        }
    }

    /// Up to `most` bytes of what end `from` sent arrive at the other.
    pub(crate) fn deliver(&mut self, line: usize, from: usize, most: usize) {
        let to = 1 - from;
        if self.lines[line].noticed[to] {
            return;
        }
        let (bytes, mut decoder) = self.lines[line].ways[from].take(most);
        decoder.feed(&bytes, |f| self.ends[to].frame(&mut self.lines, line, &f)).unwrap();
        self.lines[line].ways[from].give_back(decoder);
    }

    pub(crate) fn cut(&mut self, line: usize, n: u16) {
        // Cut within a head, within a large frame, or behind all that is under way.
        let keep = |n: u16| match usize::from(n) {
            n @ 0..100 => n,
            n @ 100..200 => (n - 100) * 997,
            _ => usize::MAX,
        };
        self.lines[line].cut([keep(n & 0xff), keep(n >> 8)]);
        for (lost, end) in self.lost.iter_mut().zip(&self.ends) {
            *lost |= end.flow.is_none();
        }
    }

    /// An end learns that its carrier broke.
    pub(crate) fn notice(&mut self, line: usize, side: usize) {
        if self.lines[line].is_cut() {
            self.lines[line].noticed[side] = true;
            if self.ends[side].via == Some(line) {
                self.ends[side].via = None;
            }
        }
    }

    /// An OPEN or RESUME arrives again.
    fn repeat(&mut self, n: u16) {
        let at = usize::from(n) % self.starts.len();
        let (line, frame) = self.starts[at].clone();
        self.lines[line].ways[0].post(frame, false);
    }

    /// What end `from` can send now goes over, and is read.
    pub(crate) fn everything(&mut self, from: usize) {
        self.pass(from);
        while self.ends[from].pump(&mut self.lines) {
            self.pass(from);
        }
        self.ends[1 - from].read(&mut self.lines, u64::MAX);
        self.ends[1 - from].settle(&mut self.lines, true);
    }

    /// All that end `from` queued arrives.
    pub(crate) fn pass(&mut self, from: usize) {
        for line in 0..self.lines.len() {
            while !self.lines[line].ways[from].is_empty() && !self.lines[line].noticed[1 - from] {
                self.lines[line].ways[from].flush(false);
                self.deliver(line, from, usize::MAX);
            }
        }
    }

    /// What holds at any time.
    fn check(&self) {
        let window = |e: &End| e.flow.as_ref().map(|f| (f.rx.received(), f.rx.limit()));
        for (x, y) in [(0, 1), (1, 0)] {
            let (x, y) = (&self.ends[x], &self.ends[y]);
            assert!(!x.eof || (y.closed && x.read == y.wrote), "an end that nobody sent");
            assert!(x.read + x.queue <= y.wrote);
            let Some(flow) = &x.flow else { continue };
            assert_eq!((flow.rx.waiting(), flow.rx.taken()), (x.queue, x.read));
            assert!(flow.rx.waiting() <= flow.rx.window());
            assert_eq!(flow.tx.end(), x.wrote);
            assert!(flow.tx.unacked() <= INITIAL_WINDOW, "more than this side would keep");
            let sent = flow.tx.end() + flow.budget();
            match window(y) {
                Some((received, limit)) => {
                    assert!(sent <= limit, "{sent} bytes, {limit} allowed");
                    assert!(flow.tx.acked() <= received);
                    assert!(received <= flow.tx.end() + u64::from(x.closed));
                }
                None if y.outcome.is_none() => assert!(sent <= INITIAL_WINDOW),
                None => {}
            }
        }
    }

    /// The adversary tires: more than any credit at hand still arrives, what can end in order does, and nothing hangs.
    pub(crate) fn finish(&mut self) {
        let until = self.ends.each_ref().map(|e| e.wrote + INITIAL_WINDOW + 4096);
        for round in 0..40 {
            if self.ends.iter().all(|e| e.flow.is_none()) {
                return self.judge();
            }
            for side in [0, 1] {
                let had = self.ends.each_ref().map(|e| e.flow.is_some());
                self.everything(side);
                self.excuse(had);
                for line in 0..self.lines.len() {
                    self.notice(line, side);
                }
            }
            if self.ends[0].flow.is_some() && self.ends[0].via.is_none() {
                self.lines.push(Line::new());
                let to = self.lines.len() - 1;
                drop(self.ends[0].attach(&mut self.lines, to));
            }
            self.ends[1].answer(&mut self.lines, None);
            for (end, until) in self.ends.iter_mut().zip(until) {
                end.write(until - end.wrote);
                if end.wrote == until {
                    end.close();
                }
            }
            // Only the opener asks for a carrier. Where it is done, time has to pass for the acceptor. A reset that broke
            // with its carrier reaches nobody, as on any network; that the other end is idle shows late.
            if round > 10 {
                self.ends.iter_mut().for_each(|e| e.give_up_waiting(&mut self.lines));
            }
            if self.ends[0].flow.is_none() {
                if round > 20 {
                    self.ends[1].via = None;
                }
                self.ends[1].expire();
            }
            self.check();
        }
        panic!("stuck: {:?}", self.ends);
    }

    fn judge(&self) {
        let broken = self.ends.iter().any(|e| e.fate != Fate::Regular);
        for (x, y) in [(0, 1), (1, 0)] {
            let lost = self.lost[x];
            let (x, y) = (&self.ends[x], &self.ends[y]);
            // Not when it could tell nobody.
            let left = x.leaves && x.outcome == Some(Phase::Failed(Reason::Reset));
            if left && !lost && y.fate == Fate::Regular {
                assert_eq!(y.read + y.queue, x.wrote, "what was said before a reset");
            }
            let whole = x.eof && y.eof && x.read == y.wrote && y.read == x.wrote;
            if !broken {
                assert_eq!(x.outcome, Some(Phase::Closed), "nobody broke it");
                assert!(whole);
            }
            // Who was told that all went well must be right, unless the peer's application itself gave up.
            if x.outcome == Some(Phase::Closed) {
                assert!(x.eof && x.read == y.wrote);
                assert!(
                    y.fate == Fate::Broke || whole,
                    "closed, but the peer got {} of {}",
                    y.read,
                    x.wrote
                );
            }
        }
    }
}
