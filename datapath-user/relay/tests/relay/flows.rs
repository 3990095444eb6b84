//! Bytes, ends and resets cross as what they are.

use std::{
    io::{ErrorKind, Read, Write},
    net::Shutdown,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use datapath_relay::{FlowState, Lane, Reason};

use crate::pair::{
    Pair, VIP_A, VIP_B, check_pattern, echo_server, eventually, failed, pattern, send_pattern,
    serve,
};

#[test]
fn an_echo_crosses_and_the_flow_ends_in_order_on_both_sides() {
    let p = Pair::new();
    let mut s = p.connect(echo_server());
    s.write_all(b"hello").unwrap();
    let mut b = [0; 5];
    s.read_exact(&mut b).unwrap();
    assert_eq!(&b, b"hello");
    s.shutdown(Shutdown::Write).unwrap();
    assert_eq!(s.read(&mut b).unwrap(), 0);
    eventually("both sides count a closed flow", || {
        p.a.counters().flows_closed == 1 && p.b.counters().flows_closed == 1
    });
    let f = p.a.flows().remove(0);
    assert_eq!((f.bytes_out, f.bytes_in, f.state), (5, 5, FlowState::Closed));
    assert_eq!(f.carrier, "hub:west/b:interactive");
    assert!(f.outgoing && f.from_pod == "actor-0");
    let back = p.b.flows().remove(0);
    assert_eq!((back.bytes_out, back.bytes_in, back.outgoing), (5, 5, false));
    assert_eq!((back.src.ip(), back.dst.ip()), (VIP_A.into(), VIP_B.into()));
    assert_eq!((p.a.counters().flows_now, p.b.counters().flows_now), (0, 0));
}

#[test]
fn a_flow_of_256_mib_each_way_at_once_arrives_whole() {
    const TOTAL: u64 = 256 << 20;
    let p = Pair::new();
    let port = serve(|mut s| {
        let mut w = s.try_clone().unwrap();
        let t = thread::spawn(move || {
            send_pattern(&mut w, TOTAL);
            w.shutdown(Shutdown::Write).unwrap();
        });
        assert_eq!(check_pattern(&mut s), TOTAL);
        t.join().unwrap();
    });
    let mut s = p.connect(port);
    let mut w = s.try_clone().unwrap();
    let t = thread::spawn(move || {
        send_pattern(&mut w, TOTAL);
        w.shutdown(Shutdown::Write).unwrap();
    });
    assert_eq!(check_pattern(&mut s), TOTAL);
    t.join().unwrap();
    eventually("both ends closed", || {
        p.a.counters().flows_closed == 1 && p.b.counters().flows_closed == 1
    });
    let c = p.a.counters();
    assert_eq!(c.flows_moved, 1, "a bulky flow moves to the bulk lane once");
    assert!(p.a.carriers().iter().any(|c| c.lane == Lane::Bulk));
}

#[test]
fn the_client_may_end_first_and_still_read() {
    let p = Pair::new();
    let port = serve(|mut s| {
        let mut all = Vec::new();
        s.read_to_end(&mut all).unwrap();
        s.write_all(&all).unwrap();
    });
    let mut s = p.connect(port);
    s.write_all(b"question").unwrap();
    s.shutdown(Shutdown::Write).unwrap();
    let mut all = Vec::new();
    s.read_to_end(&mut all).unwrap();
    assert_eq!(all, b"question");
}

/// Nothing is read from it any more and nothing written to it: only its error tells.
#[test]
fn a_client_that_is_killed_after_its_end_is_told_to_a_server_that_says_nothing() {
    let p = Pair::new();
    let (tx, rx) = mpsc::channel();
    let port = serve(move |mut s| {
        s.read_to_end(&mut Vec::new()).unwrap();
        s.write_all(b"x").unwrap();
        let mut error = None;
        eventually("the server is told", || {
            error = s.take_error().unwrap();
            error.is_some()
        });
        tx.send(error.map(|e| e.kind())).unwrap();
    });
    let mut s = p.connect(port);
    s.shutdown(Shutdown::Write).unwrap();
    // With it comes the word that the end has arrived.
    s.read_exact(&mut [0]).unwrap();
    socket2::SockRef::from(&s).set_linger(Some(Duration::ZERO)).unwrap();
    drop(s);
    let told = rx.recv_timeout(Duration::from_secs(30)).unwrap();
    assert_eq!(told, Some(ErrorKind::BrokenPipe), "as of any reset after an end");
}

#[test]
fn the_server_may_end_first_and_still_read() {
    let p = Pair::new();
    let (tx, rx) = mpsc::channel();
    let port = serve(move |mut s| {
        s.write_all(b"banner").unwrap();
        s.shutdown(Shutdown::Write).unwrap();
        let mut all = Vec::new();
        s.read_to_end(&mut all).unwrap();
        tx.send(all).unwrap();
    });
    let mut s = p.connect(port);
    let mut all = Vec::new();
    s.read_to_end(&mut all).unwrap();
    assert_eq!(all, b"banner");
    s.write_all(b"late").unwrap();
    drop(s);
    assert_eq!(rx.recv_timeout(Duration::from_secs(10)).unwrap(), b"late");
}

#[test]
fn a_client_that_connects_and_closes_leaves_nothing() {
    let p = Pair::new();
    drop(p.connect(echo_server()));
    eventually("the flow ended everywhere", || {
        p.b.counters().flows_accepted == 1
            && p.a.counters().flows_now == 0
            && p.b.counters().flows_now == 0
    });
}

#[test]
fn a_reset_by_the_client_resets_the_server() {
    let p = Pair::new();
    let (tx, rx) = mpsc::channel();
    let port = serve(move |mut s| {
        let mut b = [0; 16];
        s.read_exact(&mut b[..1]).unwrap();
        tx.send(s.read(&mut b).map_err(|e| e.kind())).unwrap();
    });
    let mut s = p.connect(port);
    s.write_all(b"x").unwrap();
    eventually("open", || p.a.flows().iter().any(|f| f.state == FlowState::Open));
    socket2::SockRef::from(&s).set_linger(Some(Duration::ZERO)).unwrap();
    drop(s);
    let got = rx.recv_timeout(Duration::from_secs(10)).unwrap();
    assert_eq!(got, Err(ErrorKind::ConnectionReset));
    assert_eq!(failed(&p.a.counters(), Reason::Reset), 1);
}

#[test]
fn a_reset_by_the_server_resets_the_client() {
    let p = Pair::new();
    let port = serve(|mut s| {
        s.read_exact(&mut [0]).unwrap();
        socket2::SockRef::from(&s).set_linger(Some(Duration::ZERO)).unwrap();
    });
    let mut s = p.connect(port);
    s.write_all(b"x").unwrap();
    let e = s.read(&mut [0]).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::ConnectionReset);
}

