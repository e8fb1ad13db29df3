//! Plain numbers as metric families of one page.

use prometheus::proto::{LabelPair, Metric, MetricFamily, MetricType, Quantile, Summary};
use prometheus::{CounterVec, GaugeVec, Opts, Registry};

/// A counter family with these values.
pub(super) fn counters<const N: usize>(
    registry: &Registry,
    name: &str,
    help: &str,
    labels: [&str; N],
    values: impl IntoIterator<Item = ([String; N], f64)>,
) {
    let Ok(family) = CounterVec::new(Opts::new(name, help), &labels) else {
        return;
    };
    for (labels, value) in values {
        // A counter refuses to shrink by a panic; what is negative or no number has no place on the page.
        if value >= 0.0 {
            family
                .with_label_values(&labels.each_ref().map(String::as_str))
                .inc_by(value);
        }
    }
    let _ = registry.register(Box::new(family));
}

/// A gauge family with these values.
pub(super) fn gauges<const N: usize>(
    registry: &Registry,
    name: &str,
    help: &str,
    labels: [&str; N],
    values: impl IntoIterator<Item = ([String; N], f64)>,
) {
    let Ok(family) = GaugeVec::new(Opts::new(name, help), &labels) else {
        return;
    };
    for (labels, value) in values {
        family
            .with_label_values(&labels.each_ref().map(String::as_str))
            .set(value);
    }
    let _ = registry.register(Box::new(family));
}

/// A summary as it stands on the page: quantiles with their values, the sum and the count.
pub(super) struct Summed {
    /// The value of the family's label.
    pub label: &'static str,
    /// Quantile and value.
    pub quantiles: Vec<(f64, f64)>,
    /// Of all samples.
    pub sum: f64,
    /// Samples.
    pub count: u64,
}

/// A summary family with these values, which were counted elsewhere: the registry only knows those that it counts
/// itself. `None`: there are no values.
pub(super) fn summaries(
    name: &str,
    help: &str,
    label: &str,
    values: impl IntoIterator<Item = Summed>,
) -> Option<MetricFamily> {
    let metrics: Vec<Metric> = values.into_iter().map(|value| summary(label, value)).collect();
    let mut family = MetricFamily::default();
    family.set_name(name.to_owned());
    family.set_help(help.to_owned());
    family.set_field_type(MetricType::SUMMARY);
    (!metrics.is_empty()).then(|| {
        family.set_metric(metrics);
        family
    })
}

fn summary(label: &str, value: Summed) -> Metric {
    let quantiles = value.quantiles.iter().map(|(at, value)| {
        let mut quantile = Quantile::default();
        quantile.set_quantile(*at);
        quantile.set_value(*value);
        quantile
    });
    let mut summary = Summary::default();
    summary.set_quantile(quantiles.collect());
    summary.set_sample_sum(value.sum);
    summary.set_sample_count(value.count);
    let mut pair = LabelPair::default();
    pair.set_name(label.to_owned());
    pair.set_value(value.label.to_owned());
    let mut metric = Metric::from_label(vec![pair]);
    metric.set_summary(summary);
    metric
}
