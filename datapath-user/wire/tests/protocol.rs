//! The codec for every frame and any split of the stream, and flows over carriers that break.
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::cast_possible_truncation,
    reason = "tests"
)]

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use datapath_wire::{
    Decoder, Frame, Hello, Open, Reason, WireError,
    flow::{Bounds, Flow, Out, Step},
    frame::{self, DATA_HEAD, MAX_DATA, MAX_FIRST, VERSION, data_head, kind},
};
use proptest::prelude::*;

fn hello() -> Frame<'static> {
    Frame::Hello(Hello { version: VERSION, features: 5, epoch: 77, node: "east/a".to_owned() })
}

/// Owned, so that decoded frames can be kept and compared.
fn own(f: &Frame<'_>) -> (String, Vec<u8>) {
    let bytes = match f {
        Frame::Data { bytes, .. } => bytes.to_vec(),
        Frame::Open { first, .. } => first.to_vec(),
        Frame::Packet { bytes } => bytes.to_vec(),
        _ => Vec::new(),
    };
    (format!("{f:?}"), bytes)
}

fn a_frame(which: u8, flow: u32, n: u64, body: &[u8]) -> Frame<'_> {
    let flow = flow.max(1);
    let reason = Reason::ALL[n as usize % Reason::ALL.len()];
    let generation = n as u32;
    let open = Open {
        generation,
        credit: n,
        src: ([10, 0, 0, n as u8], n as u16).into(),
        dst: "[fd00::7]:443".parse().unwrap(),
    };
    match which % 14 {
        0 => Frame::Open { flow, open, first: &body[..body.len().min(MAX_FIRST)] },
        1 => Frame::Accept { flow, credit: n },
        2 => Frame::Reject { flow, reason },
        3 if !body.is_empty() => Frame::Data { flow, offset: n, bytes: body },
        4 => Frame::Ack { flow, offset: n },
        5 => Frame::Credit { flow, limit: n },
        6 => Frame::Fin { flow, offset: n },
        7 => Frame::Rst { flow, reason, after: !n },
        8 => Frame::Resume { flow, generation, received: n, limit: !n },
        9 => Frame::Resumed { flow, generation, received: n, limit: !n },
        10 => Frame::Pong { token: n },
        11 if body.len() >= 20 => Frame::Packet { bytes: body },
        12 => Frame::Listening { sequence: n, at: open.src, open: n.is_multiple_of(2) },
        _ => Frame::Ping { token: n },
    }
}

proptest! {
    #[test]
    fn frames_survive_any_split_of_the_stream(
        frames in prop::collection::vec(
            (any::<u8>(), any::<u32>(), any::<u64>(), prop::collection::vec(any::<u8>(), 0..300)), 0..40),
        cuts in prop::collection::vec(1usize..500, 1..50),
    ) {
        let mut stream = BytesMut::new();
        let mut want = Vec::new();
        hello().encode(&mut stream);
        want.push(own(&hello()));
        for (which, flow, n, body) in &frames {
            let f = a_frame(*which, *flow, *n, body);
            f.encode(&mut stream);
            want.push(own(&f));
        }
        let (mut got, mut d, mut rest, mut i) = (Vec::new(), Decoder::new(), &stream[..], 0);
        while !rest.is_empty() {
            let n = cuts[i % cuts.len()].min(rest.len());
            i += 1;
            d.feed(&rest[..n], |f| got.push(own(&f))).unwrap();
            rest = &rest[n..];
        }
        prop_assert_eq!(got, want);
    }

    #[test]
    fn any_bytes_end_in_frames_or_an_error_that_stays(
        parts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 0..20),
        greet in any::<bool>(),
    ) {
        let mut d = Decoder::new();
        if greet {
            d.feed(&hello().to_bytes(), |_| {}).unwrap();
        }
        let mut failed = None;
        for p in &parts {
            let r = d.feed(p, |_| {});
            if let Some(e) = &failed {
                prop_assert_eq!(r.as_ref(), Err(e));
            }
            failed = r.err().or(failed);
        }
    }
}

