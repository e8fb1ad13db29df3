//! Decides on actions for verdicts, without doing any I/O. The caller of [`Guard::poll`] carries the actions out.
//!
//! A verdict with an action becomes an [`Ask`]. The [`Guard`] answers each one with a [`Decision`], which is also
//! written to the audit log as a line. Times are wall-clock milliseconds, because actions must be remembered across
//! restarts, boots and jobs. If a clock is set back, past actions seem more recent, and requests are therefore refused.

mod audit_summary;
mod guard;
mod ledger;
mod rules;

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use self::audit_summary::{ACT, AuditedDecision, Counted, Remedies};
pub use self::guard::{Guard, Saved};
pub use self::ledger::{Asked, Breaker, Deed, Ledger};
pub use self::rules::{FindingRule, Limits, Rules, RulesError, Wanted};
use crate::frame::Provenance;
use crate::id::{JobId, NodeId};
use crate::verdict::{Finding, Severity, Subject, Verdict};

/// Possible responses, from the weakest to the strongest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Response {
    /// The verdict is only reported.
    #[default]
    Log,
    /// The trainers get a signal. The job may write a checkpoint, and continues.
    Signal,
    /// As [`Response::Signal`]. Then the command of the bad node is stopped, and an elastic group continues without
    /// that node.
    LeaveNode,
    /// As [`Response::Signal`]. When the checkpoint has been written or has timed out, the command is stopped.
    CheckpointAndStop,
    /// As [`Response::CheckpointAndStop`]. Then the scheduler is asked to restart the job without the bad node.
    Requeue,
}

impl Response {
    /// All responses, from the weakest to the strongest.
    pub const ALL: [Response; 5] = [
        Response::Log,
        Response::Signal,
        Response::LeaveNode,
        Response::CheckpointAndStop,
        Response::Requeue,
    ];

    /// Returns its name on the command line, in files and in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Response::Log => "log",
            Response::Signal => "signal",
            Response::LeaveNode => "leave-node",
            Response::CheckpointAndStop => "checkpoint-and-stop",
            Response::Requeue => "requeue",
        }
    }

    /// Looks up a response by name.
    pub fn of(name: &str) -> Option<Response> {
        Response::ALL.into_iter().find(|one| one.name() == name)
    }
}

impl fmt::Display for Response {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Identifies one incident across all runs of a job. The number of the journal is included, because incident numbers
/// restart with each journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Incident {
    /// Number of the journal.
    pub run: u64,
    /// [`Verdict::id`].
    pub id: u64,
}

/// A verdict's request for an action.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ask {
    /// The incident.
    pub incident: Incident,
    /// The job to act on.
    pub job: JobId,
    /// The account that its budgets are charged to: the scheduler's number of the job, which a requeue does not change.
    /// If empty, the job's name is used.
    #[serde(default)]
    pub account: Arc<str>,
    /// The finding.
    pub finding: Finding,
    /// Its subject.
    pub subject: Subject,
    /// Its severity.
    pub severity: Severity,
    /// The provenance of the least trusted part of its evidence.
    pub provenance: Provenance,
    /// True if the policy only observes this finding.
    pub observe_only: bool,
    /// The requested response.
    pub response: Response,
    /// True if a checkpoint that is written now is useful.
    pub checkpoint: bool,
}

impl Ask {
    /// Creates the request for a verdict. Returns `None` if the verdict is only reported.
    pub fn of(verdict: &Verdict, run: u64, job: &JobId, account: &Arc<str>, wanted: Wanted) -> Option<Ask> {
        (wanted.response > Response::Log).then(|| Ask {
            incident: Incident { run, id: verdict.id },
            job: job.clone(),
            account: account.clone(),
            finding: verdict.finding,
            subject: verdict.subject.clone(),
            severity: verdict.severity,
            provenance: verdict.provenance,
            observe_only: verdict.observe_only,
            response: wanted.response,
            checkpoint: wanted.checkpoint,
        })
    }

