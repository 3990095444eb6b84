//! `rlark-traffic`: what runs inside the tasks of the demo and the bench. Plain blocking sockets,
//! like any program that knows nothing of RLark.
//!
//! Findings are lines on standard output that begin with `RESULT ` and hold one JSON object.

mod churn;
mod crowd;
mod line;
mod measure;
mod outage;
mod pattern;
mod peer;
mod probe;
mod rollout;
mod serve;
mod stats;
mod stream;

use std::net::SocketAddr;

use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(version, about = "Traffic for RLark's demo and bench: an actor, rollout workers, probes")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve until this many rollout workers have delivered and fetched, then succeed.
    Actor {
        #[arg(long, default_value = "0.0.0.0:7000")]
        listen: SocketAddr,
        #[arg(long, default_value_t = 1)]
        workers: usize,
        /// Seconds without any worker's progress after which it fails.
        #[arg(long, default_value_t = 300)]
        patience: u64,
    },
    /// Serve for ever.
    Serve {
        #[arg(long, default_value = "0.0.0.0:7000")]
        listen: SocketAddr,
    },
    /// Probe the actor, stream a trajectory to it and fetch a policy.
    Rollout(rollout::Rollout),
    /// Measure connect, first byte, request/response and throughput to a server.
    Measure(measure::Measure),
    /// Time one kind of exchange again and again, and print every sample.
    Probe(probe::Probe),
    /// Send or receive as fast as it goes for some seconds.
    Stream(stream::Stream),
    /// Open flows as fast as it goes for some seconds.
    Churn(churn::Churn),
    /// Many live flows that ask now and then, with and without one whose reader stalls.
    Crowd(crowd::Crowd),
    /// Flows that go on through an outage, and when each moved again.
    Outage(outage::Outage),
    /// Forward frames between two interfaces with delay, a rate and loss.
    Line(line::Line),
    /// Open connections and keep them idle until a signal comes.
    Idle {
        #[arg(long)]
        to: String,
        #[arg(long, default_value_t = 100)]
        flows: usize,
    },
}

fn main() -> anyhow::Result<()> {
    match Args::parse().command {
        Command::Actor { listen, workers, patience } => serve::actor(listen, workers, patience),
        Command::Serve { listen } => serve::forever(listen),
        Command::Rollout(r) => r.run(),
        Command::Measure(m) => m.run(),
        Command::Probe(p) => p.run(),
        Command::Stream(s) => s.run(),
        Command::Churn(c) => c.run(),
        Command::Crowd(c) => c.run(),
        Command::Outage(o) => o.run(),
        Command::Line(l) => l.run(),
        Command::Idle { to, flows } => measure::idle(&to, flows),
    }
}