#[test]
fn a_long_unknown_short_or_misplaced_frame_is_refused_before_it_is_buffered() {
    let head = |flow: u32, kind: u8, len: u32| {
        let mut b = flow.to_be_bytes().to_vec();
        b.extend_from_slice(&((u32::from(kind) << 24) | len).to_be_bytes());
        b
    };
    let after_hello = |bytes: &[u8]| {
        let mut d = Decoder::new();
        d.feed(&hello().to_bytes(), |_| {}).unwrap();
        d.feed(bytes, |_| {}).unwrap_err()
    };
    let long = (MAX_DATA + 9) as u32;
    assert_eq!(
        after_hello(&head(1, kind::DATA, long)),
        WireError::TooLong { kind: kind::DATA, len: long as usize }
    );
    assert_eq!(after_hello(&head(1, 99, 0)), WireError::UnknownType { kind: 99 });
    assert_eq!(
        after_hello(&head(1, kind::ACK, 7)),
        WireError::Malformed { kind: kind::ACK, len: 7 }
    );
    assert_eq!(
        after_hello(&head(0, kind::RST, 9)),
        WireError::WrongFlow { kind: kind::RST, flow: 0 }
    );
    assert_eq!(after_hello(&hello().to_bytes()), WireError::SecondHello);
    let ping = Frame::Ping { token: 1 }.to_bytes();
    assert_eq!(Decoder::new().feed(&ping, |_| {}), Err(WireError::NoHello));
    let mut old = hello().to_bytes().to_vec();
    old[frame::HEAD + 5] = 9;
    assert_eq!(Decoder::new().feed(&old, |_| {}), Err(WireError::Version { version: 9 }));
}

const BOUNDS: Bounds = Bounds { window: 0, keep: 0 };

/// One end of a flow: what its application wrote and got.
struct End {
    flow: Flow,
    wrote: u64,
    got: u64,
    to_write: u64,
}

