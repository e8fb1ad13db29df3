//! One number of the evaluation, with its target.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Version of [`Table`].
pub(super) const TABLE_VERSION: u32 = 1;

/// The output of `--json`, which is also the input of `--compare`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Table {
    /// The value is always [`TABLE_VERSION`].
    pub(super) schema_version: u32,
    /// Version of the program that printed the table.
    #[serde(default)]
    pub(super) paceline: String,
    /// Number of seeds per scenario.
    #[serde(default)]
    pub(super) seeds: u64,
    /// True if tuning seeds were used. The numbers must not be published then.
    #[serde(default)]
    pub(super) tuning: bool,
    /// Number of worlds that were simulated.
    #[serde(default)]
    pub(super) runs: u64,
    /// Duration of the evaluation.
    #[serde(default)]
    pub(super) elapsed_s: f64,
    /// The rows, one for each number.
    pub(super) rows: Vec<Row>,
}

/// One number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Row {
    /// Name of the measured quantity.
    pub(super) name: String,
    /// The number, or `None` if it does not exist (for example, a median if more than half of the values are infinite).
    pub(super) value: Option<f64>,
    /// The target, or `None` if the number is for information only.
    pub(super) target: Option<f64>,
    /// True if the number meets the target. `None` if the number is for information only.
    pub(super) met: Option<bool>,
    /// Whether higher or lower numbers are better.
    #[serde(default)]
    pub(super) better: Better,
    /// Unit of the number.
    #[serde(default)]
    pub(super) unit: Unit,
    /// Number of samples.
    #[serde(default)]
    pub(super) n: u64,
    /// The 95 % interval of the number. For a rate, both ends are its upper bound.
    #[serde(default)]
    pub(super) ci: Option<[Option<f64>; 2]>,
    /// The same number for the other rules, on the same samples.
    #[serde(default)]
    pub(super) baselines: BTreeMap<String, Option<f64>>,
    /// Further notes.
    #[serde(default)]
    pub(super) note: String,
}

/// Whether higher or lower numbers are better.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Better {
    /// Higher is better, so the number must be at least the target.
    #[default]
    Higher,
    /// Lower is better, so the number must be at most the target.
    Lower,
}

/// Units of values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Unit {
    /// A fraction of 1.
    #[default]
    Share,
    /// Optimizer steps.
    Steps,
    /// A count.
    Count,
    /// Per 10,000,000 rank-steps.
    #[serde(rename = "per_10m_rank_steps")]
    PerTenMillion,
    /// Milliseconds.
    Milliseconds,
    /// Frames per second.
    #[serde(rename = "frames_per_s")]
    FramesPerSecond,
    /// Mebibytes.
    #[serde(rename = "mib")]
    Mebibytes,
}

impl Row {
    /// Creates a row for a number that must be at least `target`.
    pub(super) fn at_least(name: &str, target: f64) -> Row {
        Row::new(name, Some(target), Better::Higher)
    }

    /// Creates a row for a number that must not exceed `target`.
    pub(super) fn at_most(name: &str, target: f64) -> Row {
        Row::new(name, Some(target), Better::Lower)
    }

    /// Creates a row for a number without a target.
    pub(super) fn told(name: &str, better: Better) -> Row {
        Row::new(name, None, better)
    }

    fn new(name: &str, target: Option<f64>, better: Better) -> Row {
        Row {
            name: name.to_owned(),
            value: None,
            target,
            met: target.map(|_| false),
            better,
            unit: Unit::default(),
            n: 0,
            ci: None,
            baselines: BTreeMap::new(),
            note: String::new(),
        }
    }

    /// Sets the number, and records if it meets the target. A value that is not finite counts as missing.
    pub(super) fn with(mut self, value: f64, n: u64) -> Row {
        self.value = Some(value).filter(|value| value.is_finite());
        self.n = n;
        self.met = self.target.map(|target| match self.better {
            Better::Higher => value >= target,
            Better::Lower => value <= target,
        });
        self
    }

    /// Sets the interval.
    pub(super) fn within(mut self, ci: Option<[f64; 2]>) -> Row {
        self.ci = ci.map(|ends| ends.map(|end| Some(end).filter(|end| end.is_finite())));
        self
    }

    /// Sets the unit.
    pub(super) fn in_unit(mut self, unit: Unit) -> Row {
        self.unit = unit;
        self
    }

    /// Adds a note.
    pub(super) fn noting(mut self, note: impl Into<String>) -> Row {
        self.note = note.into();
        self
    }

    /// Sets the numbers of other rules.
    pub(super) fn beside(mut self, baselines: BTreeMap<String, Option<f64>>) -> Row {
        self.baselines = baselines;
        self
    }
}

impl Unit {
    /// Formats another rule's value. A share is missing if the rule raised nothing, or if it cannot raise such a
    /// finding.
    pub(super) fn show_other(self, value: Option<f64>) -> String {
        match value {
            None if self == Unit::Share => "-".to_owned(),
            value => self.show(value),
        }
    }

    /// Formats the value.
    pub(super) fn show(self, value: Option<f64>) -> String {
        let Some(value) = value else {
            return "never".to_owned();
        };
        match self {
            Unit::Share if value != 0.0 && value.abs() < 0.1 => format!("{:.2} %", value * 100.0),
            Unit::Share => format!("{:.1} %", value * 100.0),
            Unit::Steps => format!("{value:.0} steps"),
            Unit::Count => format!("{value:.0}"),
            Unit::PerTenMillion if value >= 100.0 => format!("{value:.0}"),
            Unit::PerTenMillion => format!("{value:.2}"),
            Unit::Milliseconds => format!("{value:.1} ms"),
            Unit::FramesPerSecond => format!("{:.2} M/s", value / 1e6),
            Unit::Mebibytes => format!("{value:.0} MiB"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_met_or_not() {
        assert_eq!(Row::at_least("recall", 0.99).with(0.99, 1).met, Some(true));
        assert_eq!(Row::at_most("steps", 5.0).with(6.0, 1).met, Some(false));
        let never = Row::at_most("steps", 5.0).with(f64::INFINITY, 1);
        assert_eq!((never.value, never.met), (None, Some(false)));
        let none = Row::at_least("recall", 0.99).with(f64::NAN, 0);
        assert_eq!((none.value, none.met), (None, Some(false)));
        assert_eq!(Row::told("cost", Better::Lower).with(1.0, 1).met, None);
    }

    #[test]
    fn json_has_what_was_promised() {
        let row = Row::at_least("recall", 0.5).with(1.0, 3);
        let text = serde_json::to_string(&row).unwrap();
        assert!(
            text.starts_with(r#"{"name":"recall","value":1.0,"target":0.5,"met":true,"#),
            "{text}"
        );
        let old: Row = serde_json::from_str(r#"{"name":"x","value":1,"target":2,"met":false}"#).unwrap();
        assert_eq!(old.n, 0);
    }
}
