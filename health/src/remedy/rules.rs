//! Limits, and the response for each finding, from `policy/remedies.toml` and the user's overrides.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Response;
use crate::frame::Provenance;
use crate::verdict::{Finding, Severity};

const TABLE: &str = include_str!("../../policy/remedies.toml");

/// Why rules are invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RulesError {
    /// There is no such response.
    #[error("`{0}` is not one of log, signal, leave-node, checkpoint-and-stop, requeue")]
    Response(String),
    /// There is no such finding.
    #[error("`{0}` is not a finding")]
    Finding(String),
    /// There is no such limit.
    #[error("`{0}` is not a limit: must be one of {1}")]
    Limit(String, String),
    /// The value is invalid.
    #[error("{0} = {1}: must be {2}")]
    Value(String, String, &'static str),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Table {
    guard: Limits,
    finding: BTreeMap<Finding, FindingRule>,
}

/// The strongest response that the table allows for a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FindingRule {
    /// The response.
    pub response: Response,
    /// True if a checkpoint that is written after the finding is useful.
    #[serde(default = "yes")]
    pub checkpoint: bool,
    /// Minimum hold time of its requests, seconds.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub hold_s: u64,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // required by serde
fn is_zero(seconds: &u64) -> bool {
    *seconds == 0
}

fn yes() -> bool {
    true
}

/// The response that the rules want for a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The response.
    pub response: Response,
    /// True if a checkpoint should be written first.
    pub checkpoint: bool,
}

/// The section `[guard]` of `policy/remedies.toml`, which explains each value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct Limits {
    pub hold_s: u64,
    pub expiry_s: u64,
    pub cool_down_s: u64,
    pub window_s: u64,
    pub per_job: u32,
    pub per_site: u32,
    pub per_place: u32,
    pub breaker_window_s: u64,
    pub breaker_job_places: u32,
    pub breaker_site_places: u32,
    pub mark_s: u64,
    pub severity: Severity,
}

/// The active rules.
#[derive(Clone, Debug, PartialEq)]
pub struct Rules {
    /// True if actions are carried out. Otherwise they are only decided (dry run).
    pub act: bool,
    /// Other kinds of evidence that are treated as live, for rehearsals.
    pub rehearsal: Vec<Provenance>,
    /// True if a requeue is useless unless it excludes a node.
    pub requeue_needs_node: bool,
    /// The owner that is named in marks.
    pub owner: Arc<str>,
    /// The limits.
    pub limits: Limits,
    table: BTreeMap<Finding, FindingRule>,
    /// The strongest response that is enabled, even if the table allows a stronger one.
    ceiling: Response,
    /// The responses that the user has set for single findings.
    asked: BTreeMap<Finding, Response>,
}

impl Default for Rules {
    /// Returns the table as shipped, with no response enabled.
    fn default() -> Rules {
        // The text is compiled in and covered by a test, so parsing it cannot fail on a user's machine.
        let table: Table = toml::from_str(TABLE).expect("policy/remedies.toml is tested");
        Rules {
            act: false,
            rehearsal: Vec::new(),
            requeue_needs_node: false,
            owner: Arc::from("paceline"),
            limits: table.guard,
            table: table.finding,
            ceiling: Response::Log,
            asked: BTreeMap::new(),
        }
    }
}

impl Rules {
    /// Enables responses. A word such as `requeue` enables, for every finding, the response that the table allows, up
    /// to the named one. A word such as `straggler=signal` sets exactly this response for one finding. Several words
    /// are separated by commas.
    ///
    /// # Errors
    /// [`RulesError`]
    pub fn on_fault(&mut self, words: &str) -> Result<(), RulesError> {
        let response = |word: &str| Response::of(word).ok_or_else(|| RulesError::Response(word.to_owned()));
        for word in words.split(',').map(str::trim) {
            match word.split_once('=') {
                None => self.ceiling = response(word)?,
                Some((name, word)) => {
                    let finding = Finding::ALL.iter().find(|finding| finding.name() == name);
                    let finding = finding.ok_or_else(|| RulesError::Finding(name.to_owned()))?;
                    self.asked.insert(*finding, response(word)?);
                }
            }
        }
        Ok(())
    }

    /// Overrides one of the limits, for example `hold_s=0`.
    ///
    /// # Errors
    /// [`RulesError`]
    pub fn limit(&mut self, change: &str) -> Result<(), RulesError> {
        let (key, text) = change.split_once('=').unwrap_or((change, ""));
        let mut table = toml::Table::try_from(&self.limits).unwrap_or_default();
        let wanted = match table.get(key) {
            None => {
                let known: Vec<&str> = table.keys().map(String::as_str).collect();
                return Err(RulesError::Limit(key.to_owned(), known.join(", ")));
            }
            Some(toml::Value::String(_)) => "info, warning or critical",
            Some(_) => "a whole number",
        };
        let value = text.parse::<u32>().map_or_else(
            |_| toml::Value::from(text),
            |number| toml::Value::from(i64::from(number)),
        );
        table.insert(key.to_owned(), value);
        let wrong = |_| RulesError::Value(key.to_owned(), text.to_owned(), wanted);
        self.limits = table.try_into().map_err(wrong)?;
        Ok(())
    }

    /// Returns the response that the rules want for a finding.
    pub fn wanted(&self, finding: Finding) -> Wanted {
        let row = self.table.get(&finding);
        let by_table = row.map_or(Response::Log, |row| row.response.min(self.ceiling));
        Wanted {
            response: self.asked.get(&finding).copied().unwrap_or(by_table),
            checkpoint: row.is_none_or(|row| row.checkpoint),
        }
    }

    /// Returns the hold time of requests for `finding`, in milliseconds.
    pub fn hold_ms(&self, finding: Finding) -> u64 {
        let own_s = self.table.get(&finding).map_or(0, |row| row.hold_s);
        self.limits.hold_s.max(own_s).saturating_mul(1000)
    }

    /// Returns true if any response is enabled.
    pub fn asks_for_anything(&self) -> bool {
        self.ceiling > Response::Log || self.asked.values().any(|response| *response > Response::Log)
    }

    /// Returns true if this kind of evidence may cause actions.
    pub fn trusts(&self, provenance: Provenance) -> bool {
        provenance == Provenance::Live || self.rehearsal.contains(&provenance)
    }
}
