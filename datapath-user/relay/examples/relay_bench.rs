//! Two relays on loopback: first byte, cost of a flow, single-flow throughput and memory, next to raw TCP.
//!
//!     cargo run --release -p datapath-relay --example relay_bench [open rr flows bulk idle]
//!
//! Wall-clock figures depend on what else the machine does; CPU seconds hardly do. The server is one
//! thread and connections land as in `rlark-node`, so that what is counted is the relays.
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "a measurement"
)]

#[path = "../tests/relay/pair.rs"]
#[expect(dead_code, reason = "shared with the tests, which use more of it")]
mod pair;

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, Shutdown, TcpListener, TcpStream},
    time::{Duration, Instant},
};

use pair::{Pair, VIP_A, VIP_B, request};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

const BULK: usize = 2 << 30;
const GIB: f64 = (1u64 << 30) as f64;

/// CPU seconds so far of the threads whose name starts so: `relay-`, or all.
fn cpu(of: &str) -> f64 {
    std::fs::read_dir("/proc/self/task")
        .unwrap()
        .flatten()
        .filter(|t| std::fs::read_to_string(t.path().join("comm")).is_ok_and(|c| c.starts_with(of)))
        .filter_map(|t| std::fs::read_to_string(t.path().join("schedstat")).ok())
        .filter_map(|s| s.split(' ').next()?.parse::<f64>().ok())
        .sum::<f64>()
        / 1e9
}

