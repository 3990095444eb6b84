//! Flows that go on through an outage: when each began to move again, for every long silence.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result};
use clap::Args;
use serde::Serialize;

use crate::{
    peer,
    serve::REPORT,
    stats::{result, say},
};

#[derive(Args, Debug)]
pub(crate) struct Outage {
    /// HOST:PORT of a server.
    #[arg(long)]
    to: String,
    /// Flows that send a byte and wait for it, again and again.
    #[arg(long, default_value_t = 32)]
    turns: usize,
    /// Flows that send, and as many that receive, as fast as it goes.
    #[arg(long, default_value_t = 1)]
    bulk: usize,
    /// A silence that counts, in milliseconds.
    #[arg(long, default_value_t = 5000)]
    silence_ms: u64,
}

/// One flow.
#[derive(Serialize)]
struct Found {
    kind: &'static str,
    /// For each silence, when the first byte after it arrived: seconds since the epoch.
    moved_at: Vec<f64>,
    /// What ended the flow before it should.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// A flow's clock: told of every arrival.
struct Watch<'a> {
    last: Instant,
    silence: Duration,
    moved_at: &'a Mutex<Vec<f64>>,
}

impl Watch<'_> {
    fn arrived(&mut self) {
        let now = Instant::now();
        if now - self.last >= self.silence {
            let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            if let Ok(mut all) = self.moved_at.lock() {
                all.push(since.as_secs_f64());
            }
        }
        self.last = now;
    }
}

impl Outage {
    /// Until standard input ends.
    pub(crate) fn run(&self) -> Result<()> {
        let to = peer::resolve(&self.to)?;
        let over = AtomicBool::new(false);
        let kinds = [
            vec![("turn", turn as Flow); self.turns],
            vec![("up", up as Flow); self.bulk],
            vec![("down", down as Flow); self.bulk],
        ];
        let found = thread::scope(|scope| {
            let (over, mut all) = (&over, Vec::new());
            for (kind, flow) in kinds.concat() {
                let silence = Duration::from_millis(self.silence_ms);
                all.push(scope.spawn(move || follow(kind, flow, to, silence, over)));
            }
            say(&format!("RUNNING {}", all.len()));
            let ended = std::io::stdin().read_to_end(&mut Vec::new());
            over.store(true, Relaxed);
            ended.context("standard input")?;
            let joined = all.into_iter().map(|t| t.join());
            let joined = joined.map(|r| r.map_err(|_panic| anyhow::anyhow!("a flow panicked")));
            joined.collect::<Result<Vec<Found>>>()
        })?;
        result(&found)
    }
}

type Flow = fn(SocketAddr, &mut Watch<'_>, &AtomicBool) -> Result<()>;

fn follow(
    kind: &'static str,
    flow: Flow,
    to: SocketAddr,
    silence: Duration,
    over: &AtomicBool,
) -> Found {
    let moved_at = Mutex::default();
    let mut watch = Watch { last: Instant::now(), silence, moved_at: &moved_at };
    let outcome = flow(to, &mut watch, over);
    let error = outcome.err().map(|e| format!("{e:#}"));
    Found { kind, moved_at: moved_at.into_inner().unwrap_or_default(), error }
}

/// A flow that is stuck at the end must not keep the process: it is a finding.
fn patient(s: &TcpStream) -> Result<()> {
    s.set_read_timeout(Some(Duration::from_secs(75)))?;
    s.set_write_timeout(Some(Duration::from_secs(75)))?;
    Ok(())
}

fn turn(to: SocketAddr, watch: &mut Watch<'_>, over: &AtomicBool) -> Result<()> {
    let mut s = peer::dial(to, b"h")?;
    patient(&s)?;
    while !over.load(Relaxed) {
        s.write_all(b"x")?;
        s.read_exact(&mut [0])?;
        watch.arrived();
        pace();
    }
    Ok(())
}

/// A hundred turns a second: a flow that talks, not one that fills the machine.
#[expect(clippy::disallowed_methods, reason = "the pace of a conversation")]
fn pace() {
    thread::sleep(Duration::from_millis(10));
}

fn up(to: SocketAddr, watch: &mut Watch<'_>, over: &AtomicBool) -> Result<()> {
    let mut request = vec![b'w'];
    request.extend(5u64.to_be_bytes());
    let mut s = peer::dial(to, &request)?;
    patient(&s)?;
    let mut reports = s.try_clone()?;
    thread::scope(|scope| {
        let sender = scope.spawn(move || -> Result<()> {
            let b = vec![7; 256 << 10];
            while !over.load(Relaxed) {
                s.write_all(&b)?;
            }
            Ok(s.shutdown(std::net::Shutdown::Write)?)
        });
        let mut b = [0; REPORT];
        while !over.load(Relaxed) {
            reports.read_exact(&mut b)?;
            watch.arrived();
        }
        // What is still under way must not fill the way back.
        drop(std::io::copy(&mut reports, &mut std::io::sink()));
        sender.join().map_err(|_panic| anyhow::anyhow!("the sender panicked"))?
    })
}

fn down(to: SocketAddr, watch: &mut Watch<'_>, over: &AtomicBool) -> Result<()> {
    let mut s = peer::dial(to, b"G")?;
    patient(&s)?;
    let mut b = vec![0; 256 << 10];
    while !over.load(Relaxed) {
        anyhow::ensure!(s.read(&mut b)? > 0, "the server ended the flow");
        watch.arrived();
    }
    socket2::SockRef::from(&s).set_linger(Some(Duration::ZERO))?;
    Ok(())
}
