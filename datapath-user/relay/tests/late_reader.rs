//! What a relay acknowledged it delivers, however late its application reads and whatever becomes of the carrier: the
//! other side was told that all went well, and has forgotten the flow.
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    reason = "tests; polling for what has no event"
)]

#[path = "relay/pair.rs"]
#[expect(dead_code, reason = "shared with the other tests, which use more of it")]
mod pair;

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::Shutdown,
    sync::mpsc,
    time::Duration,
};

use datapath_relay::{FlowState, Reason};
use pair::{Pair, check_pattern, eventually, failed, send_pattern, serve};

/// More than sockets hold by themselves, and no more than the first credit, so that all of it can be acknowledged while
/// nobody reads.
const WAITS: u64 = 32 << 20;
const RESUME_WITHIN: Duration = Duration::from_millis(500);

fn pair() -> Pair {
    Pair::with(|c| {
        (c.window, c.window_max) = (2 * WAITS, 2 * WAITS);
        c.bulk_after = u64::MAX;
        c.resume_within = RESUME_WITHIN;
    })
}

/// The client sends and ends, the server has ended already and reads later.
#[test]
fn a_server_that_reads_late_gets_all_though_the_client_is_gone_and_the_carrier_broke() {
    let p = pair();
    let (go, wait) = mpsc::channel::<()>();
    let (done, result) = mpsc::channel();
    let wait = std::sync::Mutex::new(wait);
    let port = serve(move |mut s| {
        s.read_exact(&mut [0; 8]).unwrap();
        s.shutdown(Shutdown::Write).unwrap();
        wait.lock().unwrap().recv().unwrap();
        let mut all = Vec::new();
        done.send(s.read_to_end(&mut all).map(|_| all.len()).map_err(|e| e.kind())).unwrap();
    });
    let mut client = p.connect(port);
    send_pattern(&mut client, WAITS);
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(client.read(&mut [0]).unwrap(), 0);
    eventually("the client's relay is done", || p.a.counters().flows_now == 0);
    assert_eq!(p.a.counters().flows_closed, 1);
    assert_eq!(p.b.counters().flows_now, 1, "the server's relay still has bytes for it");
    p.cut();
    eventually("noticed", || p.b.flows().iter().all(|f| f.carrier == "-"));
    // Longer than the flow may be without a carrier, which it does not need.
    std::thread::sleep(3 * RESUME_WITHIN);
    go.send(()).unwrap();
    let got = result.recv_timeout(Duration::from_secs(20)).unwrap();
    assert_eq!(got, Ok(usize::try_from(WAITS).unwrap() - 8));
    eventually("ended in order", || p.b.counters().flows_closed == 1);
}

/// The other way round: the client asked and ended, the server answered and is gone, the client reads later. Its relay
/// alone could ask for a carrier, and would be told that nobody knows the flow.
#[test]
fn a_client_that_reads_late_gets_all_though_the_server_is_gone_and_the_carrier_broke() {
    let p = pair();
    let port = serve(|mut s| {
        s.read_to_end(&mut Vec::new()).unwrap();
        send_pattern(&mut s, WAITS);
    });
    let mut client = p.connect(port);
    client.write_all(b"all, please").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    eventually("the server's relay is done", || {
        let c = p.b.counters();
        c.flows_accepted == 1 && c.flows_now == 0
    });
    assert_eq!(p.b.counters().flows_closed, 1);
    assert_eq!(p.a.counters().flows_now, 1, "the client's relay still has bytes for it");
    p.cut();
    std::thread::sleep(3 * RESUME_WITHIN);
    assert_eq!(check_pattern(&mut client), WAITS);
    eventually("ended in order", || p.a.counters().flows_closed == 1);
}

/// Nobody comes back: what the client sent to its end was acknowledged, and only the answer is lost.
#[test]
fn a_server_that_reads_late_gets_all_though_no_carrier_comes_back() {
    let p = pair();
    let (go, wait) = mpsc::channel::<()>();
    let (done, result) = mpsc::channel();
    let (told, end) = mpsc::channel();
    let wait = std::sync::Mutex::new(wait);
    let port = serve(move |mut s| {
        wait.lock().unwrap().recv().unwrap();
        done.send(check_pattern(&mut s)).unwrap();
        // The rest of the flow is no more, which is told as soon as the server has something to say.
        let end = loop {
            if let Err(e) = s.write_all(&[0; 4096]) {
                break e.kind();
            }
        };
        told.send(end).unwrap();
    });
    let mut client = p.connect(port);
    send_pattern(&mut client, WAITS);
    client.shutdown(Shutdown::Write).unwrap();
    eventually("all arrived", || p.b.flows().iter().any(|f| f.state == FlowState::HalfClosed));
    p.block(true);
    p.cut();
    assert_eq!(client.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    std::thread::sleep(3 * RESUME_WITHIN);
    go.send(()).unwrap();
    assert_eq!(result.recv_timeout(Duration::from_secs(20)).unwrap(), WAITS);
    let end = end.recv_timeout(Duration::from_secs(20)).unwrap();
    assert!(matches!(end, ErrorKind::ConnectionReset | ErrorKind::BrokenPipe), "{end:?}");
    eventually("ended", || p.b.counters().flows_now == 0);
    assert_eq!(failed(&p.b.counters(), Reason::CarrierLost), 1);
}