    /// Returns the account whose budgets it uses.
    pub(super) fn account(&self) -> &str {
        account(&self.account, &self.job)
    }

    /// Returns the place of the problem, which is its node if it has one.
    pub fn place(&self) -> Arc<str> {
        match (self.node(), &self.subject) {
            (Some(node), _) => node.0.clone(),
            (None, subject) => Arc::from(subject.to_string()),
        }
    }

    /// Returns the node that a restarted job should avoid.
    pub fn node(&self) -> Option<&NodeId> {
        match &self.subject {
            Subject::Node { node } | Subject::Rank { node, .. } | Subject::Gpu { node, .. } => Some(node),
            Subject::Link { node, peer: None } => Some(node),
            // For a link, it is unknown which end is bad.
            Subject::Link { .. } | Subject::Job { .. } | Subject::Rack { .. } => None,
        }
    }
}

/// Returns the account, or the job's name if it is empty. It is empty if there is no scheduler's number, and in actions
/// that were recorded before accounts existed.
fn account<'a>(account: &'a str, job: &'a JobId) -> &'a str {
    if account.is_empty() { job.as_str() } else { account }
}

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// This is a dry run, because actions are not enabled.
    DryRun,
    /// Some of its evidence is not live.
    NotLive(Provenance),
    /// The policy only observes this finding.
    ObserveOnly,
    /// Its severity is too low for an action.
    Severity(Severity),
    /// The incident has an action already, or one is pending.
    Twice,
    /// The incident cleared before a decision.
    Cleared,
    /// The request was not decided in time.
    Expired,
    /// The process that handled the request restarted, so its progress is unknown.
    Restarted,
    /// The last action on the job was too recent. Contains the milliseconds that are left to wait.
    CoolDown(u64),
    /// The job has had this many actions within the window.
    JobBudget(u32),
    /// All jobs of the site have had this many actions within the window.
    SiteBudget(u32),
    /// The same place has had this many actions for the same finding, and the finding was raised again each time.
    Repeated(u32),
    /// The job would restart on the same nodes, because the finding names no node to exclude.
    NoNode,
    /// The circuit breaker is open because this many places made requests at once. An operator must reset it.
    Breaker(u32),
    /// Another owner acts on the job. Contains the other owner's mark.
    Owned(Arc<str>),
    /// The actions of other jobs are unknown. Contains the reason.
    NoLedger(Arc<str>),
}

impl Reason {
    /// Returns its name in metrics.
    pub fn name(&self) -> &'static str {
        match self {
            Reason::DryRun => "dry-run",
            Reason::NotLive(_) => "not-live",
            Reason::ObserveOnly => "observe-only",
            Reason::Severity(_) => "severity",
            Reason::Twice => "twice",
            Reason::Cleared => "cleared",
            Reason::Expired => "expired",
            Reason::Restarted => "restarted",
            Reason::CoolDown(_) => "cool-down",
            Reason::JobBudget(_) => "job-budget",
            Reason::SiteBudget(_) => "site-budget",
            Reason::Repeated(_) => "repeated",
            Reason::NoNode => "no-node",
            Reason::Breaker(_) => "breaker",
            Reason::Owned(_) => "owned",
            Reason::NoLedger(_) => "no-ledger",
        }
    }
}

/// The decision.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// The request is granted. It is to be carried out now, under the decision's mark.
    Act,
    /// The request is refused for this reason.
    Refuse(Reason),
}

/// The decision on a request. Each decision is a line of the audit log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// When the decision was made, in milliseconds since 1970.
    pub unix_ms: u64,
    /// The outcome.
    pub outcome: Outcome,
    /// The request.
    pub ask: Ask,
    /// The mark that identifies the decision.
    pub mark: Arc<str>,
}

#[cfg(test)]
#[path = "remedy_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "site_tests.rs"]
mod site_tests;
