//! The table `policy/preflight.toml`, which defines what is compared, and with which tolerance.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;

use super::Metric;
use crate::verdict::Severity;

const TEXT: &str = include_str!("../../policy/preflight.toml");

/// Which direction is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Better {
    /// More is better.
    Higher,
    /// Less is better.
    Lower,
}

/// How one metric is judged. The file explains each value.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct MetricRow {
    pub unit: Arc<str>,
    pub better: Better,
    pub warning: f64,
    pub fail: f64,
    pub floor: f64,
    pub says: Arc<str>,
    #[serde(rename = "do")]
    pub advice: Arc<str>,
    #[serde(default)]
    pub causes: Vec<Arc<str>>,
}

/// How one fact is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rule {
    /// The value must be the same as in most other places.
    Same,
    /// Any value but an empty one (0, no, false, none) is bad.
    None,
}

/// How one fact is judged and reported.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct FactRow {
    pub rule: Rule,
    pub severity: Severity,
    #[serde(default)]
    pub less_is_bad: bool,
    pub says: Arc<str>,
}

/// When a difference is more than noise.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct NoiseLimits {
    pub warning_sigma: f64,
    pub fail_sigma: f64,
    pub suspect_sigma: f64,
    pub unsteady: f64,
    pub history_min: usize,
}

impl NoiseLimits {
    /// Returns the stricter limits that select what to measure again.
    pub fn keen(self) -> NoiseLimits {
        NoiseLimits {
            warning_sigma: self.suspect_sigma,
            fail_sigma: self.suspect_sigma,
            unsteady: f64::INFINITY,
            ..self
        }
    }
}

/// The whole table.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PreflightTable {
    /// When a difference is more than noise.
    pub noise: NoiseLimits,
    metric: BTreeMap<Metric, MetricRow>,
    fact: BTreeMap<Arc<str>, FactRow>,
}

impl Default for PreflightTable {
    /// Returns the table as shipped.
    fn default() -> PreflightTable {
        // The text is compiled in and covered by a test, so parsing it cannot fail on a user's machine.
        toml::from_str(TEXT).expect("policy/preflight.toml is tested")
    }
}

impl PreflightTable {
    /// Returns the row of a metric.
    pub fn metric(&self, metric: Metric) -> &MetricRow {
        // A test over Metric::ALL checks that every metric has a row.
        &self.metric[&metric]
    }

    /// Returns the row of a fact, if it is judged.
    pub fn fact(&self, name: &str) -> Option<&FactRow> {
        self.fact.get(name)
    }
}

impl MetricRow {
    /// Returns the share by which `value` is worse than `expected`. It is negative if `value` is better, and 0 if it is
    /// undefined.
    pub fn worse_by(&self, value: f64, expected: f64) -> f64 {
        if expected <= 0.0 {
            // If zero is expected (no loss, for example), any amount is infinitely worse. The floor then decides
            // whether it matters.
            let worse = self.better == Better::Lower && value > 0.0;
            return if worse { f64::INFINITY } else { 0.0 };
        }
        match self.better {
            Better::Higher => 1.0 - value / expected,
            Better::Lower => value / expected - 1.0,
        }
    }

    /// Returns the better of two values.
    pub fn best(&self, one: f64, other: f64) -> f64 {
        match self.better {
            Better::Higher => one.max(other),
            Better::Lower => one.min(other),
        }
    }

    /// Returns the severity of `value` compared with `expected`, with a spread of `sigma` (a share of the expected
    /// value).
    pub fn severity(&self, value: f64, expected: f64, sigma: f64, noise: &NoiseLimits) -> Option<Severity> {
        if (value - expected).abs() <= self.floor {
            return None;
        }
        let worse = self.worse_by(value, expected);
        if worse > self.fail.max(noise.fail_sigma * sigma) {
            Some(Severity::Critical)
        } else if worse > self.warning.max(noise.warning_sigma * sigma) {
            Some(Severity::Warning)
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_has_a_row() {
        let table = PreflightTable::default();
        for metric in Metric::ALL {
            let row = table.metric(metric);
            assert!(0.0 < row.warning && row.warning < row.fail, "{metric}");
            assert!(!row.says.is_empty() && !row.advice.is_empty(), "{metric}");
        }
        assert_eq!(table.metric.len(), Metric::ALL.len());
        for cause in table.metric.values().flat_map(|row| &row.causes) {
            assert!(table.fact(cause).is_some(), "no fact {cause}");
        }
    }

    #[test]
    fn worse_is_worse_in_both_directions() {
        let table = PreflightTable::default();
        let check = |metric, value, expected, sigma, wanted| {
            let found = table
                .metric(metric)
                .severity(value, expected, sigma, &table.noise);
            assert_eq!(found, wanted, "{metric} {value} of {expected} at {sigma}");
        };
        check(Metric::Gemm, 100.0, 100.0, 0.0, None);
        check(Metric::Gemm, 130.0, 100.0, 0.0, None);
        check(Metric::Gemm, 94.0, 100.0, 0.0, Some(Severity::Warning));
        check(Metric::Gemm, 89.0, 100.0, 0.0, Some(Severity::Critical));
        check(Metric::Gemm, 89.0, 100.0, 0.02, Some(Severity::Critical));
        check(Metric::Gemm, 89.0, 100.0, 0.025, Some(Severity::Warning));
        check(Metric::Gemm, 89.0, 100.0, 0.1, None);
        check(Metric::PairLatency, 50e-6, 100e-6, 0.0, None);
        check(Metric::PairLatency, 400e-6, 100e-6, 0.0, None);
        check(Metric::PairLatency, 0.01, 100e-6, 0.0, Some(Severity::Critical));
        check(Metric::PairLoss, 0.01, 0.0, 0.0, Some(Severity::Critical));
        check(Metric::PairLoss, 0.001, 0.0, 0.0, None);
    }
}
