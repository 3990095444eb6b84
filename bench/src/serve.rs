//! The server side. Datagrams are echoed. The first byte of a connection chooses what happens:
//!
//! | byte | then |
//! |---|---|
//! | `i` | answers [`Seen`] as JSON and closes |
//! | `e` | echoes |
//! | `s` | reads to the end, answers with the count (u64 big-endian) |
//! | `g` + u64 | sends that many bytes |
//! | `h` | echoes, on one thread with all others of its kind: for flows by the thousand |
//! | `w` + u64 | reads to the end and reports ([`REPORT`]) about every so many milliseconds |
//! | `G` | sends until the client goes |
//! | `t` + u64, u64 | takes a trajectory of the first length, sends a policy of the second |

use std::{
    io::{self, Read as _, Write as _},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket},
    sync::{
        atomic::{AtomicUsize, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};

use crate::{crowd, pattern, peer::Seen, stats::say};

/// Bytes of a report: how many have arrived, u64 big-endian.
pub(crate) const REPORT: usize = 8;

/// What a connection did, when that is worth counting.
#[derive(Debug)]
struct Exchange {
    from: SocketAddr,
    received: u64,
    sent: u64,
}

fn listen(at: SocketAddr) -> Result<TcpListener> {
    let s = socket2::Socket::new(socket2::Domain::for_address(at), socket2::Type::STREAM, None)?;
    s.set_reuse_address(true)?;
    s.bind(&at.into()).with_context(|| format!("cannot bind {at}"))?;
    s.listen(4096)?;
    say(&format!("listening on {at}"));
    Ok(s.into())
}

pub(crate) fn forever(at: SocketAddr) -> Result<()> {
    let l = listen(at)?;
    let datagrams = UdpSocket::bind(at).with_context(|| format!("cannot bind {at} for UDP"))?;
    thread::spawn(move || echo_datagrams(&datagrams));
    let (tx, rx) = mpsc::channel();
    thread::spawn(move || rx.iter().for_each(drop));
    accept(&l, &tx)
}

pub(crate) fn actor(at: SocketAddr, workers: usize, patience: u64) -> Result<()> {
    let l = listen(at)?;
    let (tx, rx) = mpsc::channel();
    thread::spawn(move || accept(&l, &tx));
    for n in 1..=workers {
        let done: Result<Exchange> = rx
            .recv_timeout(Duration::from_secs(patience))
            .with_context(|| format!("no worker finished within {patience} s"))?;
        let x = done?;
        say(&format!(
            "worker {n}/{workers} {}: {} MiB trajectory verified, {} MiB policy sent",
            x.from,
            x.received >> 20,
            x.sent >> 20
        ));
    }
    say("all workers done");
    Ok(())
}

/// Serves with threads that wait in accept(), and one more whenever the last waiting one gets work:
/// starting a thread costs more than the connections that are measured.
fn accept(l: &TcpListener, done: &mpsc::Sender<Result<Exchange>>) -> Result<()> {
    let idle = AtomicUsize::new(0);
    thread::scope(|scope| worker(scope, l, done, &idle))
}

fn worker<'s, 'e: 's>(
    scope: &'s thread::Scope<'s, 'e>,
    l: &'e TcpListener,
    done: &'e mpsc::Sender<Result<Exchange>>,
    idle: &'e AtomicUsize,
) -> Result<()> {
    loop {
        idle.fetch_add(1, Relaxed);
        let (s, from) = l.accept()?;
        if idle.fetch_sub(1, Relaxed) == 1 {
            scope.spawn(move || worker(scope, l, done, idle));
        }
        match serve(s, from) {
            Ok(None) => {}
            Ok(Some(x)) => drop(done.send(Ok(x))),
            // Only a failed exchange counts: probes come and go as they like.
            Err((true, e)) => drop(done.send(Err(e))),
            Err((false, _)) => {}
        }
    }
}

