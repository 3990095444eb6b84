//! Waiting for a condition that nobody announces, with a deadline and a reason.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// Calls `probe` until it gives a value; after `limit` the error says what was awaited and, from
/// the last `Err` of the probe, why it was not there.
pub fn eventually<T>(
    what: &str,
    limit: Duration,
    mut probe: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let end = Instant::now() + limit;
    loop {
        crate::lab::interrupted()?;
        let last = match probe() {
            Ok(Some(v)) => return Ok(v),
            Ok(None) => String::new(),
            Err(e) => format!(": {e:#}"),
        };
        if Instant::now() >= end {
            bail!("waited {:.0?} for {what}{last}", limit);
        }
        pause(Duration::from_millis(20));
    }
}

/// The pace of [`eventually`]; the one place that sleeps.
#[expect(clippy::disallowed_methods, reason = "polling a condition of another process")]
pub fn pause(d: Duration) {
    std::thread::sleep(d);
}