#[test]
fn a_refused_connect_resets_the_client_at_once_and_says_why() {
    let p = Pair::new();
    let mut s = p.connect(1);
    let e = s.read(&mut [0]).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::ConnectionReset);
    eventually("counted", || failed(&p.a.counters(), Reason::Refused) == 1);
    assert_eq!(p.a.flows().remove(0).reason, Some(Reason::Refused));
    assert_eq!(failed(&p.b.counters(), Reason::Refused), 1);
}

#[test]
fn a_stalled_reader_costs_its_own_credit_only() {
    let p = Pair::new();
    let port = echo_server();
    let hold = serve(|s| {
        thread::sleep(Duration::from_secs(600));
        drop(s);
    });
    let stalled = p.connect(hold);
    stalled.set_nonblocking(true).unwrap();
    let mut sent = 0;
    let chunk = vec![7; 64 << 10];
    let mut quiet = Instant::now();
    while quiet.elapsed() < Duration::from_millis(300) {
        match (&stalled).write(&chunk) {
            Ok(n) => {
                sent += n;
                quiet = Instant::now();
            }
            Err(_) => thread::sleep(Duration::from_millis(5)),
        }
    }
    assert!(sent < 64 << 20, "{sent} bytes went into a reader that takes none");
    let mut all: Vec<_> = (0..200).map(|_| p.connect(port)).collect();
    let begin = Instant::now();
    for round in 0..5u8 {
        for s in &mut all {
            s.write_all(&[round; 1024]).unwrap();
        }
        for s in &mut all {
            let mut b = [0; 1024];
            s.read_exact(&mut b).unwrap();
            assert_eq!(b, [round; 1024]);
        }
    }
    assert!(begin.elapsed() < Duration::from_secs(10));
}

#[test]
fn both_directions_of_many_flows_full_at_once_never_stop() {
    // Every byte comes back, nobody reads before the pipes are full in both directions.
    const TOTAL: u64 = 24 << 20;
    let p = Pair::new();
    let (near, far) = (echo_server(), echo_server());
    let work: Vec<_> = (0..8)
        .map(|i| {
            let mut s = if i % 2 == 0 { p.connect(near) } else { p.connect_back(far) };
            thread::spawn(move || {
                let mut w = s.try_clone().unwrap();
                let t = thread::spawn(move || {
                    send_pattern(&mut w, TOTAL);
                    w.shutdown(Shutdown::Write).unwrap();
                });
                thread::sleep(Duration::from_millis(200));
                assert_eq!(check_pattern(&mut s), TOTAL);
                t.join().unwrap();
            })
        })
        .collect();
    for w in work {
        w.join().unwrap();
    }
}