/// The flag of an error says whether it happened within an exchange.
fn serve(mut s: TcpStream, from: SocketAddr) -> Result<Option<Exchange>, (bool, anyhow::Error)> {
    let probe = |e: io::Error| (false, e.into());
    s.set_nodelay(true).map_err(probe)?;
    let mut kind = [0];
    s.read_exact(&mut kind).map_err(probe)?;
    match &kind {
        b"i" => info(&mut s, from).map_err(|e| (false, e))?,
        b"e" => echo(&mut s).map_err(probe)?,
        b"h" => crowd::adopt(s).map_err(|e| (false, e))?,
        b"w" => report(&mut s).map_err(probe)?,
        b"G" => endless(&mut s).map_err(probe)?,
        b"s" => sink(&mut s).map_err(probe)?,
        b"g" => source(&mut s).map_err(probe)?,
        b"t" => return exchange(&mut s, from).map(Some).map_err(|e| (true, e)),
        _ => {}
    }
    Ok(None)
}

fn info(s: &mut TcpStream, from: SocketAddr) -> Result<()> {
    let real = std::env::var("POD_IP").ok();
    let seen = Seen { peer: from, local: s.local_addr()?, real };
    s.write_all(serde_json::to_string(&seen)?.as_bytes())?;
    s.shutdown(Shutdown::Write)?;
    Ok(())
}

fn echo(s: &mut TcpStream) -> io::Result<()> {
    let mut b = vec![0; 64 << 10];
    loop {
        match s.read(&mut b)? {
            0 => return s.shutdown(Shutdown::Write),
            n => s.write_all(b.get(..n).unwrap_or_default())?,
        }
    }
}

/// Answers every datagram with itself; what cannot be sent back is lost, as datagrams are.
fn echo_datagrams(s: &UdpSocket) {
    let mut b = vec![0; 64 << 10];
    loop {
        if let Ok((n, from)) = s.recv_from(&mut b) {
            drop(s.send_to(b.get(..n).unwrap_or_default(), from));
        }
    }
}

fn sink(s: &mut TcpStream) -> io::Result<()> {
    let (mut b, mut all) = (vec![0; 1 << 20], 0u64);
    loop {
        match s.read(&mut b)? {
            0 => return s.write_all(&all.to_be_bytes()),
            n => all += n as u64,
        }
    }
}

fn report(s: &mut TcpStream) -> io::Result<()> {
    let every = Duration::from_millis(number(s)?);
    let (mut b, mut all) = (vec![0; 1 << 20], 0u64);
    let start = Instant::now();
    let mut next = every;
    loop {
        let n = s.read(&mut b)?;
        all += n as u64;
        let now = start.elapsed();
        if n == 0 || now >= next {
            next = now + every;
            s.write_all(&all.to_be_bytes())?;
        }
        if n == 0 {
            return Ok(());
        }
    }
}

fn endless(s: &mut TcpStream) -> io::Result<()> {
    let b = vec![5; 1 << 20];
    loop {
        s.write_all(&b)?;
    }
}

fn number(s: &mut TcpStream) -> io::Result<u64> {
    let mut n = [0; 8];
    s.read_exact(&mut n)?;
    Ok(u64::from_be_bytes(n))
}

fn source(s: &mut TcpStream) -> io::Result<()> {
    let (b, mut left) = (vec![5; 1 << 20], number(s)?);
    while left > 0 {
        let n = usize::try_from(left).unwrap_or(b.len()).min(b.len());
        s.write_all(b.get(..n).unwrap_or_default())?;
        left -= n as u64;
    }
    s.shutdown(Shutdown::Write)
}

fn exchange(s: &mut TcpStream, from: SocketAddr) -> Result<Exchange> {
    let (trajectory, policy) = (number(s)?, number(s)?);
    pattern::receive(s, trajectory, |_| ()).with_context(|| format!("trajectory from {from}"))?;
    s.write_all(b"k")?;
    pattern::send(s, 42, policy, |_| ()).with_context(|| format!("policy to {from}"))?;
    let mut verified = [0];
    s.read_exact(&mut verified).with_context(|| format!("policy to {from}"))?;
    if &verified != b"k" {
        bail!("{from} did not verify the policy");
    }
    Ok(Exchange { from, received: trajectory, sent: policy })
}
