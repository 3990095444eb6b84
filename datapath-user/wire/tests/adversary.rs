//! One flow against all that carriers and peers can do to it (see `model`).
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::cast_possible_truncation,
    reason = "tests"
)]

#[expect(dead_code, reason = "shared with the fuzzer and its corpus")]
mod model;

use datapath_wire::{Phase, Reason};
use model::{World, hostile::Hostile};
use proptest::{prelude::*, sample::select};

/// Steps of [`World::step`]: mostly traffic, often carriers, seldom ends.
fn steps() -> impl Strategy<Value = Vec<(u8, u16)>> {
    let both = |ops: &[u8]| ops.iter().flat_map(|op| [op * 2, op * 2 + 1]).collect::<Vec<_>>();
    let traffic = select(both(&[0, 1, 2, 3, 3, 4, 4, 5, 5, 6, 7, 11, 13]));
    let carriers = select(both(&[8, 9, 10, 12]));
    let ends = select(both(&[14, 15, 16]));
    let op = prop_oneof![20 => traffic, 4 => carriers, 1 => ends];
    prop::collection::vec((op, any::<u16>()), 0..400)
}

proptest! {
    // What the fuzzer finds is kept in its corpus, which `corpus.rs` repeats.
    #![proptest_config(ProptestConfig {
        cases: 400,
        max_shrink_time: 20_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn bytes_and_ends_arrive_once_and_in_order_whatever_carriers_do(
        first in any::<u8>(),
        steps in steps(),
    ) {
        let mut w = World::new(first.into());
        for (op, n) in steps {
            w.step(op, n);
        }
        w.finish();
    }

    #[test]
    fn a_peer_that_says_anything_breaks_no_promise(
        opener in any::<bool>(),
        steps in prop::collection::vec((0u8..18, 0u8..8, -3i16..4, any::<u8>()), 0..300),
    ) {
        let mut h = Hostile::new(opener);
        for (op, which, delta, n) in steps {
            h.step(op, which, delta, n);
        }
    }
}

/// Everything that is queued on `line` at end `from` arrives.
fn arrives(w: &mut World, line: usize, from: usize) {
    while !w.lines[line].ways[from].is_empty() {
        w.lines[line].ways[from].flush(false);
        w.deliver(line, from, usize::MAX);
    }
}

/// Carrier `line` breaks with all that is under way, and both ends notice.
fn breaks(w: &mut World, line: usize) {
    w.lines[line].cut([0, 0]);
    for side in [0, 1] {
        w.notice(line, side);
    }
}

#[test]
fn an_open_that_is_overtaken_by_its_repetition_still_gives_its_first_bytes() {
    let mut w = World::new(100);
    w.ends[0].write(5000);
    // OPEN leaves its queue, which gives the turn to the next frame.
    w.lines[0].ways[0].flush(false);
    w.ends[0].pump(&mut w.lines);
    w.attach();
    arrives(&mut w, 1, 0);
    // The old carrier was slow, not broken: OPEN with the first bytes, then DATA behind them.
    arrives(&mut w, 0, 0);
    assert_eq!(w.ends[1].queue, 5100);
    w.finish();
}

#[test]
fn a_flow_whose_data_overtook_its_accept_goes_on_after_a_break() {
    let mut w = World::new(1);
    arrives(&mut w, 0, 0);
    w.ends[1].answer(&mut w.lines, None);
    w.ends[1].write(60_000);
    w.ends[1].pump(&mut w.lines);
    w.lines[0].ways[1].flush(true);
    w.deliver(0, 1, usize::MAX);
    w.ends[0].settle(&mut w.lines, true);
    arrives(&mut w, 0, 0);
    assert_eq!(w.ends[0].queue, 60_000);
    assert_eq!(w.ends[0].flow.as_ref().unwrap().phase(), Phase::Opening);
    breaks(&mut w, 0);
    w.attach();
    w.finish();
}

