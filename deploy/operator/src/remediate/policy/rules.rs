//! How far each finding goes, and the limits. The values come from `policy/remediate.toml` and are overridden by a
//! user's file.

use std::collections::BTreeMap;

use paceline_health::verdict::{Finding, Severity};
use serde::{Deserialize, Serialize};

const TABLE: &str = include_str!("../../../policy/remediate.toml");

/// The longest meaningful time. With this limit, sums of times stay within a u64.
const LONGEST_S: u64 = 31_536_000;

/// The mode of operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Reports are recorded, and no decisions are made.
    Observe,
    /// Decisions are made and logged, but not applied.
    Shadow,
    /// Decisions are applied.
    Act,
}

/// Action levels for a node. Each level includes the previous ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Rung {
    /// No action.
    #[default]
    None,
    /// Write an Event.
    Event,
    /// Set a condition of the node.
    Condition,
    /// Set a label.
    Label,
    /// Set a taint (NoSchedule). From this level on, the node is out of service for new pods.
    Taint,
    /// Cordon the node.
    Cordon,
    /// Evict the node's pods.
    Evict,
}

impl Rung {
    /// Returns true if the node accepts no new pods at this level.
    pub fn is_out(self) -> bool {
        self >= Rung::Taint
    }

    /// Returns the level's name in the policy table.
    pub fn word(self) -> &'static str {
        match self {
            Rung::None => "none",
            Rung::Event => "event",
            Rung::Condition => "condition",
            Rung::Label => "label",
            Rung::Taint => "taint",
            Rung::Cordon => "cordon",
            Rung::Evict => "evict",
        }
    }
}

/// The pods that a drain evicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pods {
    /// Pods with devices.
    Gpu,
    /// All pods that kubectl drain would evict.
    All,
}

/// Whether a node must pass a preflight before it returns to service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Preflight {
    /// The node must pass a preflight.
    Required,
    /// Checks without problems are enough.
    None,
}

/// The section `[guard]` of the policy table, which explains each value.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct Guard {
    pub debounce_s: u64,
    pub fresh_s: u64,
    pub expiry_s: u64,
    pub cluster_percent: u32,
    pub job_percent: u32,
    pub most_out: u32,
    pub breaker_percent: u32,
    pub breaker_least: u32,
    pub breaker_window_s: u64,
}

/// The section `[drain]` of the policy table.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct Drain {
    pub deadline_s: u64,
    pub retry_s: u64,
    pub pods: Pods,
}

/// The section `[recovery]` of the policy table.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct Recovery {
    pub checks: u32,
    pub check_every_s: u64,
    pub preflight: Preflight,
    pub preflight_deadline_s: u64,
    pub preflight_failures: u32,
    pub escalate_after: u32,
    pub escalate_window_s: u64,
    pub problem_conditions: Vec<String>,
}

/// The rule for one finding.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FindingRule {
    /// The highest action level that the finding can reach.
    pub rung: Rung,
    /// The highest mode in which the finding is handled.
    #[serde(default = "act")]
    pub mode: Mode,
    /// The minimum severity. Less severe reports are only recorded.
    #[serde(default = "critical")]
    pub severity: Severity,
    /// The finding's own debounce time, which replaces the guard's.
    pub debounce_s: Option<u64>,
}

fn act() -> Mode {
    Mode::Act
}

fn critical() -> Severity {
    Severity::Critical
}

/// The whole policy.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rules {
    /// The highest mode that applies to any finding.
    pub mode: Mode,
    /// The limits.
    pub guard: Guard,
    /// Evictions.
    pub drain: Drain,
    /// The return to service.
    pub recovery: Recovery,
    finding: BTreeMap<Finding, FindingRule>,
}

/// Why a policy is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RulesError {
    /// The text is not TOML, or it has an unknown key.
    #[error("{0}")]
    Text(String),
    /// A value is invalid.
    #[error("{0} must be {1}")]
    Value(String, &'static str),
}

