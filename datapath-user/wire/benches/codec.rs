//! What a frame costs: written, found in the stream, and carried through both state machines of its flow.
//!
//!     cargo bench -p datapath-wire
#![expect(clippy::expect_used, reason = "a bench that cannot make its own input cannot go on")]

use std::hint::black_box;

use bytes::{Bytes, BytesMut};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use datapath_wire::{
    Decoder, Frame, Hello,
    flow::{Bounds, Flow, Out, Step},
    frame::{DATA_HEAD, MAX_DATA, VERSION, data_head},
};

const SIZES: [usize; 5] = [64, 1024, 4096, 16_384, MAX_DATA];
/// Small frames arrive together.
const BATCH: u64 = 100;

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

/// One bench per size of a frame's data, which `work` is made for.
fn by_size<T, F: FnMut() -> T>(c: &mut Criterion, name: &str, work: impl Fn(usize) -> F) {
    let mut group = c.benchmark_group(name);
    for len in SIZES {
        group.throughput(Throughput::Bytes(len as u64));
        let mut work = work(len);
        group.bench_function(BenchmarkId::from_parameter(len), |b| b.iter(&mut work));
    }
    group.finish();
}

fn encode(c: &mut Criterion) {
    by_size(c, "encode data", |len| {
        let (bytes, mut out) = (vec![7; len], BytesMut::with_capacity(DATA_HEAD + len));
        move || {
            out.clear();
            Frame::Data { flow: 7, offset: 1 << 20, bytes: black_box(&bytes) }.encode(&mut out);
            out.len()
        }
    });
    // As the relay does it: the bytes were read behind the room for the head.
    c.bench_function("encode the head alone", |b| {
        b.iter(|| data_head(black_box(7), black_box(1 << 20), black_box(4096)));
    });
}

fn decode(c: &mut Criterion) {
    by_size(c, "decode a whole frame", |len| {
        let (frame, mut d) = (data(len), greeted());
        move || {
            let mut n = 0;
            d.feed(black_box(&frame), |f| n += usize::from(matches!(f, Frame::Data { .. })))
                .expect("our own frame");
            n
        }
    });
    // The stream was cut within the frame: what came before is kept and completed.
    by_size(c, "decode a frame in two pieces", |len| {
        let (frame, mut d) = (data(len), greeted());
        move || {
            let (one, other) = frame.split_at(frame.len() / 2);
            d.feed(black_box(one), |_| {}).expect("our own frame");
            d.feed(black_box(other), |_| {}).expect("our own frame");
        }
    });
    let mut stream = BytesMut::new();
    for offset in 0..BATCH {
        Frame::Ack { flow: 7, offset }.encode(&mut stream);
    }
    let mut group = c.benchmark_group("decode acks");
    group.throughput(Throughput::Elements(BATCH));
    let mut d = greeted();
    group.bench_function(BenchmarkId::from_parameter(BATCH), |b| {
        b.iter(|| {
            let mut n = 0;
            d.feed(black_box(&stream), |_| n += 1).expect("our own frames");
            n
        });
    });
    group.finish();
}

/// A frame is taken over, leaves, arrives, is delivered, and is acknowledged; credit when it is due.
fn carry(c: &mut Criterion) {
    let bounds = Bounds { window: 2 << 20, keep: 2 << 20 };
    by_size(c, "carry a frame", |len| {
        let mut from = Flow::opening(7, bounds);
        let open = from.open_frame(([10, 0, 0, 1], 1).into(), ([10, 0, 0, 2], 2).into());
        let mut to = Flow::accepting(7, &open, bounds);
        from.step(Step::Accepted);
        to.step(Step::Accepted);
        // As ACCEPT says it.
        from.tx.on_credit(to.rx.limit());
        let frame = data(len);
        move || {
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
        }
    });
}

criterion_group!(benches, encode, decode, carry);
criterion_main!(benches);
