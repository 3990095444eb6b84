//! A delay line: frames from one interface leave by the other, later, at a rate, and not all of them.
//! For kernels without `tc netem`.
//!
//! The rate is of IP packets: Ethernet's own bytes are not counted. A frame may be longer than the MTU
//! where a sender leaves segmentation to its device: it counts as the packets that a wire would see.

mod packets;
mod segments;
mod shape;

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::Args;

use crate::stats::say;
use packets::{Port, Room};
use shape::{Shape, Shaper};

/// Frames taken from a port before the other gets its turn.
const BURST: usize = 64;

#[derive(Args, Debug)]
pub(crate) struct Line {
    /// The two interfaces.
    #[arg(long, required = true, num_args = 2, value_names = ["A", "B"])]
    between: Vec<String>,
    /// One way, in milliseconds.
    #[arg(long, default_value_t = 0.0)]
    delay_ms: f64,
    /// Mbit/s, each way.
    #[arg(long, default_value_t = 1000.0)]
    rate_mbit: f64,
    /// Packets lost, in percent, each way.
    #[arg(long, default_value_t = 0.0)]
    loss_percent: f64,
    /// What may wait for the rate, in milliseconds; more is lost.
    #[arg(long, default_value_t = 50.0)]
    queue_ms: f64,
}

impl Line {
    /// Until it is ended.
    pub(crate) fn run(&self) -> Result<()> {
        let shape = Shape {
            delay: Duration::from_secs_f64(self.delay_ms / 1e3),
            bits_per_second: self.rate_mbit * 1e6,
            loss: self.loss_percent / 100.0,
            queue: Duration::from_secs_f64(self.queue_ms / 1e3),
        };
        let port = |n: usize| -> Result<Port> {
            let name = self.between.get(n).context("two interfaces")?;
            Port::open(name).with_context(|| format!("cannot open {name}"))
        };
        let (a, b) = (port(0)?, port(1)?);
        packets::wake_precisely()?;
        let (mut there, mut back) = (Shaper::new(shape, 1), Shaper::new(shape, 2));
        let mut room = Room::new();
        say("LINE");
        loop {
            let now = Instant::now();
            let busy =
                [take(&a, &mut room, &mut there, now)?, take(&b, &mut room, &mut back, now)?];
            let now = Instant::now();
            give(&mut there, &b, now)?;
            give(&mut back, &a, now)?;
            let due = [there.due(), back.due()].into_iter().flatten().min();
            if busy.contains(&true) || due.is_some_and(|d| d <= Instant::now()) {
                continue;
            }
            packets::wait([&a, &b], due.map(|d| d.saturating_duration_since(Instant::now())))?;
        }
    }
}

/// Whether there may be more.
fn take(port: &Port, room: &mut Room, into: &mut Shaper, now: Instant) -> Result<bool> {
    for _ in 0..BURST {
        let Some(frame) = port.receive(room)? else { return Ok(false) };
        into.push(frame, now);
    }
    Ok(true)
}

fn give(from: &mut Shaper, port: &Port, now: Instant) -> Result<()> {
    while let Some(frame) = from.pop(now) {
        port.send(&frame)?;
        from.give_back(frame);
    }
    Ok(())
}