fn rss_kib() -> f64 {
    let s = std::fs::read_to_string("/proc/self/status").unwrap();
    let l = s.lines().find(|l| l.starts_with("VmRSS")).unwrap();
    l.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// First byte chooses: `s` swallows to the end and answers one byte, others come back.
fn server() -> u16 {
    let l = TcpListener::bind("127.0.0.1:0").unwrap();
    l.set_nonblocking(true).unwrap();
    let port = l.local_addr().unwrap().port();
    let work = async move {
        let l = tokio::net::TcpListener::from_std(l).unwrap();
        while let Ok((s, _)) = l.accept().await {
            s.set_nodelay(true).unwrap();
            tokio::spawn(talk(s));
        }
    };
    let run = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    std::thread::Builder::new().name("server".into()).spawn(move || run().block_on(work)).unwrap();
    port
}

async fn talk(mut s: tokio::net::TcpStream) {
    let mut b = [0; 2048];
    let Ok(n @ 1..) = s.read(&mut b).await else { return };
    if b[0] == b's' {
        let mut b = vec![0; 256 << 10];
        while s.read(&mut b).await.is_ok_and(|n| n > 0) {}
        drop(s.write_all(b"x").await);
        return;
    }
    drop(s.write_all(&b[..n]).await);
    loop {
        // No buffer while it waits, so that memory is the relays'.
        if s.readable().await.is_err() {
            return;
        }
        let mut b = [0; 2048];
        match s.try_read(&mut b) {
            Ok(0) => return,
            Ok(n) => drop(s.write_all(&b[..n]).await),
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
    }
}

/// A local port at which connections to `10.90.0.2:port` land.
fn land(p: &Pair, port: u16) -> u16 {
    let l = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = l.local_addr().unwrap().port();
    l.set_nonblocking(true).unwrap();
    // As the node's listener, whose connections inherit them.
    let options = socket2::SockRef::from(&l);
    options.set_tcp_nodelay(true).unwrap();
    options.set_linger(Some(Duration::ZERO)).unwrap();
    let relay = p.a.clone();
    drop(p.a.runtime().spawn(async move {
        let l = tokio::net::TcpListener::from_std(l).unwrap();
        let to = (VIP_B, port).into();
        while let Ok((s, from)) = l.accept().await {
            relay.open_here(request("west/b", (VIP_A, from.port()).into(), to), s);
        }
    }));
    at
}

fn connect(port: u16) -> TcpStream {
    let s = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    s.set_nodelay(true).unwrap();
    s
}

fn ask(s: &mut TcpStream) {
    s.write_all(b"x").unwrap();
    s.read_exact(&mut [0]).unwrap();
}
fn timed(n: usize, mut work: impl FnMut()) -> Vec<f64> {
    let one = |_| {
        let t = Instant::now();
        work();
        t.elapsed().as_secs_f64() * 1e6
    };
    let mut us: Vec<f64> = (0..n).map(one).collect();
    us.sort_by(f64::total_cmp);
    us
}

fn show(what: &str, us: &[f64]) {
    let (n, least) = (us.len(), us[us.len() / 20]);
    println!("{what}: p5 {least:.0} us, p50 {:.0} us, p99 {:.0} us", us[n / 2], us[n * 99 / 100]);
}

fn flows(port: u16, each: usize) {
    let us = || {
        (0..8).map(|_| std::thread::spawn(move || (0..each).for_each(|_| ask(&mut connect(port)))))
    };
    us().collect::<Vec<_>>().into_iter().for_each(|t| t.join().unwrap());
}

fn upload(mut s: TcpStream) -> f64 {
    let block = vec![b's'; 64 << 10];
    let t = Instant::now();
    for _ in 0..BULK / block.len() {
        s.write_all(&block).unwrap();
    }
    s.shutdown(Shutdown::Write).unwrap();
    s.read_exact(&mut [0]).unwrap();
    BULK as f64 * 8e-9 / t.elapsed().as_secs_f64()
}

fn idle(port: u16) {
    let before = rss_kib();
    let held: Vec<_> = (0..4000)
        .map(|_| {
            let mut s = connect(port);
            ask(&mut s);
            s
        })
        .collect();
    std::thread::sleep(Duration::from_millis(500));
    let each = (rss_kib() - before) / held.len() as f64;
    println!("an idle flow: {each:.1} KiB for both relays and the server");
    let (c, t) = (cpu("relay-"), Instant::now());
    std::thread::sleep(Duration::from_secs(3));
    let cores = (cpu("relay-") - c) / t.elapsed().as_secs_f64();
    println!("idle: {cores:.4} cores with {} flows", held.len());
}

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let wants = |what: &str| wanted.is_empty() || wanted.iter().any(|w| w == what);
    let p = Pair::new();
    let raw = server();
    let relayed = land(&p, raw);
    (0..300).for_each(|_| ask(&mut connect(relayed)));
    if wants("open") {
        show("raw open + first byte", &timed(3000, || ask(&mut connect(raw))));
        show("open + first byte", &timed(3000, || ask(&mut connect(relayed))));
    }
    if wants("rr") {
        let (mut a, mut b) = (connect(raw), connect(relayed));
        show("raw request/response", &timed(10_000, || ask(&mut a)));
        show("request/response", &timed(10_000, || ask(&mut b)));
    }
    for _ in 0..2 {
        if wants("flows") {
            let (c, t) = (cpu("relay-"), Instant::now());
            flows(relayed, 1250);
            let rate = 10_000.0 / t.elapsed().as_secs_f64();
            std::thread::sleep(Duration::from_millis(200));
            println!(
                "8 clients: {rate:.0} flows/s, relays {:.2} CPU-s per 10,000",
                cpu("relay-") - c
            );
        }
    }
    for _ in 0..3 {
        if wants("bulk") {
            let (all, relays) = (cpu(""), cpu("relay-"));
            let gbps = upload(connect(relayed));
            let (relays, all) = (cpu("relay-") - relays, cpu("") - all);
            let per = GIB / BULK as f64;
            let (relays, all) = (relays * per, all * per);
            println!("one flow: {gbps:.2} Gbit/s; CPU-s per GiB: relays {relays:.2}, all {all:.2}");
        }
    }
    if wants("bulk") {
        println!("raw: {:.2} Gbit/s", upload(connect(raw)));
    }
    if wants("idle") {
        idle(relayed);
    }
}
