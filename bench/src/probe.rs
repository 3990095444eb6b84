//! One kind of exchange, timed again and again. Whoever started it pairs the samples of several paths.

use std::{
    io::Read as _,
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use serde::Serialize;
use socket2::{Domain, Socket, Type};

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
    /// connect() to where nothing answers, each time at another port, counted from the given one, until the program knows: by connect(), or by the first read.
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
    /// Of [`What::Refusal`]: how many were told by connect() itself, and the last error.
    told_by_connect: usize,
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
                let all = refusals(to, self.count, &mut found)?;
                found.us = micros(&all);
            }
        }
        result(&found)
    }
}

fn micros(all: &[Duration]) -> Vec<f64> {
    all.iter().map(|d| (d.as_secs_f64() * 1e8).round() / 1e2).collect()
}

fn refusals(to: SocketAddr, n: usize, found: &mut Samples) -> Result<Vec<Duration>> {
    let mut all = Vec::with_capacity(n);
    for k in 0..n {
        // What the last attempt taught anybody must not answer this one.
        let port = to.port().wrapping_add(u16::try_from(k)?);
        let to = SocketAddr::new(to.ip(), port);
        let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
        let start = Instant::now();
        let outcome = socket.connect(&to.into());
        found.told_by_connect += usize::from(outcome.is_err());
        let told = outcome.and_then(|()| {
            socket.set_read_timeout(Some(Duration::from_secs(10)))?;
            (&socket).read(&mut [0])
        });
        all.push(start.elapsed());
        match told {
            Ok(_) => bail!("{to} took a connection that it should refuse"),
            Err(e) => found.error = Some(format!("{:?}", e.kind())),
        }
    }
    Ok(all)
}
