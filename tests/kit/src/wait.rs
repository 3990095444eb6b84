//! Waiting for a condition that nobody announces, with a deadline and a reason.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// Calls `probe` until it gives a value. An error of the probe ends the wait at once: what may still
/// heal is `Ok(None)`. An interrupt ends it too.
pub fn eventually<T>(
    what: &str,
    limit: Duration,
    mut probe: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    until(what, limit, || {
        crate::lab::interrupted()?;
        probe()
    })
}

/// As [`eventually`], for clean-ups, which an interrupt is the reason for and must not end.
pub(crate) fn until<T>(
    what: &str,
    limit: Duration,
    mut probe: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let end = Instant::now() + limit;
    loop {
        if let Some(v) = probe()? {
            return Ok(v);
        }
        if Instant::now() >= end {
            bail!("waited {limit:.0?} in vain for {what}");
        }
        pause(Duration::from_millis(20));
    }
}

/// The pace of [`eventually`]; the one place that sleeps.
#[expect(clippy::disallowed_methods, reason = "polling a condition of another process")]
pub fn pause(d: Duration) {
    std::thread::sleep(d);
}
