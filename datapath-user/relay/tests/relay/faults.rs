//! Carriers break, flows do not; and what cannot be saved is reset, never left hanging.

use std::{
    io::{ErrorKind, Read, Write},
    net::Shutdown,
    thread,
    time::{Duration, Instant},
};

use datapath_relay::{FlowState, Reason};

use crate::pair::{Pair, check_pattern, echo_server, eventually, failed, send_pattern, serve};

#[test]
fn cuts_in_the_middle_lose_and_double_no_byte() {
    const TOTAL: u64 = 96 << 20;
    let p = Pair::new();
    let port = echo_server();
    let work: Vec<_> = (0..2)
        .map(|i| {
            let mut s = if i == 0 { p.connect(port) } else { p.connect_back(port) };
            thread::spawn(move || {
                let mut w = s.try_clone().unwrap();
                let t = thread::spawn(move || {
                    send_pattern(&mut w, TOTAL);
                    w.shutdown(Shutdown::Write).unwrap();
                });
                assert_eq!(check_pattern(&mut s), TOTAL);
                t.join().unwrap();
            })
        })
        .collect();
    let mut cuts = 0;
    // Not for ever: on a slow machine hardly a byte moves between two cuts.
    while cuts < 20 && work.iter().any(|w| !w.is_finished()) {
        thread::sleep(Duration::from_millis(150));
        p.cut();
        cuts += 1;
    }
    for w in work {
        w.join().unwrap();
    }
    let c = p.a.counters();
    assert!(cuts > 1 && c.carriers_lost > 1 && c.flows_resumed > 1, "{cuts} cuts, {c:?}");
    assert_eq!(c.flows_failed.iter().map(|f| f.1).sum::<u64>(), 0);
}

#[test]
fn a_flow_waits_for_an_outage_and_goes_on() {
    let p = Pair::new();
    let mut s = p.connect(echo_server());
    s.write_all(b"before").unwrap();
    s.read_exact(&mut [0; 6]).unwrap();
    p.block(true);
    p.cut();
    s.write_all(b"during").unwrap();
    eventually("no carrier", || p.a.flows().iter().any(|f| f.carrier == "-"));
    // A new connection waits too.
    let mut new = p.connect(echo_server());
    new.write_all(b"new").unwrap();
    thread::sleep(Duration::from_millis(1500));
    let back = Instant::now();
    p.block(false);
    let mut b = [0; 6];
    s.read_exact(&mut b).unwrap();
    assert_eq!(&b, b"during");
    new.read_exact(&mut [0; 3]).unwrap();
    assert!(back.elapsed() < Duration::from_secs(1), "{:?}", back.elapsed());
}

