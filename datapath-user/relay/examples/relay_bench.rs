//! Two relays on loopback: first byte, single-flow throughput and what it costs, next to raw TCP.
//!
//!     cargo run --release -p datapath-relay --example relay_bench
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
    net::{Shutdown, TcpStream},
    time::{Duration, Instant},
};

use pair::{Pair, echo_server, serve};

const TOTAL: usize = 2 << 30;

/// CPU seconds of this process so far: both relays and the applications.
fn cpu() -> f64 {
    let s = std::fs::read_to_string("/proc/self/stat").unwrap();
    let after = s.rsplit_once(") ").unwrap().1;
    let field = |i: usize| after.split(' ').nth(i).unwrap().parse::<f64>().unwrap();
    (field(11) + field(12)) / 100.0
}

/// CPU seconds of the lanes' threads alone.
fn relay_cpu() -> f64 {
    std::fs::read_dir("/proc/self/task")
        .unwrap()
        .flatten()
        .filter(|t| {
            std::fs::read_to_string(t.path().join("comm")).is_ok_and(|c| c.starts_with("relay-"))
        })
        .filter_map(|t| std::fs::read_to_string(t.path().join("schedstat")).ok())
        .filter_map(|s| s.split(' ').next()?.parse::<f64>().ok())
        .sum::<f64>()
        / 1e9
}

fn first_byte(n: usize, connect: impl Fn() -> TcpStream) -> (f64, f64) {
    let mut us: Vec<f64> = (0..n)
        .map(|_| {
            let t = Instant::now();
            let mut s = connect();
            s.write_all(b"x").unwrap();
            s.read_exact(&mut [0]).unwrap();
            t.elapsed().as_secs_f64() * 1e6
        })
        .collect();
    us.sort_by(f64::total_cmp);
    (us[n / 2], us[n * 99 / 100])
}

fn upload(mut s: TcpStream) -> f64 {
    let block = vec![7u8; 64 << 10];
    let t = Instant::now();
    for _ in 0..TOTAL / block.len() {
        s.write_all(&block).unwrap();
    }
    s.shutdown(Shutdown::Write).unwrap();
    s.read_exact(&mut [0]).unwrap();
    TOTAL as f64 * 8e-9 / t.elapsed().as_secs_f64()
}

fn raw(port: u16) -> TcpStream {
    let s = TcpStream::connect(("127.0.0.1", port)).unwrap();
    s.set_nodelay(true).unwrap();
    s
}

fn main() {
    let p = Pair::new();
    let echo = echo_server();
    let sink = serve(|mut s| {
        let mut b = vec![0; 256 << 10];
        while s.read(&mut b).unwrap() > 0 {}
        s.write_all(&[1]).unwrap();
    });
    first_byte(300, || p.connect(echo));
    let (p50, p99) = first_byte(3000, || p.connect(echo));
    let (raw50, raw99) = first_byte(3000, || raw(echo));
    println!("open + first byte: p50 {p50:.0} us, p99 {p99:.0} us; raw {raw50:.0}/{raw99:.0} us");

    let mut s = p.connect(echo);
    let mut us: Vec<f64> = (0..5000)
        .map(|_| {
            let t = Instant::now();
            s.write_all(b"x").unwrap();
            s.read_exact(&mut [0]).unwrap();
            t.elapsed().as_secs_f64() * 1e6
        })
        .collect();
    us.sort_by(f64::total_cmp);
    println!("request/response on an open flow: p50 {:.0} us", us[us.len() / 2]);

    let before = relay_cpu();
    first_byte(5000, || p.connect(echo));
    std::thread::sleep(Duration::from_millis(200));
    println!("both relays: {:.2} CPU-s per 10,000 flows", (relay_cpu() - before) * 2.0);

    for _ in 0..3 {
        let (all, relays) = (cpu(), relay_cpu());
        let gbps = upload(p.connect(sink));
        let gib = (TOTAL >> 30) as f64;
        println!(
            "one flow: {gbps:.2} Gbit/s; CPU-s per GiB: both relays {:.2}, with applications {:.2}",
            (relay_cpu() - relays) / gib,
            (cpu() - all) / gib
        );
    }
    println!("raw: {:.2} Gbit/s", upload(raw(sink)));

    let rss = || {
        let s = std::fs::read_to_string("/proc/self/status").unwrap();
        let l = s.lines().find(|l| l.starts_with("VmRSS")).unwrap();
        l.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap()
    };
    let hold = serve(|mut s| drop(s.read(&mut [0])));
    let before = rss();
    let held: Vec<_> = (0..2000).map(|_| p.connect(hold)).collect();
    std::thread::sleep(Duration::from_millis(500));
    println!(
        "an idle flow: {:.1} KiB for both relays and the server's thread",
        (rss() - before) / held.len() as f64
    );
    let (c, t) = (relay_cpu(), Instant::now());
    std::thread::sleep(Duration::from_secs(5));
    println!(
        "idle: {:.4} cores with {} flows",
        (relay_cpu() - c) / t.elapsed().as_secs_f64(),
        held.len()
    );
}
