//! Policy as data: the tables in `policy/`, read once. Code finds, tables decide.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::verdict::{Cause, Finding};

const DETECTOR: &str = include_str!("../policy/detector.toml");
const FINDINGS: &str = include_str!("../policy/findings.toml");

/// The tables in force.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// Constants of the rules.
    pub detector: Thresholds,
    findings: BTreeMap<Finding, FindingRow>,
}

/// `policy/detector.toml`; the meaning and source of each value stand there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct Thresholds {
    pub straggler: StragglerThresholds,
    pub impact: ImpactThresholds,
    pub silence: SilenceThresholds,
    pub blind: BlindThresholds,
    pub thermal: ThermalThresholds,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct StragglerThresholds {
    pub tolerated_ratio: f64,
    pub alternatives: Vec<f64>,
    pub false_alarms_per_day: f64,
    pub sigma_floor: f64,
    pub min_steps: u32,
    pub min_peers: u32,
    pub warm_up_max_steps: u32,
    pub noise_window_steps: u32,
    pub consistency_wait_ratio: f64,
    pub correlated_ratio: f64,
    pub correlated_min_ranks: u32,
    pub correlated_steps: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct ImpactThresholds {
    pub warning_ratio: f64,
    pub critical_ratio: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct SilenceThresholds {
    pub suspect_p99: f64,
    pub confirmed_p99: f64,
    pub confirmed_min_s: f64,
    pub suspect_min_s: f64,
    pub unknown_p99_s: f64,
    pub patience_ratio: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct BlindThresholds {
    pub beat_missing_s: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct ThermalThresholds {
    pub throttled_ratio: f64,
    pub clock_ratio: f64,
}

/// One row of `policy/findings.toml`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FindingRow {
    /// The finding in a few words.
    pub title: Arc<str>,
    /// What it means for the job.
    pub means: Arc<str>,
    /// What to look at.
    pub look: Arc<str>,
    action: BTreeMap<Cause, Arc<str>>,
}

/// Why a policy value cannot be set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// There is no such value.
    #[error("no policy value is called \"{key}\"; there are: {known}")]
    UnknownKey {
        /// What was asked for.
        key: String,
        /// What there is.
        known: String,
    },
    /// The value makes no sense there.
    #[error("{key} = {value}: must be a positive number{hint}")]
    BadValue {
        /// The key.
        key: String,
        /// The value as it was given.
        value: String,
        /// More about what fits.
        hint: &'static str,
    },
}

impl Default for Policy {
    /// The tables as shipped.
    fn default() -> Policy {
        // The texts are compiled in, and a test reads them: they cannot fail on a user's machine.
        Policy {
            detector: toml::from_str(DETECTOR).expect("policy/detector.toml is tested"),
            findings: toml::from_str(FINDINGS).expect("policy/findings.toml is tested"),
        }
    }
}

impl Policy {
    /// The row of a finding.
    pub fn finding(&self, finding: Finding) -> &FindingRow {
        // Total by a test over Finding::ALL.
        &self.findings[&finding]
    }

    /// What the table asks for when `finding` was raised for `cause`.
    pub fn action(&self, finding: Finding, cause: Cause) -> Arc<str> {
        let actions = &self.finding(finding).action;
        actions
            .get(&cause)
            .or_else(|| actions.get(&Cause::Unknown))
            .cloned()
            .unwrap_or_default()
    }

    /// Dotted names of the values that [`Policy::set`] takes, in order.
    pub fn keys(&self) -> Vec<String> {
        let mut keys = Vec::new();
        for (section, value) in self.table() {
            for (name, value) in value.as_table().into_iter().flatten() {
                if value.is_float() || value.is_integer() {
                    keys.push(format!("{section}.{name}"));
                }
            }
        }
        keys
    }

    /// The present value under a dotted name.
    pub fn get(&self, key: &str) -> Option<f64> {
        let (section, name) = key.split_once('.')?;
        let table = self.table();
        let value = table.get(section)?.get(name)?;
        value
            .as_float()
            .or_else(|| value.as_integer().map(|whole| whole as f64))
    }

    /// Sets one value by its dotted name, `straggler.tolerated_ratio`.
    ///
    /// # Errors
    /// An unknown name, or a value that is not positive or does not fit (a count must be whole). Nothing is changed
    /// then.
    pub fn set(&mut self, key: &str, value: f64) -> Result<(), PolicyError> {
        let unknown = || PolicyError::UnknownKey {
            key: key.to_owned(),
            known: self.keys().join(", "),
        };
        let bad = |hint| PolicyError::BadValue {
            key: key.to_owned(),
            value: value.to_string(),
            hint,
        };
        if self.get(key).is_none() {
            return Err(unknown());
        }
        if !value.is_finite() || value <= 0.0 {
            return Err(bad(""));
        }
        let (section, name) = key.split_once('.').ok_or_else(unknown)?;
        let mut table = self.table();
        if let Some(slot) = table.get_mut(section).and_then(|section| section.get_mut(name)) {
            *slot = match slot {
                toml::Value::Integer(_) if value.fract() == 0.0 && value <= 1e9 => {
                    toml::Value::Integer(value as i64)
                }
                toml::Value::Integer(_) => return Err(bad(" without a fraction")),
                _ => toml::Value::Float(value),
            };
        }
        self.detector = table.try_into().map_err(|_| bad(""))?;
        Ok(())
    }

    fn table(&self) -> toml::Table {
        toml::Table::try_from(&self.detector).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_are_whole() {
        let policy = Policy::default();
        for finding in Finding::ALL.iter().copied() {
            let row = policy.finding(finding);
            assert!(!row.title.is_empty() && !row.means.is_empty() && !row.look.is_empty());
            for cause in Cause::ALL.iter().copied() {
                assert!(
                    !policy.action(finding, cause).is_empty(),
                    "{finding} {}",
                    cause.name()
                );
            }
        }
    }

    #[test]
    fn values_are_set_by_name_and_bad_ones_change_nothing() {
        let mut policy = Policy::default();
        policy.set("impact.warning_ratio", 0.05).unwrap();
        assert_eq!(policy.detector.impact.warning_ratio, 0.05);
        policy.set("straggler.min_steps", 8.0).unwrap();
        assert_eq!(policy.detector.straggler.min_steps, 8);
        let before = policy.clone();
        for (key, value) in [
            ("impact.warning", 0.1),
            ("impact", 0.1),
            ("impact.warning_ratio", -1.0),
            ("impact.warning_ratio", f64::NAN),
            ("straggler.min_steps", 2.5),
        ] {
            assert!(policy.set(key, value).is_err(), "{key} {value}");
        }
        assert_eq!(policy, before);
    }
}