fn byte(at: u64) -> u8 {
    (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8
}

impl End {
    fn write(&mut self, n: u64) {
        let n = n.min(self.flow.budget()).min(self.to_write - self.wrote).min(5000);
        if n == 0 {
            return;
        }
        let mut b = BytesMut::from(&data_head(self.flow.id(), self.wrote, n as usize)[..]);
        b.extend((self.wrote..self.wrote + n).map(byte));
        self.flow.tx.push(b.freeze()).unwrap();
        self.wrote += n;
        if self.wrote == self.to_write {
            self.flow.tx.close();
        }
    }
    fn send(&mut self, out: &mut VecDeque<Bytes>) {
        match self.flow.poll_send() {
            Some(Out::Data(b)) => out.push_back(b),
            Some(Out::Fin(offset)) => {
                out.push_back(Frame::Fin { flow: self.flow.id(), offset }.to_bytes());
            }
            None => {}
        }
    }
    fn answer(&mut self, out: &mut VecDeque<Bytes>) {
        let flow = self.flow.id();
        if let Some(limit) = self.flow.rx.credit_due() {
            out.push_back(Frame::Credit { flow, limit }.to_bytes());
        }
        if let Some(offset) = self.flow.rx.ack_due(true) {
            out.push_back(Frame::Ack { flow, offset }.to_bytes());
        }
    }
    fn take(&mut self, f: &Frame<'_>, out: &mut VecDeque<Bytes>) {
        match f {
            Frame::Data { offset, bytes, .. } => {
                let new = self.flow.rx.on_data(*offset, bytes.len()).unwrap();
                for b in &bytes[new] {
                    assert_eq!(*b, byte(self.got), "at {}", self.got);
                    self.got += 1;
                    self.flow.rx.delivered(1);
                }
            }
            Frame::Fin { offset, .. } => {
                self.flow.rx.on_fin(*offset).unwrap();
                if self.flow.rx.at_fin() {
                    self.flow.rx.fin_delivered();
                }
            }
            Frame::Ack { offset, .. } => self.flow.tx.on_ack(*offset).unwrap(),
            Frame::Credit { limit, .. } => self.flow.tx.on_credit(*limit),
            Frame::Resume { generation, received, limit, .. } => {
                if let Some(a) = self.flow.on_resume(*generation, *received, *limit).unwrap() {
                    out.push_back(a.to_bytes());
                }
            }
            Frame::Resumed { generation, received, limit, .. } => {
                self.flow.on_resumed(*generation, *received, *limit).unwrap();
            }
            _ => panic!("unexpected {f:?}"),
        }
    }
}

/// A carrier: what is in flight each way. Old ones may still deliver (a lane change) or not (a
/// break); either way in order.
#[derive(Default)]
struct Line {
    to_b: VecDeque<Bytes>,
    to_a: VecDeque<Bytes>,
}

fn deliver(queue: &mut VecDeque<Bytes>, to: &mut End, answers: &mut VecDeque<Bytes>) {
    let Some(b) = queue.pop_front() else { return };
    let mut d = Decoder::new();
    d.feed(&hello().to_bytes(), |_| {}).unwrap();
    d.feed(&b, |f| to.take(&f, answers)).unwrap();
}

/// Over which carrier the acceptor sends: the one of the last RESUME that reached it.
#[derive(Clone, Copy, PartialEq)]
enum Via {
    Now,
    Before,
    Gone,
}

struct World {
    a: End,
    b: End,
    now: Line,
    before: Line,
    via: Via,
}

impl World {
    fn new(a_bytes: u64, b_bytes: u64) -> Self {
        let mut a = Flow::opening(9, BOUNDS);
        let open = a.open_frame(([10, 0, 0, 1], 1).into(), ([10, 0, 0, 2], 2).into());
        let mut b = Flow::accepting(9, &open, BOUNDS);
        b.step(Step::Accepted);
        a.step(Step::Accepted);
        let end = |flow, to_write| End { flow, wrote: 0, got: 0, to_write };
        let (a, b) = (end(a, a_bytes), end(b, b_bytes));
        Self { a, b, now: Line::default(), before: Line::default(), via: Via::Now }
    }
    fn b_sends(&mut self, frames: VecDeque<Bytes>) {
        match self.via {
            Via::Now => self.now.to_a.extend(frames),
            Via::Before => self.before.to_a.extend(frames),
            Via::Gone => {}
        }
    }
    fn reach_b(&mut self, line: Via) {
        let mut answers = VecDeque::new();
        let queue = if line == Via::Now { &mut self.now.to_b } else { &mut self.before.to_b };
        deliver(queue, &mut self.b, &mut answers);
        if !answers.is_empty() {
            self.via = line; // only RESUME is answered at once
        }
        self.b_sends(answers);
    }
    fn act(&mut self, op: u8, n: u64) {
        let mut out = VecDeque::new();
        match op % 12 {
            0 | 1 => self.a.write(n),
            2 | 3 => self.b.write(n),
            4 => self.a.send(&mut self.now.to_b),
            5 => self.b.send(&mut out),
            6 => self.a.answer(&mut self.now.to_b),
            7 => self.b.answer(&mut out),
            8 => self.reach_b(Via::Now),
            9 => deliver(&mut self.now.to_a, &mut self.a, &mut self.now.to_b),
            // What the old carrier still holds arrives between all else.
            10 => {
                self.reach_b(Via::Before);
                deliver(&mut self.before.to_a, &mut self.a, &mut self.now.to_b);
            }
            _ if n.is_multiple_of(8) => self.change(n.is_multiple_of(16)),
            _ => {}
        }
        self.b_sends(out);
    }
    /// Another carrier; the old one's frames are lost (break) or late (move).
    fn change(&mut self, lost: bool) {
        let old = std::mem::take(&mut self.now);
        self.before = if lost { Line::default() } else { old };
        self.via = if self.via == Via::Now && !lost { Via::Before } else { Via::Gone };
        match self.a.flow.resume() {
            Some(f) => self.now.to_b.push_back(f.to_bytes()),
            None => panic!("an accepted flow resumes"),
        }
    }
    fn finish(&mut self) {
        for round in 0..100_000 {
            if self.a.flow.is_drained() && self.b.flow.is_drained() {
                return;
            }
            for op in [0, 2, 4, 5, 6, 7, 8, 9, 10] {
                self.act(op, 5000 + round);
            }
        }
        panic!("stuck: {:?} {:?}", self.a.flow, self.b.flow);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn breaks_and_moves_at_any_point_lose_and_double_no_byte(
        sizes in (0u64..400_000, 0u64..400_000),
        ops in prop::collection::vec((any::<u8>(), any::<u64>()), 0..800),
    ) {
        let (a, b) = (sizes.0 + 1, sizes.1 + 1);
        let mut w = World::new(a, b);
        for (op, n) in ops {
            w.act(op, n);
        }
        w.finish();
        prop_assert_eq!((w.a.got, w.b.got), (b, a));
    }
}

#[test]
fn an_old_resume_from_a_dying_carrier_changes_nothing() {
    let mut w = World::new(1, 1);
    let first = w.a.flow.resume();
    let second = w.a.flow.resume();
    let at = |f: Option<Frame<'_>>| match f {
        Some(Frame::Resume { generation, received, limit, .. }) => (generation, received, limit),
        other => panic!("{other:?}"),
    };
    let (one, two) = (at(first), at(second));
    assert!(w.b.flow.on_resume(two.0, two.1, two.2).unwrap().is_some());
    assert!(w.b.flow.on_resume(one.0, one.1, one.2).unwrap().is_none());
    assert!(!w.a.flow.on_resumed(one.0, 0, 0).unwrap());
    assert!(w.a.flow.on_resumed(two.0, 0, 0).unwrap());
}

#[test]
fn credit_bounds_what_is_kept_and_a_peer_cannot_exceed_it() {
    let mut w = World::new(u64::MAX, 1);
    while w.a.flow.budget() > 0 {
        w.a.write(5000);
    }
    assert_eq!(w.a.flow.tx.unacked(), datapath_wire::flow::INITIAL_WINDOW);
    w.a.flow.tx.on_credit(u64::MAX);
    assert_eq!(w.a.flow.budget(), 0, "not more than this side is willing to keep");
    let limit = w.b.flow.rx.limit();
    assert!(w.b.flow.rx.on_data(0, limit as usize + 1).is_err());
    assert!(w.b.flow.rx.on_data(1, 1).is_err(), "a gap");
    assert!(w.b.flow.tx.on_ack(1).is_err(), "nothing was sent");
    assert_eq!(DATA_HEAD, frame::HEAD + 8);
}

/// The opener had heard no ACCEPT when it opened again, and acknowledges what came by the older way before that arrives.
#[test]
fn an_open_again_takes_nothing_back_that_was_acknowledged() {
    let bounds = Bounds { window: 1 << 16, keep: 1 << 16 };
    let open = |generation| Open {
        generation,
        credit: 1 << 16,
        src: ([10, 0, 0, 1], 1).into(),
        dst: ([10, 0, 0, 2], 2).into(),
    };
    let mut acceptor = Flow::accepting(7, &open(0), bounds);
    acceptor.step(Step::Accepted);
    let frame = |offset: u64, bytes: &[u8]| {
        let mut b = BytesMut::from(&data_head(7, offset, bytes.len())[..]);
        b.extend_from_slice(bytes);
        b.freeze()
    };
    for (offset, bytes) in [(0, b"first"), (5, b"again")] {
        acceptor.tx.push(frame(offset, bytes)).unwrap();
        assert!(matches!(acceptor.poll_send(), Some(Out::Data(_))));
    }
    acceptor.tx.on_ack(5).unwrap();
    assert!(acceptor.on_reopen(&open(1)).unwrap().is_some());
    let Some(Out::Data(sent)) = acceptor.poll_send() else { panic!("nothing is sent again") };
    assert_eq!(sent, frame(5, b"again"), "what is not acknowledged, and no more");
    assert!(acceptor.poll_send().is_none());
    assert!(acceptor.on_reopen(&open(1)).unwrap().is_none(), "the same again is late");
}
