//! The delay line holds what it promises, in namespaces of its own: needs root.
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test's helpers may end the test"
)]

use std::{
    io::{Read as _, Write as _},
    net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket},
    path::Path,
    time::{Duration, Instant},
};

use test_kit::{
    lab::Lab,
    net::{Netns, veth},
    process::{Process, Start},
    wait::eventually,
};

const FAR: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 2);

/// Two ends and a line between. Drop order: the process, the namespaces, the lab.
struct Ends {
    _line: Process,
    near: Netns,
    far: Netns,
    middle: Netns,
    _lab: Lab,
}

impl Ends {
    fn new(args: &[&str]) -> Self {
        let lab = Lab::new().unwrap();
        let ns = |n: &str| Netns::new(&format!("{}-{n}", lab.id())).unwrap();
        let (near, middle, far) = (ns("near"), ns("middle"), ns("far"));
        veth((&near, "eth0", "10.77.0.1/24"), (&middle, "left", "10.77.1.1/32")).unwrap();
        veth((&far, "eth0", &format!("{FAR}/24")), (&middle, "right", "10.77.1.2/32")).unwrap();
        let mut words = vec!["line", "--between", "left", "right"];
        words.extend(args);
        let log = lab.dir().join("line.log");
        let mut line = Process::start(Start {
            name: "line",
            program: Path::new(env!("CARGO_BIN_EXE_rlark-traffic")),
            args: words.into_iter().map(Into::into).collect(),
            env: vec![],
            netns: Some(&middle),
            cgroup: None,
            // Frames that leave by two CPUs overtake each other.
            cpu: Some(0),
            log,
        })
        .unwrap();
        eventually("the line", Duration::from_secs(5), || {
            line.check()?;
            Ok(line.tail(1).contains("LINE").then_some(()))
        })
        .unwrap();
        Self { _line: line, near, far, middle, _lab: lab }
    }

    /// A server at the far end that runs `serve` on one connection, and a connection to it.
    fn connected<T: Send + 'static>(
        &self,
        serve: impl FnOnce(TcpStream) -> T + Send + 'static,
    ) -> (TcpStream, std::thread::JoinHandle<T>) {
        let l = self.far.within(|| TcpListener::bind((FAR, 7000)).unwrap()).unwrap();
        let server = std::thread::spawn(move || serve(l.accept().unwrap().0));
        let s = self.near.within(|| TcpStream::connect((FAR, 7000)).unwrap()).unwrap();
        s.set_nodelay(true).unwrap();
        (s, server)
    }
}

/// The smallest round trip of some: the line's own, without what the machine did meanwhile.
fn round_trip(delay: &str) -> f64 {
    let ends = Ends::new(&["--delay-ms", delay, "--rate-mbit", "1000"]);
    let (mut s, server) = ends.connected(|mut s| {
        s.set_nodelay(true).unwrap();
        let mut b = [0];
        while s.read(&mut b).unwrap() > 0 {
            s.write_all(&b).unwrap();
        }
    });
    let mut all = Vec::new();
    for _ in 0..15 {
        let start = Instant::now();
        s.write_all(b"x").unwrap();
        s.read_exact(&mut [0]).unwrap();
        all.push(start.elapsed().as_secs_f64() * 1e3);
    }
    drop(s);
    server.join().unwrap();
    all.sort_unstable_by(f64::total_cmp);
    all[all.len() / 2]
}

