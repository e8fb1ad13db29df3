//! Plain numbers as metric families, one after another. Label values are external names, so they are shortened, put on
//! one line, and made printable here.

use std::borrow::Cow;
use std::collections::HashSet;

use paceline_health::text::sanitize;
use prometheus::proto::{Counter, Gauge, LabelPair, Metric, MetricFamily, MetricType, Quantile, Summary};

/// Receives families in page order. Each family is written and dropped before the next is made, so that the data of
/// 16,384 ranks is not in memory twice.
pub struct Families<'a>(pub &'a mut dyn FnMut(&MetricFamily));

impl Families<'_> {
    /// Adds a family. A family without values is omitted.
    pub fn add(&mut self, family: &MetricFamily) {
        if !family.get_metric().is_empty() {
            (self.0)(family);
        }
    }
}

impl std::fmt::Debug for Families<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Families").finish_non_exhaustive()
    }
}

/// Adds a counter family with these values, each with its own labels.
pub(in crate::sink::metrics) fn counters<const N: usize>(
    out: &mut Families<'_>,
    name: &str,
    help: &str,
    labels: [&str; N],
    values: impl IntoIterator<Item = ([String; N], f64)>,
) {
    // Negative values and NaN are omitted.
    let values = values.into_iter().filter(|(_, value)| *value >= 0.0);
    numbers(
        out,
        (name, help, MetricType::COUNTER),
        labels,
        values,
        |metric, value| {
            let mut counter = Counter::default();
            counter.set_value(value);
            metric.set_counter(counter);
        },
    );
}

/// Adds a gauge family with these values, each with its own labels.
pub(in crate::sink::metrics) fn gauges<const N: usize>(
    out: &mut Families<'_>,
    name: &str,
    help: &str,
    labels: [&str; N],
    values: impl IntoIterator<Item = ([String; N], f64)>,
) {
    numbers(
        out,
        (name, help, MetricType::GAUGE),
        labels,
        values,
        |metric, value| {
            let mut gauge = Gauge::default();
            gauge.set_value(value);
            metric.set_gauge(gauge);
        },
    );
}

fn numbers<const N: usize>(
    out: &mut Families<'_>,
    (name, help, kind): (&str, &str, MetricType),
    labels: [&str; N],
    values: impl IntoIterator<Item = ([String; N], f64)>,
    set: fn(&mut Metric, f64),
) {
    // Sort the labels by name, like the crate's own registry.
    let mut order: Vec<usize> = (0..N).collect();
    order.sort_unstable_by_key(|at| labels[*at]);
    let mut is_changed = false;
    let metrics = values.into_iter().map(|(mut said, value)| {
        let pairs = order.iter().map(|at| {
            let mut pair = LabelPair::default();
            pair.set_name(labels[*at].to_owned());
            let mut name = std::mem::take(&mut said[*at]);
            let shown = match sanitize::label(&name) {
                Cow::Borrowed(_) => None,
                Cow::Owned(shown) => Some(shown),
            };
            if let Some(shown) = shown {
                is_changed |= shown != name;
                name = shown;
            }
            pair.set_value(name);
            pair
        });
        let mut metric = Metric::from_label(pairs.collect());
        set(&mut metric, value);
        metric
    });
    let mut metrics: Vec<Metric> = metrics.collect();
    if is_changed {
        // Different values may now have the same labels. Keep only the first, because duplicates would invalidate the
        // page.
        let mut seen = HashSet::new();
        metrics.retain(|metric| {
            let labels = metric.get_label().iter();
            seen.insert(labels.map(|pair| pair.value().to_owned()).collect::<Vec<_>>())
        });
    }
    let mut family = MetricFamily::default();
    family.set_name(name.to_owned());
    family.set_help(help.to_owned());
    family.set_field_type(kind);
    family.set_metric(metrics);
    debug_assert!(!has_twins(&family), "{name}: two values with the same labels");
    out.add(&family);
}

/// Returns true if two values have the same labels. A scraper would reject the whole page.
fn has_twins(family: &MetricFamily) -> bool {
    let mut seen = HashSet::new();
    let mut values = family.get_metric().iter();
    values.any(|metric| {
        let labels = metric.get_label().iter();
        !seen.insert(labels.map(LabelPair::value).collect::<Vec<_>>())
    })
}

/// A summary on the page. It has quantiles with their values, the sum, and the count.
pub(in crate::sink::metrics) struct Summed {
    /// The value of the family's label.
    pub label: &'static str,
    /// Pairs of quantile and value.
    pub quantiles: Vec<(f64, f64)>,
    /// Sum of all samples.
    pub sum: f64,
    /// Number of samples.
    pub count: u64,
}

/// Returns a summary family with these values, or `None` if there are none. The values were counted elsewhere; the
/// registry only supports summaries that it counts itself.
pub(in crate::sink::metrics) fn summaries(
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
