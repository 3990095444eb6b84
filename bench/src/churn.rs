//! New flows as fast as they go: connect, a byte there and back, end.

use std::{
    net::SocketAddr,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use clap::Args;
use serde::Serialize;

use crate::{measure, peer, stats::result};

#[derive(Args, Debug)]
pub(crate) struct Churn {
    /// HOST:PORT of a server.
    #[arg(long)]
    to: String,
    /// Flows that are being opened at any time.
    #[arg(long, default_value_t = 32)]
    at_once: usize,
    #[arg(long, default_value_t = 3000)]
    window_ms: u64,
}

#[derive(Serialize)]
struct Found {
    flows: usize,
    seconds: f64,
}

impl Churn {
    pub(crate) fn run(&self) -> Result<()> {
        let to = peer::resolve(&self.to)?;
        let start = Instant::now();
        let end = start + Duration::from_millis(self.window_ms);
        let flows = thread::scope(|scope| {
            let all: Vec<_> =
                (0..self.at_once.max(1)).map(|_| scope.spawn(|| until(to, end))).collect();
            let joined = all.into_iter().map(|t| match t.join() {
                Ok(n) => n,
                Err(_panic) => bail!("a thread panicked"),
            });
            joined.sum::<Result<usize>>()
        })?;
        result(&Found { flows, seconds: start.elapsed().as_secs_f64() })
    }
}

fn until(to: SocketAddr, end: Instant) -> Result<usize> {
    let mut n = 0;
    while Instant::now() < end {
        n += measure::first_bytes(to, 1)?.0.len();
    }
    Ok(n)
}