/// What leaves the line in two seconds, in Mbit/s, when a third more than its rate is sent into it.
fn rate(mbit: &str) -> f64 {
    // Few large packets: what is held against its promise is the line, not the machine.
    const PACKET: f64 = 9000.0 * 8.0;
    let ends = Ends::new(&["--delay-ms", "1", "--rate-mbit", mbit]);
    for (ns, port) in
        [(&ends.near, "eth0"), (&ends.far, "eth0"), (&ends.middle, "left"), (&ends.middle, "right")]
    {
        ns.ip(&format!("link set {port} mtu 9000")).unwrap();
    }
    let far = ends.far.within(|| UdpSocket::bind((FAR, 7001)).unwrap()).unwrap();
    let near = ends.near.within(|| UdpSocket::bind("0.0.0.0:0").unwrap()).unwrap();
    near.connect((FAR, 7001)).unwrap();
    let apart = Duration::from_secs_f64(PACKET / (mbit.parse::<f64>().unwrap() * 1.33e6));
    let sender = std::thread::spawn(move || {
        let (start, mut n) = (Instant::now(), 0);
        while start.elapsed() < Duration::from_millis(2500) {
            while start + apart * n > Instant::now() {
                std::hint::spin_loop();
            }
            near.send(&[0; 9000 - 28]).unwrap();
            n += 1;
        }
    });
    let mut b = [0; 9000];
    far.recv(&mut b).unwrap();
    // Until the line's queue is full.
    let full = Instant::now() + Duration::from_millis(300);
    while Instant::now() < full {
        far.recv(&mut b).unwrap();
    }
    let (start, mut n) = (Instant::now(), 0);
    while start.elapsed() < Duration::from_secs(2) {
        far.recv(&mut b).unwrap();
        n += 1;
    }
    let got = f64::from(n) * PACKET / start.elapsed().as_secs_f64() / 1e6;
    sender.join().unwrap();
    got
}

#[test]
fn the_round_trip_is_twice_the_delay_within_five_percent() {
    for (delay, twice) in [("10", 20.0), ("50", 100.0)] {
        let got = round_trip(delay);
        assert!((twice..twice * 1.05).contains(&got), "{got} ms over {delay} ms each way");
    }
}

#[test]
fn the_rate_is_the_one_asked_for_within_five_percent() {
    for mbit in ["100", "1000"] {
        let (got, want) = (rate(mbit), mbit.parse::<f64>().unwrap());
        assert!((want * 0.95..want * 1.05).contains(&got), "{got} Mbit/s of {mbit}");
    }
}

#[test]
fn one_percent_of_the_packets_is_lost() {
    let ends = Ends::new(&["--loss-percent", "1"]);
    let far = ends.far.within(|| UdpSocket::bind((FAR, 7001)).unwrap()).unwrap();
    far.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    let near = ends.near.within(|| UdpSocket::bind("0.0.0.0:0").unwrap()).unwrap();
    near.connect((FAR, 7001)).unwrap();
    let (mut arrived, sent) = (0, 20_000);
    for n in 0..sent {
        near.send(&[0; 100]).unwrap();
        if n % 50 == 49 {
            // No more under way than what the buffers between hold.
            far.set_nonblocking(true).unwrap();
            let end = Instant::now() + Duration::from_millis(2);
            while Instant::now() < end {
                arrived += usize::from(far.recv(&mut [0; 200]).is_ok());
            }
            far.set_nonblocking(false).unwrap();
        }
    }
    while far.recv(&mut [0; 200]).is_ok() {
        arrived += 1;
    }
    let lost = sent - arrived;
    assert!((120..300).contains(&lost), "{lost} of {sent} were lost");
}

/// Also that long segments, of which a part is lost, are cut as a wire would: else the data would differ.
#[test]
fn tcp_crosses_a_line_that_loses_packets_unharmed() {
    let ends = Ends::new(&["--loss-percent", "1"]);
    let byte = |n: usize| u8::try_from(((n * 2_654_435_761) >> 7) % 251).unwrap();
    let sent: Vec<u8> = (0..8 << 20).map(byte).collect();
    let (mut s, server) = ends.connected(|mut s| {
        let mut all = Vec::new();
        s.read_to_end(&mut all).unwrap();
        all
    });
    s.write_all(&sent).unwrap();
    let sent_again = {
        let stat = |ns: &Netns| {
            let text = ns.within(|| std::fs::read_to_string("/proc/thread-self/net/snmp").unwrap());
            let text = text.unwrap();
            let line = text.lines().filter(|l| l.starts_with("Tcp:")).nth(1).unwrap();
            line.split(' ').nth(12).unwrap().parse::<u32>().unwrap()
        };
        s.shutdown(std::net::Shutdown::Write).unwrap();
        let got = server.join().unwrap();
        assert!(got == sent, "{} bytes of {} arrived, or others", got.len(), sent.len());
        stat(&ends.near)
    };
    // About 5,800 packets.
    assert!(sent_again > 20, "{sent_again} segments were sent again");
}
