//! Times, counted by length. No label names a flow or a peer, so this stays small whatever the traffic.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// Upper bounds in microseconds: from a data centre to a path that hardly works.
const BOUNDS: [u64; 17] = [
    100, 250, 500, 1000, 2500, 5000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
    2_500_000, 5_000_000, 10_000_000, 30_000_000,
];

/// Counts that only grow.
#[derive(Debug, Default)]
pub(crate) struct Histogram {
    counts: [AtomicU64; BOUNDS.len()],
    longer: AtomicU64,
    sum: AtomicU64,
}

impl Histogram {
    pub(crate) fn add(&self, time: Duration) {
        let us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let at = BOUNDS.partition_point(|bound| *bound < us);
        self.counts.get(at).unwrap_or(&self.longer).fetch_add(1, Relaxed);
        self.sum.fetch_add(us, Relaxed);
    }

    pub(crate) fn times(&self) -> Times {
        let of = |(bound, count): (&u64, &AtomicU64)| {
            (Some(Duration::from_micros(*bound)), count.load(Relaxed))
        };
        let longer = (None, self.longer.load(Relaxed));
        Times {
            buckets: BOUNDS.iter().zip(&self.counts).map(of).chain([longer]).collect(),
            sum: Duration::from_micros(self.sum.load(Relaxed)),
        }
    }
}

/// How often something took how long.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// The longest time of each, `None` for no bound, and how many took no longer but longer than the one before.
    pub buckets: Vec<(Option<Duration>, u64)>,
    /// Of all together.
    pub sum: Duration,
}

impl Times {
    /// How many were counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|(_, n)| n).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_time_is_counted_once_where_it_belongs() {
        let h = Histogram::default();
        for us in [0, 100, 101, 30_000_000, 30_000_001] {
            h.add(Duration::from_micros(us));
        }
        let times = h.times();
        let counts: Vec<u64> = times.buckets.iter().map(|(_, n)| *n).collect();
        assert_eq!((&counts[..2], &counts[2..16]), (&[2, 1][..], &[0; 14][..]));
        assert_eq!((counts[16], counts[17], times.count()), (1, 1, 5));
        assert_eq!(times.buckets.last().map(|b| b.0), Some(None));
        assert_eq!(times.sum, Duration::from_micros(60_000_202));
    }
}
