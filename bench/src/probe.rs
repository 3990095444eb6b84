//! One kind of exchange, timed again and again. Whoever started it pairs the samples of several paths.

use std::{
    io,
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::{measure, peer, stats::result};

/// What is timed.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum What {
    /// connect(), and connect() with the first byte there and back.
    Flow,
    /// A byte there and back on an open flow.
    Turn,
    /// A datagram there and back.
    Datagram,
    /// connect() to where nothing answers, until it says so.
    Refusal,
}

#[derive(Args, Debug)]
pub(crate) struct Probe {
    what: What,
    /// HOST:PORT of a server.
    #[arg(long)]
    to: String,
    #[arg(long, default_value_t = 100)]
    count: usize,
}

/// Microseconds, in the order of time.
#[derive(Default, Serialize)]
struct Samples {
    us: Vec<f64>,
    /// Of [`What::Flow`]: connect() alone.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    connect_us: Vec<f64>,
    /// Of [`What::Datagram`]: those that did not come back.
    lost: usize,
    /// Of [`What::Refusal`]: the error that all of them had.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl Probe {
    pub(crate) fn run(&self) -> Result<()> {
        let to = peer::resolve(&self.to)?;
        let mut found = Samples::default();
        match self.what {
            What::Flow => {
                let (connect, first) = measure::first_bytes(to, self.count)?;
                found.connect_us = micros(&connect);
                found.us = micros(&first);
            }
            What::Turn => found.us = micros(&measure::turns(to, self.count)?),
            What::Datagram => {
                let mut all = (Vec::new(), 0);
                measure::datagrams(to, self.count, &mut all)?;
                (found.us, found.lost) = (micros(&all.0), all.1);
            }
            What::Refusal => {
                let (all, error) = refusals(to, self.count)?;
                (found.us, found.error) = (micros(&all), Some(format!("{error:?}")));
            }
        }
        result(&found)
    }
}

fn micros(all: &[Duration]) -> Vec<f64> {
    all.iter().map(|d| (d.as_secs_f64() * 1e8).round() / 1e2).collect()
}

fn refusals(to: SocketAddr, n: usize) -> Result<(Vec<Duration>, io::ErrorKind)> {
    let mut all = Vec::with_capacity(n);
    let mut kind = None;
    for _ in 0..n {
        let start = Instant::now();
        let outcome = TcpStream::connect(to);
        all.push(start.elapsed());
        match (outcome, kind) {
            (Ok(_), _) => bail!("{to} took a connection that it should refuse"),
            (Err(e), Some(k)) if e.kind() != k => bail!("{to} refused with {k:?}, then with {e}"),
            (Err(e), _) => kind = Some(e.kind()),
        }
    }
    Ok((all, kind.unwrap_or(io::ErrorKind::Other)))
}