impl Rules {
    /// Returns the built-in policy, with the values in `text` replacing its own.
    ///
    /// # Errors
    /// Returns [`RulesError`] if the text or the resulting policy is invalid.
    pub fn with(text: &str) -> Result<Rules, RulesError> {
        let parse = |text: &str| text.parse::<toml::Table>();
        let error = |error: toml::de::Error| RulesError::Text(error.to_string());
        let mut table = parse(TABLE).map_err(error)?;
        lay_over(&mut table, parse(text).map_err(error)?);
        let rules: Rules = table.try_into().map_err(error)?;
        rules.check()?;
        Ok(rules)
    }

    fn check(&self) -> Result<(), RulesError> {
        let percents = [
            ("guard.cluster_percent", self.guard.cluster_percent),
            ("guard.job_percent", self.guard.job_percent),
            ("guard.breaker_percent", self.guard.breaker_percent),
        ];
        for (name, percent) in percents {
            if !(1..=100).contains(&percent) {
                return Err(RulesError::Value(name.to_owned(), "1 to 100"));
            }
        }
        let positive = [
            ("guard.breaker_least", u64::from(self.guard.breaker_least)),
            ("guard.fresh_s", self.guard.fresh_s),
            ("recovery.checks", u64::from(self.recovery.checks)),
            ("recovery.escalate_after", u64::from(self.recovery.escalate_after)),
            ("drain.deadline_s", self.drain.deadline_s),
        ];
        for (name, value) in positive {
            if value == 0 {
                return Err(RulesError::Value(name.to_owned(), "at least 1"));
            }
        }
        let long = self.times().find(|(_, seconds)| *seconds > LONGEST_S);
        long.map_or(Ok(()), |(name, _)| {
            Err(RulesError::Value(name, "at most 31536000 (a year)"))
        })
    }

    /// Returns all values that are times in seconds.
    fn times(&self) -> impl Iterator<Item = (String, u64)> {
        let (guard, drain, recovery) = (&self.guard, &self.drain, &self.recovery);
        let named = [
            ("guard.debounce_s", guard.debounce_s),
            ("guard.fresh_s", guard.fresh_s),
            ("guard.expiry_s", guard.expiry_s),
            ("guard.breaker_window_s", guard.breaker_window_s),
            ("drain.deadline_s", drain.deadline_s),
            ("drain.retry_s", drain.retry_s),
            ("recovery.check_every_s", recovery.check_every_s),
            ("recovery.preflight_deadline_s", recovery.preflight_deadline_s),
            ("recovery.escalate_window_s", recovery.escalate_window_s),
        ];
        let own = self
            .finding
            .iter()
            .filter_map(|(finding, rule)| Some((format!("finding.{finding}.debounce_s"), rule.debounce_s?)));
        named
            .map(|(name, seconds)| (name.to_owned(), seconds))
            .into_iter()
            .chain(own)
    }

    /// Returns the rule for a finding, or `None` if the finding is only recorded.
    pub fn finding(&self, finding: Finding) -> Option<&FindingRule> {
        self.finding.get(&finding)
    }

    /// Returns the effective mode of a finding.
    pub fn mode_of(&self, rule: &FindingRule) -> Mode {
        self.mode.min(rule.mode)
    }

    /// Returns the debounce time of a finding, in milliseconds.
    pub fn debounce_ms(&self, rule: &FindingRule) -> u64 {
        rule.debounce_s.unwrap_or(self.guard.debounce_s) * 1000
    }

    /// Returns how many of `all` nodes may be out of service under this percentage. The result is at least 1.
    pub fn share(percent: u32, all: u32) -> u32 {
        u32::try_from(u64::from(all) * u64::from(percent) / 100)
            .unwrap_or(u32::MAX)
            .max(1)
    }
}

fn lay_over(below: &mut toml::Table, above: toml::Table) {
    for (key, value) in above {
        match (below.get_mut(&key), value) {
            (Some(toml::Value::Table(below)), toml::Value::Table(above)) => lay_over(below, above),
            (_, value) => {
                below.insert(key, value);
            }
        }
    }
}
