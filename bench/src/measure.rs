//! Latency and throughput to a server, over any address: a virtual one, or a real one as baseline.

use std::{
    io::{Read as _, Write as _},
    net::{Shutdown, SocketAddr, TcpStream, UdpSocket},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use serde::Serialize;

use crate::{
    peer,
    stats::{Spread, gbps, result, say},
};

#[derive(Args, Debug)]
pub(crate) struct Measure {
    /// HOST:PORT of a server.
    #[arg(long)]
    to: String,
    /// Also measure the server's real address, in turns with the virtual one.
    #[arg(long)]
    raw: bool,
    #[arg(long, default_value_t = 2000)]
    probes: usize,
    /// MiB of each bulk transfer.
    #[arg(long, default_value_t = 1024)]
    mib: u64,
    /// Bulk transfers per direction and address; the median counts.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Name in the results.
    #[arg(long, default_value = "measure")]
    label: String,
    #[arg(long, default_value_t = 120)]
    patience: u64,
}

#[derive(Serialize)]
struct Found<'a> {
    kind: &'a str,
    path: &'a str,
    connect: Option<Spread>,
    first_byte: Option<Spread>,
    request_response: Option<Spread>,
    /// A datagram and its echo.
    datagram: Option<Spread>,
    datagrams_lost: usize,
    /// The medians.
    up_gbps: f64,
    down_gbps: f64,
    /// Both directions of each round together: rounds of two paths stand side by side in time.
    rounds_gbps: Vec<f64>,
}

#[derive(Default)]
struct Samples {
    connect: Vec<Duration>,
    first: Vec<Duration>,
    turn: Vec<Duration>,
    datagram: (Vec<Duration>, usize),
    up: Vec<f64>,
    down: Vec<f64>,
}

impl Measure {
    pub(crate) fn run(&self) -> Result<()> {
        let (at, seen) = peer::find(&self.to, Duration::from_secs(self.patience))?;
        let mut paths = vec![("virtual", at, Samples::default())];
        if self.raw {
            let real = seen.real.context("the server does not know its real address")?;
            let raw = SocketAddr::new(real.parse()?, at.port());
            paths.push(("raw", raw, Samples::default()));
        }
        // In turns, so that what the machine does meanwhile falls on both alike.
        for _ in 0..self.probes.div_ceil(50) {
            for (_, to, s) in &mut paths {
                let (c, f) = first_bytes(*to, 50)?;
                s.connect.extend(c);
                s.first.extend(f);
            }
        }
        for (_, to, s) in &mut paths {
            s.turn = turns(*to, self.probes)?;
        }
        for _ in 0..self.probes.div_ceil(50) {
            for (_, to, s) in &mut paths {
                datagrams(*to, 50, &mut s.datagram)?;
            }
        }
        for _ in 0..self.rounds {
            for (_, to, s) in &mut paths {
                s.up.push(up(*to, self.mib << 20)?);
                s.down.push(down(*to, self.mib << 20)?);
            }
        }
        for (path, _, s) in paths {
            result(&Found {
                kind: &self.label,
                path,
                connect: Spread::of(s.connect),
                first_byte: Spread::of(s.first),
                request_response: Spread::of(s.turn),
                datagram: Spread::of(s.datagram.0),
                datagrams_lost: s.datagram.1,
                rounds_gbps: s.up.iter().zip(&s.down).map(|(up, down)| up + down).collect(),
                up_gbps: median(s.up),
                down_gbps: median(s.down),
            })?;
        }
        Ok(())
    }
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_unstable_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or_default()
}

/// Connects, sends a byte and waits for it, `n` times: (connect, connect + first byte). The
/// connections are ended together after the last: what is measured is not another's end.
pub(crate) fn first_bytes(to: SocketAddr, n: usize) -> Result<(Vec<Duration>, Vec<Duration>)> {
    let (mut connect, mut first) = (Vec::with_capacity(n), Vec::with_capacity(n));
    let mut all = Vec::with_capacity(n);
    for _ in 0..n {
        let start = Instant::now();
        let mut s = TcpStream::connect(to)?;
        connect.push(start.elapsed());
        s.set_nodelay(true)?;
        s.write_all(b"ex")?;
        s.read_exact(&mut [0])?;
        first.push(start.elapsed());
        // No TIME_WAIT: thousands of probes must not use up the ports.
        socket2::SockRef::from(&s).set_linger(Some(Duration::ZERO))?;
        all.push(s);
    }
    Ok((connect, first))
}

pub(crate) fn turns(to: SocketAddr, n: usize) -> Result<Vec<Duration>> {
    let mut s = peer::dial(to, b"e")?;
    let mut all = Vec::with_capacity(n);
    for _ in 0..n {
        let start = Instant::now();
        s.write_all(b"x")?;
        s.read_exact(&mut [0])?;
        all.push(start.elapsed());
    }
    Ok(all)
}

/// A datagram there and back, `n` times; those that did not come back within a second are counted.
pub(crate) fn datagrams(to: SocketAddr, n: usize, all: &mut (Vec<Duration>, usize)) -> Result<()> {
    let any: SocketAddr =
        if to.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0u16; 8], 0).into() };
    let s = UdpSocket::bind(any)?;
    s.connect(to)?;
    s.set_read_timeout(Some(Duration::from_secs(1)))?;
    for _ in 0..n {
        let start = Instant::now();
        s.send(b"x")?;
        match s.recv(&mut [0]) {
            Ok(_) => all.0.push(start.elapsed()),
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => all.1 += 1,
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

/// Gbit/s until the server has counted every byte.
fn up(to: SocketAddr, bytes: u64) -> Result<f64> {
    let mut s = peer::dial(to, b"s")?;
    let (b, mut left, start) = (vec![7; 1 << 20], bytes, Instant::now());
    while left > 0 {
        let n = usize::try_from(left).unwrap_or(b.len()).min(b.len());
        s.write_all(b.get(..n).unwrap_or_default())?;
        left -= n as u64;
    }
    s.shutdown(Shutdown::Write)?;
    let mut count = [0; 8];
    s.read_exact(&mut count).context("the server's count")?;
    ensure!(u64::from_be_bytes(count) == bytes, "the server counted {count:?} of {bytes} bytes");
    Ok(gbps(bytes, start.elapsed()))
}

fn down(to: SocketAddr, bytes: u64) -> Result<f64> {
    let mut request = vec![b'g'];
    request.extend(bytes.to_be_bytes());
    let (mut s, start) = (peer::dial(to, &request)?, Instant::now());
    let (mut b, mut all) = (vec![0; 1 << 20], 0);
    loop {
        match s.read(&mut b)? {
            0 => break,
            n => all += n as u64,
        }
    }
    ensure!(all == bytes, "{all} of {bytes} bytes arrived");
    Ok(gbps(bytes, start.elapsed()))
}

/// Holds `flows` open connections, each proved by one echo, until it is ended.
pub(crate) fn idle(to: &str, flows: usize) -> Result<()> {
    let (at, _) = peer::find(to, Duration::from_secs(120))?;
    peer::raise_limit()?;
    let mut all = Vec::with_capacity(flows);
    for n in 0..flows {
        let mut s = peer::dial(at, b"hx").with_context(|| format!("flow {n} of {flows}"))?;
        s.read_exact(&mut [0]).with_context(|| format!("flow {n} of {flows}"))?;
        all.push(s);
    }
    say(&format!("IDLE {flows}"));
    loop {
        std::thread::park();
    }
}
