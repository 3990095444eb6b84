//! Samples in rounds. A round of one path stands beside the same round of another.

/// Of one path and kind.
#[derive(Clone, Debug, Default)]
pub(super) struct Series {
    rounds: Vec<Vec<f64>>,
}

impl Series {
    pub(super) fn round(&mut self, samples: Vec<f64>) {
        self.rounds.push(samples);
    }

    pub(super) fn samples(&self) -> usize {
        self.rounds.iter().map(Vec::len).sum()
    }

    /// Of all rounds together.
    pub(super) fn percentile(&self, percent: usize) -> f64 {
        percentile(self.rounds.concat(), percent)
    }

    pub(super) fn median(&self) -> f64 {
        self.percentile(50)
    }

    /// The median over the rounds of what `f` makes of both medians.
    pub(super) fn paired(&self, raw: &Self, f: impl Fn(f64, f64) -> f64) -> f64 {
        let medians =
            |s: &Self| -> Vec<f64> { s.rounds.iter().map(|r| percentile(r.clone(), 50)).collect() };
        let pairs = medians(self).into_iter().zip(medians(raw));
        percentile(pairs.map(|(ours, raw)| f(ours, raw)).collect(), 50)
    }
}

/// Not a number without samples.
pub(super) fn percentile(mut all: Vec<f64>, percent: usize) -> f64 {
    all.sort_unstable_by(f64::total_cmp);
    let at = (all.len() * percent / 100).min(all.len().saturating_sub(1));
    all.get(at).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drift_of_the_machine_falls_out_of_paired_rounds() {
        let (mut ours, mut raw) = (Series::default(), Series::default());
        for drift in [0.0, 50.0, 10.0] {
            raw.round(vec![20.0 + drift; 3]);
            ours.round(vec![23.0 + drift; 3]);
        }
        let extra = ours.paired(&raw, |o, r| o - r);
        assert!((extra - 3.0).abs() < 1e-9, "{extra}");
        assert_eq!(ours.samples(), 9);
        assert!((ours.percentile(99) - 73.0).abs() < 1e-9);
    }

    #[test]
    fn without_samples_there_is_no_number() {
        assert!(Series::default().median().is_nan());
    }
}
