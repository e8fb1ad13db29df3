//! One message, whoever gets it.

use std::sync::Arc;

use paceline_health::Provenance;
use paceline_health::fault::Order;
use paceline_health::id::JobId;
use paceline_health::policy::Urgency;
use paceline_health::verdict::Severity;
use serde::{Deserialize, Serialize};

/// Whether it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// It holds.
    Firing,
    /// It is over.
    Resolved,
}

/// One message, whoever gets it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Notice {
    /// The same for all messages of one trouble: `job/finding/subject`.
    pub key: String,
    /// Whether it holds.
    pub status: Status,
    /// How bad it is.
    pub severity: Severity,
    /// How bad it was told to be at most.
    pub worst: Severity,
    /// How bad it was told to be before, if that was something else.
    pub was: Option<Severity>,
    /// The same of where the evidence came from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub was_provenance: Option<Provenance>,
    /// The job.
    pub job: JobId,
    /// The kind of trouble.
    pub finding: Arc<str>,
    /// Whom it is about, in words that stay the same while it holds.
    pub subject: String,
    /// The GPU that it is about, in short.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<Arc<str>>,
    /// The GPUs of the node that have it alike, where one notice speaks for several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<Arc<str>>,
    /// Its node, if it is about one.
    pub node: Option<Arc<str>>,
    /// The finding in a few words.
    pub title: Arc<str>,
    /// Whether it may page; a ticket is at most a warning.
    #[serde(default)]
    pub urgency: Urgency,
    /// Why.
    pub cause: Arc<str>,
    /// What policy asks for.
    pub action: Arc<str>,
    /// Where the evidence came from.
    pub provenance: Provenance,
    /// [`paceline_health::verdict::Verdict::id`].
    pub incident: u64,
    /// How often it was raised.
    pub times: u32,
    /// When it began, in words.
    #[serde(default)]
    pub since: String,
    /// How slow it is and what it costs, in words; empty: nothing was lost so far.
    #[serde(default)]
    pub costs: String,
    /// What it rests on, a phrase each.
    #[serde(default)]
    pub evidence: Vec<String>,
    /// When it was raised, milliseconds since 1970.
    pub raised_ms: u64,
    /// When this was said.
    pub unix_ms: u64,
    /// It is not over with the job: something is wrong with a machine.
    pub unwatched: bool,
    /// The job's policy only observes it.
    #[serde(default)]
    pub observe_only: bool,
    /// What policy asks for, for programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<Order>,
    /// It was told before, and nothing of it has changed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_told_again: bool,
}

impl Notice {
    /// Whom it is about, for people: `8 GPUs on node2`.
    pub fn whom(&self) -> String {
        match (self.gpus.len(), &self.node) {
            (0, _) | (_, None) => self.subject.clone(),
            (gpus, Some(node)) => format!("{gpus} GPUs on {node}"),
        }
    }
}
