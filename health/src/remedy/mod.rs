//! Decides on actions for verdicts: pure. The caller of [`Guard::poll`] carries them out.
//!
//! A verdict with an action becomes an [`Ask`]; the [`Guard`] answers each with a [`Decision`], which is also its line
//! in the audit log. Times are wall-clock milliseconds, because actions must be remembered across restarts, boots and
//! jobs; a clock that is set back makes everything more recent, and so refuses.

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

/// Possible responses, from least to most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Response {
    /// The verdict is only reported.
    #[default]
    Log,
    /// The trainers get a signal: the job may write a checkpoint, and continues.
    Signal,
    /// The same; then the command of the bad node is stopped, and an elastic group continues without that node.
    LeaveNode,
    /// The same; when the checkpoint is written, or times out, the command is stopped.
    CheckpointAndStop,
    /// The same; then the scheduler is asked to restart the job without the bad node.
    Requeue,
}

impl Response {
    /// All responses, from least to most.
    pub const ALL: [Response; 5] = [
        Response::Log,
        Response::Signal,
        Response::LeaveNode,
        Response::CheckpointAndStop,
        Response::Requeue,
    ];

    /// Its name on the command line, in files and in metrics.
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

/// One incident across all runs of a job: numbers restart with each journal.
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
    /// The account of its budgets: the scheduler's number of the job, which survives a requeue. Empty: the job's name.
    #[serde(default)]
    pub account: Arc<str>,
    /// The finding.
    pub finding: Finding,
    /// Its subject.
    pub subject: Subject,
    /// Its severity.
    pub severity: Severity,
    /// The least trusted of its evidence.
    pub provenance: Provenance,
    /// Policy only observes this finding.
    pub observe_only: bool,
    /// The requested response.
    pub response: Response,
    /// Whether a checkpoint that is written now is useful.
    pub checkpoint: bool,
}

impl Ask {
    /// The request for a verdict; `None`: it is only reported.
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

    /// The account whose budgets it uses.
    pub(super) fn account(&self) -> &str {
        account(&self.account, &self.job)
    }

    /// The place of the trouble: its node, if it has one.
    pub fn place(&self) -> Arc<str> {
        match (self.node(), &self.subject) {
            (Some(node), _) => node.0.clone(),
            (None, subject) => Arc::from(subject.to_string()),
        }
    }

    /// The node that a restarted job should avoid.
    pub fn node(&self) -> Option<&NodeId> {
        match &self.subject {
            Subject::Node { node } | Subject::Rank { node, .. } | Subject::Gpu { node, .. } => Some(node),
            Subject::Link { node, peer: None } => Some(node),
            // Which end is bad is unknown.
            Subject::Link { .. } | Subject::Job { .. } | Subject::Rack { .. } => None,
        }
    }
}

/// The job's name is used without a scheduler's number, and for actions recorded before accounts existed.
fn account<'a>(account: &'a str, job: &'a JobId) -> &'a str {
    if account.is_empty() { job.as_str() } else { account }
}

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// Dry run: actions are not enabled.
    DryRun,
    /// Some of its evidence is not live.
    NotLive(Provenance),
    /// Policy only observes this finding.
    ObserveOnly,
    /// Its severity is too low for an action.
    Severity(Severity),
    /// The incident has an action already, or one is pending.
    Twice,
    /// It cleared before a decision.
    Cleared,
    /// It was not decided in time.
    Expired,
    /// The process that handled it restarted; its progress is unknown.
    Restarted,
    /// The last action on the job was a short while ago; milliseconds that are left.
    CoolDown(u64),
    /// The job has had this many actions within the window.
    JobBudget(u32),
    /// All jobs of the site have had this many actions within the window.
    SiteBudget(u32),
    /// The same place has had this many actions for the same finding, and it came back.
    Repeated(u32),
    /// The job would restart on the same nodes: the finding names none to exclude.
    NoNode,
    /// This many places made requests at once; an operator resets it.
    Breaker(u32),
    /// Another owner acts on the job: its mark.
    Owned(Arc<str>),
    /// The actions of other jobs are unknown, and why.
    NoLedger(Arc<str>),
}

impl Reason {
    /// Its name in metrics.
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
    /// To be carried out now, under the decision's mark.
    Act,
    /// Refused, and why.
    Refuse(Reason),
}

/// The decision on a request: a line of the audit log.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// When, milliseconds since 1970.
    pub unix_ms: u64,
    /// The outcome.
    pub outcome: Outcome,
    /// The request.
    pub ask: Ask,
    /// Its mark.
    pub mark: Arc<str>,
}

#[cfg(test)]
#[path = "remedy_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "site_tests.rs"]
mod site_tests;
