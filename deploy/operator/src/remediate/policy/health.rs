//! The state of a node, which is stored as the status of its NodeHealth.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use super::incident::{self, Heard, Incident, Report};
use super::rules::Rung;
use crate::timestamp;

/// Limit of the history's entries.
const MOST_HISTORY: usize = 20;
/// Decisions that explain the node's state. The last of them is kept longer than other entries of the history.
const TAKEN: [&str; 7] = [
    "condition",
    "label",
    "taint",
    "cordon",
    "evict",
    "adopted",
    "unreadable",
];
/// Limit of the remembered times at which a node was taken out of service.
const MOST_REMEDIES: usize = 16;

/// The state of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum State {
    /// The node has no findings.
    #[default]
    Healthy,
    /// The node has findings, and no action is taken.
    Suspect,
    /// The node has marks, but still accepts new pods.
    Flagged,
    /// The node accepts no new pods. Running pods stay.
    OutOfService,
    /// The node's pods are being evicted.
    Draining,
    /// All pods have left the node.
    Drained,
    /// Some pods did not leave by the deadline.
    DrainBlocked,
    /// The node's findings have cleared, and the node is being checked.
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
    /// Since when evictions have not been allowed, or `None` if they are allowed. This time is added to `until`.
    #[serde(default, with = "timestamp::maybe", skip_serializing_if = "Option::is_none")]
    pub paused: Option<u64>,
    /// When the next round is due.
    #[serde(default, with = "timestamp")]
    pub next: u64,
    /// Number of pods left after the last round, or `None` if there was no round yet.
    #[serde(default)]
    pub left: Option<u32>,
    /// What blocks the remaining pods, such as the budget's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocked: Option<String>,
    /// True if no pods are left.
    #[serde(default)]
    pub done: bool,
}

impl Drain {
    /// Returns true if the deadline has passed. Time does not count while the drain is paused.
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
    /// The deadline. A preflight that has not passed by then has failed.
    #[serde(with = "timestamp")]
    pub until: u64,
}

/// The return to service.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Recovery {
    /// Number of consecutive checks without problems.
    pub clean: u32,
    /// When the next check is due.
    #[serde(with = "timestamp")]
    pub next: u64,
    /// The running preflight.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preflight: Option<Check>,
    /// Number of preflights that failed.
    pub failures: u32,
    /// Why the last preflight could not run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unrun: Option<String>,
}

/// A decision.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// The decision's number on this node, or 0 if it was not stored. The field is not named `n`, because the schemas
    /// are written in YAML 1.1, where a key `n` means `false`.
    #[serde(default, alias = "n")]
    pub number: u64,
    /// When the decision was made.
    #[serde(default, with = "timestamp")]
    pub at: u64,
    /// The kind of decision, as one word.
    #[serde(default)]
    pub what: String,
    /// The message.
    #[serde(default)]
    pub says: String,
}

/// The state of a node; see the module documentation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Health {
    /// The Node's uid. It is stored because a new Node can have the same name.
    pub node_uid: String,
    /// The last known boot ID.
    pub boot: String,
    /// The largest number of GPUs ever seen. This number of GPUs must pass the preflight.
    pub gpus: u32,
    /// True if GPU slices (MIG) were seen, which a preflight cannot measure.
    pub sliced: bool,
    /// True if pods on the node had devices by claims (DRA), which the node's capacity does not show.
    pub claims: bool,
    /// The state.
    pub state: State,
    /// The reason of the state.
    pub reason: String,
    /// Since when the node has been in this state.
    #[serde(with = "timestamp")]
    pub since: u64,
    /// The action level that was reached.
    pub rung: Rung,
    /// The action level that would have been reached in act mode.
    pub shadow: Rung,
    /// The ID of the operator's cordon.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mark: Option<String>,
    /// True if the cordon was seen on the node together with the operator's annotation.
    pub cordoned: bool,
    /// True if only an administrator can return the node to service.
    pub held: bool,
    /// The administrator's repair annotation that was processed last. It is kept while the annotation is on the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repaired: Option<String>,
    /// Jobs whose findings took the node out of service.
    pub jobs: Vec<String>,
    /// The reported incidents.
    pub incidents: BTreeMap<String, Incident>,
    /// Number of reports that were dropped because more important ones filled the limit.
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
    /// The times at which the node was taken out of service, in milliseconds since 1970.
    pub remedies: Vec<u64>,
    /// The reason of the last refusal. It is kept so that a refusal is recorded only once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// Decisions, oldest first.
    pub history: VecDeque<Entry>,
    /// The total number of decisions.
    pub decisions: u64,
}

impl Health {
    /// Returns the state of a node without reports.
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

    /// Returns the incidents that are not closed.
    pub fn open(&self) -> impl Iterator<Item = &Incident> {
        self.incidents.values().filter(|incident| incident.is_open())
    }

    /// Returns true if the node has GPUs that its capacity does not show. This is judged by pods that ran there and by
    /// the node's reports.
    pub fn has_hidden_gpus(&self) -> bool {
        self.claims
            || self
                .incidents
                .values()
                .any(|incident| incident.subject.starts_with("gpu "))
    }

    /// Returns the most severe open incident. Incidents that took the node out of service come before others. Among
    /// equals, the last one is returned.
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

    /// Records that the node is taken out of service.
    pub fn remedied(&mut self, now: u64) {
        self.remedies.push(now);
        if self.remedies.len() > MOST_REMEDIES {
            self.remedies.remove(0);
        }
    }

    /// Returns how often the node was taken out of service within the window.
    pub fn remedies_within(&self, now: u64, window_ms: u64) -> u32 {
        let within = self
            .remedies
            .iter()
            .filter(|at| now.saturating_sub(**at) < window_ms);
        u32::try_from(within.count()).unwrap_or(u32::MAX)
    }

    /// Returns true if there is nothing to remember about the node.
    pub fn is_blank(&self) -> bool {
        self.incidents.is_empty() && self.history.is_empty() && self.rung == Rung::None
    }
}
