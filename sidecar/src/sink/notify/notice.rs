//! One message, independent of its receiver.

use std::sync::Arc;

use paceline_health::Provenance;
use paceline_health::fault::Order;
use paceline_health::id::JobId;
use paceline_health::policy::Urgency;
use paceline_health::verdict::Severity;
use serde::{Deserialize, Serialize};

/// Whether the incident is active.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// The incident is active.
    Firing,
    /// The incident is resolved.
    Resolved,
}

/// One message, independent of its receiver.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Notice {
    /// The key `job/finding/subject`, which is the same for all messages of one incident.
    pub key: String,
    /// Whether the incident is active.
    pub status: Status,
    /// Current severity.
    pub severity: Severity,
    /// Highest reported severity.
    pub worst: Severity,
    /// Previously reported severity, if different.
    pub was: Option<Severity>,
    /// Previously reported provenance, if different.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub was_provenance: Option<Provenance>,
    /// The job.
    pub job: JobId,
    /// The finding.
    pub finding: Arc<str>,
    /// The subject, in words that stay the same while the incident is active.
    pub subject: String,
    /// The affected GPU, shortened.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<Arc<str>>,
    /// The GPUs of the node with the same finding, if one notice covers several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<Arc<str>>,
    /// The node, if the notice is about one.
    pub node: Option<Arc<str>>,
    /// The finding in a few words.
    pub title: Arc<str>,
    /// Whether the notice may page. A ticket is at most a warning.
    #[serde(default)]
    pub urgency: Urgency,
    /// The cause.
    pub cause: Arc<str>,
    /// The action according to policy.
    pub action: Arc<str>,
    /// Provenance of the evidence.
    pub provenance: Provenance,
    /// The incident's number ([`paceline_health::verdict::Verdict::id`]).
    pub incident: u64,
    /// How often the incident was raised.
    pub times: u32,
    /// When the incident began, in words.
    #[serde(default)]
    pub since: String,
    /// Slowdown and cost, in words. Empty if nothing was lost so far.
    #[serde(default)]
    pub costs: String,
    /// Evidence, one phrase each.
    #[serde(default)]
    pub evidence: Vec<String>,
    /// When the incident was raised, milliseconds since 1970.
    pub raised_ms: u64,
    /// When this message was made, milliseconds since 1970.
    pub unix_ms: u64,
    /// True if the incident does not end with the job, because a machine has a problem.
    pub unwatched: bool,
    /// The job's policy only observes this finding.
    #[serde(default)]
    pub observe_only: bool,
    /// The action according to policy, in a form for programs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<Order>,
    /// True if this message repeats an earlier one without changes.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_told_again: bool,
}

impl Notice {
    /// Returns the subject as text, such as `8 GPUs on node2`.
    pub fn whom(&self) -> String {
        match (self.gpus.len(), &self.node) {
            (0, _) | (_, None) => self.subject.clone(),
            (gpus, Some(node)) => format!("{gpus} GPUs on {node}"),
        }
    }
}
