//! Durations in buckets. It is a Prometheus histogram as plain numbers that can be serialized.

use prometheus::proto::{Bucket, Histogram, Metric, MetricFamily, MetricType};
use serde::{Deserialize, Serialize};

/// Upper bounds of the buckets, seconds.
const BOUNDS: [f64; 15] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 600.0,
];

/// Counts of samples by duration.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Durations {
    /// The count of each bucket. A duration belongs to the bucket with the smallest bound that is not below it.
    /// Durations above all bounds are in `count` only.
    counts: [u64; BOUNDS.len()],
    count: u64,
    sum_s: f64,
}

impl Durations {
    /// Counts one duration.
    pub(super) fn observe(&mut self, seconds: f64) {
        let place = BOUNDS.partition_point(|bound| *bound < seconds);
        if let Some(count) = self.counts.get_mut(place) {
            *count += 1;
        }
        self.count += 1;
        self.sum_s += seconds;
    }

    /// Returns the histogram as a family of the page.
    pub(super) fn family(&self, name: &str, help: &str) -> MetricFamily {
        let mut cumulative = 0;
        let bucket = |(bound, count): (&f64, &u64)| {
            cumulative += count;
            let mut bucket = Bucket::default();
            bucket.set_upper_bound(*bound);
            bucket.set_cumulative_count(cumulative);
            bucket
        };
        let mut histogram = Histogram::default();
        histogram.set_bucket(BOUNDS.iter().zip(&self.counts).map(bucket).collect());
        histogram.set_sample_count(self.count);
        histogram.set_sample_sum(self.sum_s);
        let mut metric = Metric::default();
        metric.set_histogram(histogram);
        let mut family = MetricFamily::default();
        family.set_name(name.to_owned());
        family.set_help(help.to_owned());
        family.set_field_type(MetricType::HISTOGRAM);
        family.set_metric(vec![metric]);
        family
    }
}
