//! Words in the log for what others can cause as often as they like.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

const SPAN: Duration = Duration::from_secs(1);
const MOST: u32 = 10;

/// Lets ten lines a second through and counts the others: a flood of refusals must not become one of log lines.
#[derive(Debug, Default)]
pub struct LogPace(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    since: Option<Instant>,
    said: u32,
    unsaid: u64,
}

impl LogPace {
    fn hold(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `None`: say nothing. Else how many were not said since the last that was.
    pub fn may_say(&self) -> Option<u64> {
        let mut s = self.hold();
        if s.since.is_none_or(|since| since.elapsed() >= SPAN) {
            (s.since, s.said) = (Some(Instant::now()), 0);
        }
        if s.said >= MOST {
            s.unsaid = s.unsaid.saturating_add(1);
            return None;
        }
        s.said += 1;
        Some(std::mem::take(&mut s.unsaid))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_ten_lines_and_then_a_number() {
        let pace = LogPace::default();
        let said = (0..1000).filter(|_| pace.may_say().is_some()).count();
        assert_eq!(said, 10);
        pace.hold().since = Instant::now().checked_sub(SPAN);
        assert_eq!((pace.may_say(), pace.may_say()), (Some(990), Some(0)));
    }
}