#[test]
fn a_thousand_flows_at_once_each_get_their_own_bytes() {
    let p = Pair::new();
    let port = echo_server();
    let mut all: Vec<_> = (0..1000).map(|_| p.connect(port)).collect();
    for (i, s) in all.iter_mut().enumerate() {
        let mut b = [0; 2000];
        pattern(i as u64 * 100_000, &mut b);
        s.write_all(&b).unwrap();
    }
    for (i, s) in all.iter_mut().enumerate() {
        let (mut want, mut b) = ([0; 2000], [0; 2000]);
        pattern(i as u64 * 100_000, &mut want);
        s.read_exact(&mut b).unwrap();
        assert!(b == want, "flow {i} got other bytes");
    }
    drop(all);
    eventually("all ended", || p.a.counters().flows_now == 0 && p.b.counters().flows_now == 0);
}

#[test]
fn more_flows_than_allowed_are_reset_with_a_reason() {
    let p = Pair::with(|c| c.flows_per_pod = 2);
    let port = echo_server();
    let mut held: Vec<_> = (0..2).map(|_| p.connect(port)).collect();
    for s in &mut held {
        s.write_all(b"x").unwrap();
        s.read_exact(&mut [0]).unwrap();
    }
    let mut third = p.connect(port);
    assert_eq!(third.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert_eq!(failed(&p.a.counters(), Reason::Limit), 1);
    held.clear();
    eventually("room again", || p.a.counters().flows_now == 0 && p.b.counters().flows_now == 0);
    let mut next = p.connect(port);
    next.write_all(b"x").unwrap();
    next.read_exact(&mut [0]).unwrap();
}

/// As an HTTP server that answers "too large" during an upload.
#[test]
fn an_early_answer_arrives_before_the_reset() {
    let p = Pair::new();
    let port = serve(|mut s| {
        s.read_exact(&mut [0; 1000]).unwrap();
        s.write_all(&[b'r'; 500]).unwrap();
    });
    for _ in 0..20 {
        let mut s = p.connect(port);
        let sent = s.write_all(&vec![7; 64 << 20]);
        assert!(sent.is_err(), "nobody reads it");
        let mut got = Vec::new();
        let end = s.read_to_end(&mut got).map_err(|e| e.kind());
        assert_eq!(got.len(), 500, "{end:?}");
    }
    eventually("no flow is left", || {
        p.a.counters().flows_now == 0 && p.b.counters().flows_now == 0
    });
}

/// The flow moves to the other lane while the server answers and goes: what it said is on the old carrier, the end may be told on the new
/// one first.
#[test]
fn an_early_answer_arrives_though_the_flow_changes_lanes() {
    const AFTER: usize = 200 << 10;
    let p = Pair::with(|c| c.bulk_after = AFTER as u64);
    let port = serve(|mut s| {
        let mut b = vec![0; AFTER];
        // Some read about as much as makes the flow a bulky one.
        let most = s.peer_addr().map_or(0, |a| usize::from(a.port())) * 17 % (AFTER + 1);
        s.read_exact(&mut b[..most]).unwrap();
        s.write_all(&[b'r'; 500]).unwrap();
    });
    for n in 0..200 {
        let mut s = p.connect(port);
        drop(s.write_all(&vec![7; 4 << 20]));
        let mut got = Vec::new();
        let end = s.read_to_end(&mut got).map_err(|e| e.kind());
        assert_eq!(got.len(), 500, "{n}: {end:?}");
    }
    assert!(p.a.counters().flows_moved > 0);
    eventually("no flow is left", || {
        p.a.counters().flows_now == 0 && p.b.counters().flows_now == 0
    });
}

#[test]
fn what_was_sent_before_a_reset_arrives() {
    const EACH: usize = 50;
    let p = Pair::new();
    let (said, heard) = mpsc::channel();
    let port = serve(move |mut s| {
        let mut got = Vec::new();
        let end = s.read_to_end(&mut got).map_err(|e| e.kind());
        said.send((got.len(), end.err())).unwrap();
    });
    for size in [0, 10, 1000] {
        for _ in 0..EACH {
            let mut s = p.connect(port);
            s.write_all(&vec![7; size]).unwrap();
            socket2::SockRef::from(&s).set_linger(Some(Duration::ZERO)).unwrap();
        }
        for n in 0..EACH {
            let got = heard.recv_timeout(Duration::from_secs(5));
            assert_eq!(got, Ok((size, Some(ErrorKind::ConnectionReset))), "{n} of {size} bytes");
        }
    }
}
