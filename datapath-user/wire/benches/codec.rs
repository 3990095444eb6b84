//! What a frame costs: written, found in the stream, and carried through both state machines of its flow.
//!
//!     cargo bench -p datapath-wire
#![expect(clippy::expect_used, reason = "a bench that cannot make its own input cannot go on")]

use bytes::{Bytes, BytesMut};
use datapath_wire::{
    Decoder, Frame, Hello,
    flow::{Bounds, Flow, Out, Step},
    frame::{DATA_HEAD, MAX_DATA, VERSION, data_head},
};
use divan::{Bencher, black_box, counter::BytesCount, counter::ItemsCount};

fn main() {
    divan::main();
}

const SIZES: [usize; 5] = [64, 1024, 4096, 16_384, MAX_DATA];
/// Small frames arrive together.
const BATCH: usize = 100;

fn greeted() -> Decoder {
    let mut d = Decoder::new();
    let hello = Hello { version: VERSION, features: 0, epoch: 1, node: "east/a".to_owned() };
    d.feed(&Frame::Hello(hello).to_bytes(), |_| {}).expect("our own HELLO");
    d
}

fn data(len: usize) -> Bytes {
    let mut b = BytesMut::new();
    Frame::Data { flow: 7, offset: 1 << 20, bytes: &vec![7; len] }.encode(&mut b);
    b.freeze()
}

#[divan::bench(args = SIZES)]
fn encode_data(b: Bencher<'_, '_>, len: usize) {
    let (bytes, mut out) = (vec![7; len], BytesMut::with_capacity(DATA_HEAD + len));
    b.counter(BytesCount::new(len)).bench_local(|| {
        out.clear();
        Frame::Data { flow: 7, offset: 1 << 20, bytes: black_box(&bytes) }.encode(&mut out);
        out.len()
    });
}

/// As the relay does it: the bytes were read behind the room for the head.
#[divan::bench]
fn encode_the_head_alone() -> [u8; DATA_HEAD] {
    data_head(black_box(7), black_box(1 << 20), black_box(4096))
}

#[divan::bench(args = SIZES)]
fn decode_a_whole_frame(b: Bencher<'_, '_>, len: usize) {
    let (frame, mut d) = (data(len), greeted());
    b.counter(BytesCount::new(len)).bench_local(|| {
        let mut n = 0;
        d.feed(black_box(&frame), |f| n += usize::from(matches!(f, Frame::Data { .. })))
            .expect("our own frame");
        n
    });
}

/// The stream was cut within the frame: what came before is kept and completed.
#[divan::bench(args = SIZES)]
fn decode_a_frame_in_two_pieces(b: Bencher<'_, '_>, len: usize) {
    let (frame, mut d) = (data(len), greeted());
    let (one, other) = frame.split_at(frame.len() / 2);
    b.counter(BytesCount::new(len)).bench_local(|| {
        d.feed(black_box(one), |_| {}).expect("our own frame");
        d.feed(black_box(other), |_| {}).expect("our own frame");
    });
}

#[divan::bench]
fn decode_100_acks(b: Bencher<'_, '_>) {
    let mut stream = BytesMut::new();
    for offset in 0..BATCH as u64 {
        Frame::Ack { flow: 7, offset }.encode(&mut stream);
    }
    let mut d = greeted();
    b.counter(ItemsCount::new(BATCH)).bench_local(|| {
        let mut n = 0;
        d.feed(black_box(&stream), |_| n += 1).expect("our own frames");
        n
    });
}

/// A frame is taken over, leaves, arrives, is delivered, and is acknowledged; credit when it is due.
#[divan::bench(args = SIZES)]
fn carry_a_frame(b: Bencher<'_, '_>, len: usize) {
    let bounds = Bounds { window: 2 << 20, keep: 2 << 20 };
    let mut from = Flow::opening(7, bounds);
    let open = from.open_frame(([10, 0, 0, 1], 1).into(), ([10, 0, 0, 2], 2).into());
    let mut to = Flow::accepting(7, &open, bounds);
    from.step(Step::Accepted);
    to.step(Step::Accepted);
    // As ACCEPT says it.
    from.tx.on_credit(to.rx.limit());
    let frame = data(len);
    b.counter(BytesCount::new(len)).bench_local(|| {
        let offset = from.tx.end();
        from.tx.push(frame.clone()).expect("within the credit");
        let Some(Out::Data(sent)) = from.poll_send() else { return };
        to.rx.on_data(offset, sent.len() - DATA_HEAD).expect("in order");
        to.rx.delivered(len);
        if let Some(limit) = to.rx.credit_due() {
            from.tx.on_credit(limit);
        }
        if let Some(offset) = to.rx.ack_due(false) {
            from.tx.on_ack(offset).expect("was sent");
        }
    });
}
