//! The state of a node: the status of its NodeHealth.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use super::incident::{self, Heard, Incident, Report};
use super::rules::Rung;
use crate::timestamp;

/// Limit of the history's entries.
const MOST_HISTORY: usize = 20;
/// Decisions that explain the node's state: the last of them is kept longer than other entries.
const TAKEN: [&str; 7] = [
    "condition",
    "label",
    "taint",
    "cordon",
    "evict",
    "adopted",
    "unreadable",
];
/// Limit of remembered times out of service.
const MOST_REMEDIES: usize = 16;

/// The state of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum State {
    /// It has no findings.
    #[default]
    Healthy,
    /// It has findings, and no action is taken.
    Suspect,
    /// It has marks, and accepts new pods.
    Flagged,
    /// It accepts no new pods; running pods stay.
    OutOfService,
    /// Its pods are being evicted.
    Draining,
    /// All pods have left.
    Drained,
    /// Some pods did not leave by the deadline.
    DrainBlocked,
    /// Its findings have cleared; it is being checked.
    Recovering,
    /// An administrator must decide.
    Held,
    /// The Node no longer exists.
    Gone,
}

/// The eviction of pods.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Drain {
    /// The deadline.
    #[serde(with = "timestamp")]
    pub until: u64,
    /// Since when evictions are not allowed; that time is added to `until`. `None`: they are allowed.
    #[serde(default, with = "timestamp::maybe", skip_serializing_if = "Option::is_none")]
    pub paused: Option<u64>,
    /// When the next round is due.
    #[serde(default, with = "timestamp")]
    pub next: u64,
    /// Pods left at the last round; `None`: no round yet.
    #[serde(default)]
    pub left: Option<u32>,
    /// What blocks them, such as the budget's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocked: Option<String>,
    /// No pods are left.
    #[serde(default)]
    pub done: bool,
}

impl Drain {
    /// Whether the deadline has passed; no time passes while it is paused.
    pub fn is_over(&self, now: u64) -> bool {
        self.paused.unwrap_or(now) >= self.until
    }
}

/// A preflight Job on the node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Check {
    /// The Job's name.
    pub name: String,
    /// Deadline; a preflight that has not passed by then has failed.
    #[serde(with = "timestamp")]
    pub until: u64,
}

/// The return to service.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Recovery {
    /// Consecutive checks without problems.
    pub clean: u32,
    /// When the next check is due.
    #[serde(with = "timestamp")]
    pub next: u64,
    /// The running preflight.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preflight: Option<Check>,
    /// Preflights that failed.
    pub failures: u32,
    /// Why the last preflight could not run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unrun: Option<String>,
}

/// A decision.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Its number on this node; 0: it was not stored. A key `n` would be `false` in YAML 1.1, in which schemas are
    /// written.
    #[serde(default, alias = "n")]
    pub number: u64,
    /// When.
    #[serde(default, with = "timestamp")]
    pub at: u64,
    /// The kind: one word.
    #[serde(default)]
    pub what: String,
    /// The message.
    #[serde(default)]
    pub says: String,
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Health {
    /// The Node's uid: a new Node can have the same name.
    pub node_uid: String,
    /// The last known boot ID.
    pub boot: String,
    /// The largest number of GPUs ever seen: as many must pass the preflight.
    pub gpus: u32,
    /// GPU slices (MIG) were seen, which a preflight cannot measure.
    pub sliced: bool,
    /// Pods on it had devices by claims (DRA), which its capacity does not show.
    pub claims: bool,
    /// The state.
    pub state: State,
    /// The reason of the state.
    pub reason: String,
    /// Since when it is in this state.
    #[serde(with = "timestamp")]
    pub since: u64,
    /// The rung that was reached.
    pub rung: Rung,
    /// The rung that would have been reached in act mode.
    pub shadow: Rung,
    /// The ID of the operator's cordon.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mark: Option<String>,
    /// The cordon was seen on the node with the operator's mark.
    pub cordoned: bool,
    /// Only an administrator returns it to service.
    pub held: bool,
    /// The administrator's repair annotation that was processed, while it is on the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repaired: Option<String>,
    /// Jobs whose findings took it out of service.
    pub jobs: Vec<String>,
    /// The reported incidents.
    pub incidents: BTreeMap<String, Incident>,
    /// Reports that were dropped because more important ones filled the limit.
    pub unkept: u64,
    /// The eviction of pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain: Option<Drain>,
    /// What keeps the operator from applying a decision.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hindered: Option<String>,
    /// The return to service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recovery: Option<Recovery>,
    /// When it was taken out of service, milliseconds since 1970.
    pub remedies: Vec<u64>,
    /// The last refusal; it is noted once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// Decisions, oldest first.
    pub history: VecDeque<Entry>,
    /// The total number of decisions.
    pub decisions: u64,
}

