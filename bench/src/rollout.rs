//! A rollout worker: finds the actor by name, delivers a trajectory, fetches a policy.

use std::{
    io::{Read as _, Write as _},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use serde::Serialize;

use crate::{
    measure, pattern, peer,
    stats::{Spread, gbps, result, say},
};

#[derive(Args, Debug)]
pub(crate) struct Rollout {
    /// HOST:PORT of the actor.
    #[arg(long)]
    actor: String,
    #[arg(long, default_value_t = 128)]
    trajectory_mib: u64,
    #[arg(long, default_value_t = 64)]
    policy_mib: u64,
    /// Connections made to measure latency before the data flows.
    #[arg(long, default_value_t = 200)]
    probes: usize,
    /// Seconds to wait for the actor.
    #[arg(long, default_value_t = 120)]
    patience: u64,
}

#[derive(Serialize)]
struct Found {
    kind: &'static str,
    actor: String,
    seen: peer::Seen,
    connect: Option<Spread>,
    first_byte: Option<Spread>,
    trajectory_mib: u64,
    trajectory_gbps: f64,
    policy_mib: u64,
    policy_gbps: f64,
    checksums: &'static str,
}

impl Rollout {
    pub(crate) fn run(&self) -> Result<()> {
        let (at, seen) = peer::find(&self.actor, Duration::from_secs(self.patience))?;
        say(&format!("{} is {at}; it sees this worker as {}", self.actor, seen.peer));
        let (connect, first) = measure::first_bytes(at, self.probes)?;
        let (trajectory, policy) = (self.trajectory_mib << 20, self.policy_mib << 20);

        let mut request = vec![b't'];
        request.extend(trajectory.to_be_bytes());
        request.extend(policy.to_be_bytes());
        let mut s = peer::dial(at, &request)?;
        let up = Instant::now();
        pattern::send(&mut s, 1, trajectory, told("trajectory", trajectory))
            .context("trajectory")?;
        let mut verified = [0];
        s.read_exact(&mut verified).context("the actor's word on the trajectory")?;
        ensure!(&verified == b"k", "the actor did not verify the trajectory");
        let up = up.elapsed();
        let down = Instant::now();
        pattern::receive(&mut s, policy, told("policy", policy)).context("policy")?;
        let down = down.elapsed();
        s.write_all(b"k")?;
        say("trajectory and policy verified");
        result(&Found {
            kind: "rollout",
            actor: self.actor.clone(),
            seen,
            connect: Spread::of(connect),
            first_byte: Spread::of(first),
            trajectory_mib: self.trajectory_mib,
            trajectory_gbps: gbps(trajectory, up),
            policy_mib: self.policy_mib,
            policy_gbps: gbps(policy, down),
            checksums: "ok",
        })
    }
}

/// Says each quarter, so that a log reader sees progress.
fn told(what: &'static str, all: u64) -> impl FnMut(u64) {
    let mut next = 1;
    move |done| {
        while next <= 4 && done * 4 >= all * next {
            say(&format!("PROGRESS {what} {done} {all}"));
            next += 1;
        }
    }
}