/// Both applications end; `late` reads nothing yet, and the other end's relay is done and forgets the flow. Its last ACK
/// is still in its queue.
fn one_end_is_done(late: usize) -> World {
    let mut w = World::new(100);
    arrives(&mut w, 0, 0);
    w.ends[1].answer(&mut w.lines, None);
    w.ends[1 - late].write(3000);
    for end in &mut w.ends {
        end.close();
    }
    for side in [1 - late, late] {
        while w.ends[side].pump(&mut w.lines) {
            arrives(&mut w, 0, side);
        }
    }
    w.ends[1 - late].read(&mut w.lines, u64::MAX);
    w.ends[late].settle(&mut w.lines, true);
    arrives(&mut w, 0, late);
    assert_eq!(w.ends[1 - late].outcome, Some(Phase::Closed));
    assert!(w.ends[late].queue > 0 && w.ends[late].flow.is_some());
    w
}

#[test]
fn a_late_reader_gets_all_when_the_peer_is_done_and_the_carrier_breaks() {
    for late in [0, 1] {
        let mut w = one_end_is_done(late);
        arrives(&mut w, 0, 1 - late);
        breaks(&mut w, 0);
        assert!(!w.ends[late].flow.as_ref().unwrap().needs_peer(), "{late}");
        w.ends[late].expire();
        w.finish();
        assert_eq!(w.ends[late].outcome, Some(Phase::Closed), "{late}");
    }
}

#[test]
fn a_late_reader_gets_all_though_the_last_ack_was_lost() {
    let mut w = one_end_is_done(0);
    breaks(&mut w, 0);
    w.attach();
    w.finish();
    assert_eq!(w.ends[0].outcome, Some(Phase::Closed), "nobody knows the flow, which says enough");
    // The acceptor cannot ask: it delivers, and cannot know how it ended.
    let mut w = one_end_is_done(1);
    breaks(&mut w, 0);
    w.ends[1].expire();
    w.finish();
    assert!(w.ends[1].eof && w.ends[1].read == w.ends[0].wrote);
}

#[test]
fn an_answer_to_an_earlier_resume_moves_nothing() {
    let mut w = World::new(100);
    arrives(&mut w, 0, 0);
    w.ends[1].answer(&mut w.lines, None);
    arrives(&mut w, 0, 1);
    w.attach();
    arrives(&mut w, 1, 0);
    // RESUMED says 100 bytes; before it arrives the flow moves again, and more bytes go over.
    w.attach();
    arrives(&mut w, 2, 0);
    arrives(&mut w, 2, 1);
    w.ends[0].write(50);
    w.ends[0].pump(&mut w.lines);
    arrives(&mut w, 2, 0);
    w.ends[1].settle(&mut w.lines, true);
    arrives(&mut w, 2, 1);
    w.attach();
    arrives(&mut w, 1, 1);
    assert!(!w.ends[0].flow.as_ref().unwrap().wants_send(), "it waits for the answer of the third");
    w.finish();
}

/// A server answers and resets; the client's end moves meanwhile, and its question is answered on a faster carrier.
#[test]
fn what_was_said_before_a_reset_is_waited_for_on_every_carrier() {
    let mut w = World::new(100);
    arrives(&mut w, 0, 0);
    w.ends[1].answer(&mut w.lines, None);
    w.ends[1].write(500);
    w.ends[1].pump(&mut w.lines);
    w.lines[0].ways[1].flush(false);
    w.lines[0].ways[1].flush(false);
    w.ends[1].reset(&mut w.lines, Reason::Reset);
    assert!(w.ends[1].flow.is_none(), "all is on its way");
    w.attach();
    arrives(&mut w, 1, 0);
    arrives(&mut w, 1, 1);
    assert!(w.ends[0].flow.is_some(), "the end is known, what came before it is not");
    arrives(&mut w, 0, 1);
    assert_eq!((w.ends[0].queue, w.ends[0].outcome), (500, Some(Phase::Failed(Reason::PeerGone))));
    w.finish();
}

/// The peer was told that the flow ends, and has forgotten it.
#[test]
fn an_application_that_leaves_while_its_end_asks_does_not_wait_for_who_is_done() {
    let mut w = one_end_is_done(0);
    breaks(&mut w, 0);
    w.attach();
    w.ends[0].reset(&mut w.lines, Reason::Reset);
    assert!(w.ends[0].flow.is_some(), "it does not know yet");
    arrives(&mut w, 1, 0);
    arrives(&mut w, 1, 1);
    assert_eq!(w.ends[0].outcome, Some(Phase::Failed(Reason::Reset)));
    w.finish();
}
