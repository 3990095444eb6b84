//! How long to wait before an object that failed is tried again.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Mutex, PoisonError},
    time::Duration,
};

const FIRST: Duration = Duration::from_millis(200);
const LONGEST: Duration = Duration::from_secs(60);

/// Doubles the pause with every failure of one object; a success forgets.
#[derive(Debug)]
pub(crate) struct Backoff<T>(Mutex<HashMap<T, u32>>);

impl<T: Eq + Hash> Backoff<T> {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(HashMap::new()))
    }

    /// The pause after one more failure.
    pub(crate) fn failed(&self, key: T) -> Duration {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(key).or_insert(0);
        let pause = FIRST.saturating_mul(1_u32.checked_shl(*count).unwrap_or(u32::MAX));
        *count = count.saturating_add(1).min(16);
        pause.min(LONGEST)
    }

    pub(crate) fn succeeded(&self, key: &T) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_doubles_up_to_a_minute_and_success_forgets() {
        let b = Backoff::new();
        let pauses: Vec<u128> = (0..12).map(|_| b.failed("a").as_millis()).collect();
        assert_eq!(pauses[..4], [200, 400, 800, 1600]);
        assert_eq!(pauses[11], 60_000);
        b.succeeded(&"a");
        assert_eq!(b.failed("a"), FIRST);
    }
}