#[test]
fn an_outage_beyond_the_deadline_resets_both_ends() {
    let p = Pair::with(|c| {
        c.resume_within = Duration::from_millis(600);
        c.open_timeout = Duration::from_millis(600);
    });
    let (tx, rx) = std::sync::mpsc::channel();
    let port = serve(move |mut s| {
        s.read_exact(&mut [0]).unwrap();
        tx.send(s.read(&mut [0]).map_err(|e| e.kind())).unwrap();
    });
    let mut s = p.connect(port);
    s.write_all(b"x").unwrap();
    eventually("open", || p.a.flows().iter().any(|f| f.state == FlowState::Open));
    p.block(true);
    p.cut();
    assert_eq!(s.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    let server = rx.recv_timeout(Duration::from_secs(5)).unwrap();
    assert_eq!(server, Err(ErrorKind::ConnectionReset));
    assert_eq!(failed(&p.a.counters(), Reason::CarrierLost), 1);
    let mut new = p.connect(port);
    assert_eq!(new.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert_eq!(failed(&p.a.counters(), Reason::Timeout), 1);
}

#[test]
fn cuts_while_flows_open_open_each_exactly_once() {
    let p = Pair::new();
    let port = echo_server();
    let mut all = Vec::new();
    for i in 0..200u32 {
        let mut s = p.connect(port);
        s.write_all(&i.to_be_bytes()).unwrap();
        all.push(s);
        if i % 20 == 10 {
            p.cut();
        }
    }
    for (i, s) in all.iter_mut().enumerate() {
        s.shutdown(Shutdown::Write).unwrap();
        let mut b = Vec::new();
        s.read_to_end(&mut b).unwrap();
        assert_eq!(b, (i as u32).to_be_bytes());
    }
    eventually("ended", || p.b.counters().flows_now == 0 && p.a.counters().flows_now == 0);
    assert_eq!(p.b.counters().flows_accepted, 200);
}

#[test]
fn a_restarted_peer_resets_old_flows_and_serves_new_ones() {
    let mut p = Pair::new();
    let (tx, rx) = std::sync::mpsc::channel();
    let port = serve(move |mut s| {
        s.read_exact(&mut [0]).unwrap();
        s.write_all(b"y").unwrap();
        tx.send(s.read(&mut [0]).map_err(|e| e.kind())).unwrap();
    });
    let mut s = p.connect(port);
    s.write_all(b"x").unwrap();
    s.read_exact(&mut [0]).unwrap();
    p.restart_b();
    // The server's socket is reset by the end of the old process, not closed as if all had come.
    let server = rx.recv_timeout(Duration::from_secs(10)).unwrap();
    assert_eq!(server, Err(ErrorKind::ConnectionReset));
    assert_eq!(s.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert_eq!(failed(&p.a.counters(), Reason::PeerGone), 1);
    let mut s = p.connect(echo_server());
    s.write_all(b"x").unwrap();
    s.read_exact(&mut [0]).unwrap();
}

/// The opener's program is killed while there is no carrier, or the RST is lost with one: the next carrier says it.
#[test]
fn a_reset_during_an_outage_is_told_when_the_outage_ends() {
    let p = Pair::new();
    let (tx, rx) = std::sync::mpsc::channel();
    let port = serve(move |mut s| {
        s.read_exact(&mut [0]).unwrap();
        tx.send(s.read(&mut [0]).map_err(|e| e.kind())).unwrap();
    });
    let mut s = p.connect(port);
    s.write_all(b"x").unwrap();
    eventually("the byte is acknowledged", || p.b.flows().iter().any(|f| f.bytes_out == 1));
    thread::sleep(Duration::from_millis(200));
    p.block(true);
    p.cut();
    eventually("no carrier", || p.b.flows().iter().all(|f| f.carrier == "-"));
    socket2::SockRef::from(&s).set_linger(Some(Duration::ZERO)).unwrap();
    drop(s);
    eventually("the opener forgot it", || p.a.counters().flows_now == 0);
    p.block(false);
    // Somebody else needs a carrier.
    let mut other = p.connect_back(echo_server());
    other.write_all(b"x").unwrap();
    other.read_exact(&mut [0]).unwrap();
    assert_eq!(rx.recv_timeout(Duration::from_secs(5)).unwrap(), Err(ErrorKind::ConnectionReset));
    assert_eq!(failed(&p.b.counters(), Reason::Reset), 1);
}

/// As before, and more was said meanwhile: it is kept for the next carrier, and the reset comes behind it.
#[test]
fn what_is_said_before_a_reset_during_an_outage_arrives_when_it_ends() {
    let p = Pair::new();
    let (tx, rx) = std::sync::mpsc::channel();
    let port = serve(move |mut s| {
        let mut all = Vec::new();
        let end = s.read_to_end(&mut all).map_err(|e| e.kind());
        tx.send((all, end.err())).unwrap();
    });
    let mut s = p.connect(port);
    s.write_all(b"before").unwrap();
    eventually("it is there", || p.b.flows().iter().any(|f| f.bytes_out == 6));
    p.block(true);
    p.cut();
    eventually("no carrier", || p.b.flows().iter().all(|f| f.carrier == "-"));
    s.write_all(b" and during").unwrap();
    socket2::SockRef::from(&s).set_linger(Some(Duration::ZERO)).unwrap();
    drop(s);
    p.block(false);
    let told = rx.recv_timeout(Duration::from_secs(10)).unwrap();
    assert_eq!(told, (b"before and during".to_vec(), Some(ErrorKind::ConnectionReset)));
    eventually("no flow is left", || {
        p.a.counters().flows_now == 0 && p.b.counters().flows_now == 0
    });
}

/// Whoever notices that the machine moved says so; the carrier's own pulse would take a quarter of a minute.
#[test]
fn a_carrier_that_leads_nowhere_is_found_soon_when_the_machine_moved() {
    let p = Pair::new();
    p.a_way.through.store(true, std::sync::atomic::Ordering::SeqCst);
    let mut s = p.connect(echo_server());
    s.write_all(b"before").unwrap();
    s.read_exact(&mut [0; 6]).unwrap();
    p.a.moved();
    thread::sleep(Duration::from_millis(1500));
    assert_eq!(p.a.counters().carriers_lost, 0, "a carrier that answers stays");
    p.a_way.silence();
    let moved = Instant::now();
    s.write_all(b"behind").unwrap();
    p.a.moved();
    let mut b = [0; 6];
    s.read_exact(&mut b).unwrap();
    assert_eq!(&b, b"behind");
    assert!(moved.elapsed() < Duration::from_secs(4), "{:?}", moved.elapsed());
    // The other end hears of it by the new carrier.
    eventually("the peer closes its end", || p.b.counters().carriers_lost == 1);
    assert!(moved.elapsed() < Duration::from_secs(8), "{:?}", moved.elapsed());
}
