//! What the relay counted by length, as histograms.

use std::fmt;

use datapath_relay::Times;
use prometheus_client::{
    encoding::{EncodeMetric, MetricEncoder, NoLabelSet},
    metrics::MetricType,
};

/// One histogram for each value of a label, or one without.
#[derive(Debug)]
pub(super) struct Histograms(pub(super) Vec<(Vec<(&'static str, &'static str)>, Times)>);

impl EncodeMetric for Histograms {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), fmt::Error> {
        for (labels, times) in &self.0 {
            if labels.is_empty() {
                put(&mut encoder, times)?;
            } else {
                put(&mut encoder.encode_family(labels)?, times)?;
            }
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Histogram
    }
}

fn put(encoder: &mut MetricEncoder<'_>, times: &Times) -> Result<(), fmt::Error> {
    let bucket = |(bound, count): &(Option<std::time::Duration>, u64)| {
        (bound.map_or(f64::INFINITY, |b| b.as_secs_f64()), *count)
    };
    let buckets: Vec<(f64, u64)> = times.buckets.iter().map(bucket).collect();
    encoder.encode_histogram::<NoLabelSet>(times.sum.as_secs_f64(), times.count(), &buckets, None)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use prometheus_client::{encoding::text::encode, registry::Registry};

    use super::*;

    #[test]
    fn buckets_add_up_to_the_last() {
        let bucket = |us, n| (Some(Duration::from_micros(us)), n);
        let buckets = vec![bucket(500, 2), bucket(1000, 3), (None, 1)];
        let times = Times { buckets, sum: Duration::from_millis(7) };
        let mut registry = Registry::default();
        let both = vec![(vec![("path", "hub")], times.clone()), (vec![("path", "direct")], times)];
        registry.register("a_seconds", "A", Histograms(both));
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        for line in [
            "# TYPE a_seconds histogram",
            "a_seconds_bucket{le=\"0.0005\",path=\"hub\"} 2",
            "a_seconds_bucket{le=\"0.001\",path=\"direct\"} 5",
            "a_seconds_bucket{le=\"+Inf\",path=\"hub\"} 6",
            "a_seconds_sum{path=\"hub\"} 0.007",
            "a_seconds_count{path=\"hub\"} 6",
        ] {
            assert!(text.lines().any(|l| l == line), "{line} in\n{text}");
        }
    }
}
