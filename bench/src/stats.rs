//! Percentiles of durations, and the one way to print a finding.

use std::time::Duration;

use serde::Serialize;

/// Microseconds.
#[derive(Debug, Serialize)]
pub(crate) struct Spread {
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) samples: usize,
}

impl Spread {
    /// `None` without samples.
    pub(crate) fn of(mut all: Vec<Duration>) -> Option<Self> {
        all.sort_unstable();
        let at = |percent: usize| {
            let i = (all.len() * percent / 100).min(all.len().saturating_sub(1));
            all.get(i).map(|d| d.as_secs_f64() * 1e6)
        };
        Some(Self { p50_us: at(50)?, p99_us: at(99)?, samples: all.len() })
    }
}

/// One line for whoever reads the task's log.
#[expect(clippy::print_stdout, reason = "the log is this program's product")]
pub(crate) fn result(value: &impl Serialize) -> anyhow::Result<()> {
    println!("RESULT {}", serde_json::to_string(value)?);
    Ok(())
}

/// A line for people.
#[expect(clippy::print_stdout, reason = "the log is this program's product")]
pub(crate) fn say(text: &str) {
    println!("{text}");
}

/// Gigabits per second.
#[expect(clippy::cast_precision_loss, reason = "byte counts here are far below 2^52")]
pub(crate) fn gbps(bytes: u64, took: Duration) -> f64 {
    bytes as f64 * 8.0 / took.as_secs_f64() / 1e9
}