impl Health {
    /// The state of a node without reports.
    pub fn of(node_uid: &str, boot: &str, now: u64) -> Health {
        Health {
            node_uid: node_uid.to_owned(),
            boot: boot.to_owned(),
            since: now,
            ..Health::default()
        }
    }

    /// Processes a report.
    pub fn hear(&mut self, report: Report, now: u64) {
        let (words, job) = (
            format!("{} of {}", report.finding, report.subject),
            report.job.clone(),
        );
        let (holds, key) = (report.holds, report.key.clone());
        let heard = incident::hear(&mut self.incidents, report, now, &self.boot);
        if let Heard::Unkept { .. } = heard {
            if self.unkept == 0 {
                let says = format!(
                    "it has more findings than the limit: the least severe are dropped, such as {words} (job {job})"
                );
                self.note(now, "unkept", says);
            }
            self.unkept = self.unkept.saturating_add(1);
        }
        if !matches!(heard, Heard::News | Heard::Unkept { is_other: true }) {
            return;
        }
        let times = self.incidents.get(&key).map_or(1, |incident| incident.times);
        let again = if times > 1 {
            format!(", for the {times}. time")
        } else {
            String::new()
        };
        let verb = if holds { "raised" } else { "resolved" };
        self.note(now, verb, format!("{words} (job {job}){again}"));
    }

    /// Incidents that are not closed.
    pub fn open(&self) -> impl Iterator<Item = &Incident> {
        self.incidents.values().filter(|incident| incident.is_open())
    }

    /// Whether it has GPUs that its capacity does not show, judged by pods that ran there and by its reports.
    pub fn has_hidden_gpus(&self) -> bool {
        self.claims
            || self
                .incidents
                .values()
                .any(|incident| incident.subject.starts_with("gpu "))
    }

    /// The most severe incident of those that took it out of service, otherwise of all; the last one of equals.
    pub fn worst(&self) -> Option<&Incident> {
        self.open()
            .max_by_key(|incident| (incident.ripe, incident.severity))
    }

    /// Adds a decision to the history.
    pub fn note(&mut self, now: u64, what: &str, says: impl Into<String>) {
        self.decisions += 1;
        self.history.push_back(Entry {
            number: self.decisions,
            at: now,
            what: what.to_owned(),
            says: says.into(),
        });
        if self.history.len() > MOST_HISTORY {
            let is_why = |entry: &Entry| self.rung > Rung::None && TAKEN.contains(&entry.what.as_str());
            let why = self.history.iter().rposition(is_why);
            self.history.remove(usize::from(why == Some(0)));
        }
    }

    /// Sets the state.
    pub fn stand(&mut self, now: u64, state: State, reason: impl Into<String>) {
        if self.state != state {
            self.since = now;
        }
        self.state = state;
        self.reason = reason.into();
    }

    /// Records that it is taken out of service.
    pub fn remedied(&mut self, now: u64) {
        self.remedies.push(now);
        if self.remedies.len() > MOST_REMEDIES {
            self.remedies.remove(0);
        }
    }

    /// How often it was taken out of service within the window.
    pub fn remedies_within(&self, now: u64, window_ms: u64) -> u32 {
        let within = self
            .remedies
            .iter()
            .filter(|at| now.saturating_sub(**at) < window_ms);
        u32::try_from(within.count()).unwrap_or(u32::MAX)
    }

    /// Whether there is nothing to remember about it.
    pub fn is_blank(&self) -> bool {
        self.incidents.is_empty() && self.history.is_empty() && self.rung == Rung::None
    }
}
