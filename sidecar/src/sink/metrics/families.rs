//! Plain numbers as metric families of one page.

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
