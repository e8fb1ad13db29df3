//! All that is known of a node: the status of its NodeHealth.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use super::incident::{self, Heard, Incident, Report};
use super::rules::Rung;
use crate::timestamp;

/// Entries of the history that are kept.
const MOST_HISTORY: usize = 20;
/// The decisions why a node is where it is: the last of them outlives what is noted later.
const TAKEN: [&str; 7] = [
    "condition",
    "label",
    "taint",
    "cordon",
    "evict",
    "adopted",
    "unreadable",
];
/// Times out of service that are remembered.
const MOST_REMEDIES: usize = 16;

/// Where a node stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum State {
    /// Nothing speaks against it.
    #[default]
    Healthy,
    /// Something was heard, and nothing is done.
    Suspect,
    /// It bears marks, and takes new pods.
    Flagged,
    /// It takes no new pods; those that run, run.
    OutOfService,
    /// Its pods are asked to leave.
    Draining,
    /// They have left.
    Drained,
    /// Some did not leave in time.
    DrainBlocked,
    /// Nothing speaks against it any more; it is checked.
    Recovering,
    /// It is left to people.
    Held,
    /// The Node is no more.
    Gone,
}

/// How pods leave.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Drain {
    /// Until then they are asked.
    #[serde(with = "timestamp")]
    pub until: u64,
    /// Since when nobody may be asked; that time is added to `until`. `None`: they may.
    #[serde(default, with = "timestamp::maybe", skip_serializing_if = "Option::is_none")]
    pub paused: Option<u64>,
    /// The next round.
    #[serde(default, with = "timestamp")]
    pub next: u64,
    /// Pods that were there when it was last looked; `None`: not looked yet.
    #[serde(default)]
    pub left: Option<u32>,
    /// What holds them, such as the budget's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocked: Option<String>,
    /// Nobody is left.
    #[serde(default)]
    pub done: bool,
}

impl Drain {
    /// Whether its time is over; while it is paused none passes.
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
    /// It has failed when it has not passed by then.
    #[serde(with = "timestamp")]
    pub until: u64,
}

/// How trust returns.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Recovery {
    /// Checks in a row that found nothing.
    pub clean: u32,
    /// The next one.
    #[serde(with = "timestamp")]
    pub next: u64,
    /// The preflight that runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preflight: Option<Check>,
    /// Preflights that failed.
    pub failures: u32,
    /// Why the last one could not run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unrun: Option<String>,
}

/// What was decided.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Its number on this node; 0: it was not kept. A key `n` would be `false` to YAML 1.1, in which schemas are written.
    #[serde(default, alias = "n")]
    pub number: u64,
    /// When.
    #[serde(default, with = "timestamp")]
    pub at: u64,
    /// Which kind: one word.
    #[serde(default)]
    pub what: String,
    /// In words.
    #[serde(default)]
    pub says: String,
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Health {
    /// Which Node: one of the same name that was made later is another.
    pub node_uid: String,
    /// Its boot, as it was last seen.
    pub boot: String,
    /// The most GPUs that it was seen with: as many must pass the preflight.
    pub gpus: u32,
    /// It was seen with slices of GPUs (MIG), which a preflight cannot measure.
    pub sliced: bool,
    /// Pods on it had devices by claims (DRA), of which its capacity says nothing.
    pub claims: bool,
    /// Where it stands.
    pub state: State,
    /// Why.
    pub reason: String,
    /// Since when it stands there.
    #[serde(with = "timestamp")]
    pub since: u64,
    /// What it was taken as far as.
    pub rung: Rung,
    /// What it would have been, were it meant.
    pub shadow: Rung,
    /// By what our cordon is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mark: Option<String>,
    /// The cordon was seen on the node with our mark.
    pub cordoned: bool,
    /// It comes back by a person's word only.
    pub held: bool,
    /// A person's word that was heeded, as long as it stands on the node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repaired: Option<String>,
    /// Jobs for whose sake it was taken out of service.
    pub jobs: Vec<String>,
    /// What was heard.
    pub incidents: BTreeMap<String, Incident>,
    /// Reports for which there was no room beside what counts more.
    pub unkept: u64,
    /// How pods leave.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain: Option<Drain>,
    /// What keeps us from doing what was decided.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hindered: Option<String>,
    /// How trust returns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recovery: Option<Recovery>,
    /// When it was taken out of service, milliseconds since 1970.
    pub remedies: Vec<u64>,
    /// What was last refused; it is said once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// What was decided, oldest first.
    pub history: VecDeque<Entry>,
    /// Decisions in all.
    pub decisions: u64,
}

impl Health {
    /// Of a node of which nothing was heard.
    pub fn of(node_uid: &str, boot: &str, now: u64) -> Health {
        Health {
            node_uid: node_uid.to_owned(),
            boot: boot.to_owned(),
            since: now,
            ..Health::default()
        }
    }

    /// Takes a report in.
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

    /// What counts.
    pub fn open(&self) -> impl Iterator<Item = &Incident> {
        self.incidents.values().filter(|incident| incident.is_open())
    }

    /// Whether it has GPUs, as far as it can be told from who ran there, and from what was said of it.
    pub fn has_hidden_gpus(&self) -> bool {
        self.claims
            || self
                .incidents
                .values()
                .any(|incident| incident.subject.starts_with("gpu "))
    }

    /// The worst of what it is out for, else of all; of several the last.
    pub fn worst(&self) -> Option<&Incident> {
        self.open()
            .max_by_key(|incident| (incident.ripe, incident.severity))
    }

    /// Something was decided.
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

    /// It stands there now.
    pub fn stand(&mut self, now: u64, state: State, reason: impl Into<String>) {
        if self.state != state {
            self.since = now;
        }
        self.state = state;
        self.reason = reason.into();
    }

    /// It is taken out of service.
    pub fn remedied(&mut self, now: u64) {
        self.remedies.push(now);
        if self.remedies.len() > MOST_REMEDIES {
            self.remedies.remove(0);
        }
    }

    /// How often it was taken out within the window.
    pub fn remedies_within(&self, now: u64, window_ms: u64) -> u32 {
        let within = self
            .remedies
            .iter()
            .filter(|at| now.saturating_sub(**at) < window_ms);
        u32::try_from(within.count()).unwrap_or(u32::MAX)
    }

    /// Whether there is anything to remember of it.
    pub fn is_blank(&self) -> bool {
        self.incidents.is_empty() && self.history.is_empty() && self.rung == Rung::None
    }
}
