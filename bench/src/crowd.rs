//! Flows by the thousand on one thread: the server's side of them, and a client that measures how
//! they fare beside a flow whose reader has stalled.

use std::{
    io::{self, ErrorKind::WouldBlock},
    net::{SocketAddr, TcpStream},
    sync::OnceLock,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use serde::Serialize;
use tokio::{
    sync::mpsc,
    task::{JoinSet, LocalSet},
    time::{Instant as Tick, MissedTickBehavior, interval_at},
};

use crate::{
    peer,
    stats::{Spread, result},
};

/// Hands a connection to the thread that echoes on all of them.
pub(crate) fn adopt(s: TcpStream) -> Result<()> {
    static THREAD: OnceLock<mpsc::UnboundedSender<TcpStream>> = OnceLock::new();
    s.set_nonblocking(true)?;
    let tx = THREAD.get_or_init(|| {
        // Unbounded: it holds what accept() has let in, and nothing waits for it.
        let (tx, mut rx) = mpsc::unbounded_channel();
        std::thread::spawn(move || {
            on_one_thread(async move {
                while let Some(s) = rx.recv().await {
                    tokio::task::spawn_local(echo(s));
                }
                Ok(())
            })
        });
        tx
    });
    tx.send(s).context("the echoing thread is gone")
}

fn on_one_thread<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, work)
}

/// No buffer while it waits. Messages are a few bytes; whoever sends more than it reads is dropped.
async fn echo(s: TcpStream) -> io::Result<()> {
    let s = tokio::net::TcpStream::from_std(s)?;
    loop {
        s.readable().await?;
        let mut b = [0; 1024];
        match s.try_read(&mut b) {
            Ok(0) => return Ok(()),
            Ok(n) => drop(s.try_write(b.get(..n).unwrap_or_default())?),
            Err(e) if e.kind() == WouldBlock => {}
            Err(e) => return Err(e),
        }
    }
}

#[derive(Args, Debug)]
pub(crate) struct Crowd {
    /// HOST:PORT of a server.
    #[arg(long)]
    to: String,
    #[arg(long, default_value_t = 1000)]
    flows: usize,
    /// Milliseconds between two questions on a flow.
    #[arg(long, default_value_t = 500)]
    every_ms: u64,
    /// Length of a window, in milliseconds.
    #[arg(long, default_value_t = 2000)]
    window_ms: u64,
    /// Pairs of windows: one without, one with a stalled reader.
    #[arg(long, default_value_t = 5)]
    pairs: usize,
}

#[derive(Serialize)]
struct Window {
    stalled: bool,
    answers: Option<Spread>,
}

impl Crowd {
    pub(crate) fn run(&self) -> Result<()> {
        let to = peer::resolve(&self.to)?;
        peer::raise_limit()?;
        let windows = on_one_thread(self.windows(to))?;
        result(&windows)
    }

    async fn windows(&self, to: SocketAddr) -> Result<Vec<Window>> {
        // Room for what a window's answers are: nobody waits for the reader.
        let (tx, mut rx) = mpsc::unbounded_channel();
        let mut flows = JoinSet::new();
        let every = Duration::from_millis(self.every_ms);
        for n in 0..self.flows {
            let s = peer::dial(to, b"h").with_context(|| format!("flow {n}"))?;
            s.set_nonblocking(true)?;
            let s = tokio::net::TcpStream::from_std(s)?;
            // Spread over the interval: a burst would measure its own queue.
            let start = Tick::now() + every.mul_f64((n % 997) as f64 / 997.0);
            let tx = tx.clone();
            flows.spawn_local(ask(s, start, every, tx));
        }
        let window = Duration::from_millis(self.window_ms);
        tokio::time::sleep(every.max(window)).await;
        let mut all = Vec::new();
        for n in 0..self.pairs * 2 {
            // ABBA: a drift of the machine falls on both alike.
            let stalled = matches!(n % 4, 1 | 2);
            let reader = if stalled { Some(stall(to)?) } else { None };
            tokio::time::sleep(window / 4).await;
            while rx.try_recv().is_ok() {}
            tokio::time::sleep(window).await;
            let mut answers = Vec::new();
            while let Ok(took) = rx.try_recv() {
                answers.push(took);
            }
            drop(reader);
            if let Some(ended) = flows.try_join_next() {
                ended?.context("a live flow ended")?;
            }
            all.push(Window { stalled, answers: Spread::of(answers) });
        }
        ensure!(flows.len() == self.flows, "{} of {} flows live", flows.len(), self.flows);
        Ok(all)
    }
}

/// A flow on which the server sends for ever and nobody reads.
fn stall(to: SocketAddr) -> Result<TcpStream> {
    let s = peer::dial(to, b"G")?;
    socket2::SockRef::from(&s).set_linger(Some(Duration::ZERO))?;
    Ok(s)
}

async fn ask(
    s: tokio::net::TcpStream,
    start: Tick,
    every: Duration,
    tx: mpsc::UnboundedSender<Duration>,
) -> Result<()> {
    let mut clock = interval_at(start, every);
    clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        clock.tick().await;
        let asked = Instant::now();
        ensure!(s.try_write(b"x")? == 1, "a byte does not fit");
        loop {
            s.readable().await?;
            match s.try_read(&mut [0]) {
                Ok(0) => anyhow::bail!("the server ended a live flow"),
                Ok(_) => break,
                Err(e) if e.kind() == WouldBlock => {}
                Err(e) => return Err(e.into()),
            }
        }
        if tx.send(asked.elapsed()).is_err() {
            return Ok(());
        }
    }
}
