//! What may be done about a verdict, and whether: pure. Somebody else ([`Guard::poll`] tells whom) does it.
//!
//! A verdict that asks for more than words becomes an [`Ask`]; the [`Guard`] answers each with a [`Decision`], which is
//! also its line in the audit. Time is the wall clock's, in milliseconds, for what was done must be remembered across
//! restarts, boots and jobs; a clock that is set back makes everything more recent, and so refuses.

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

/// What may be done, from least to most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Response {
    /// It is told, as every verdict is.
    #[default]
    Log,
    /// The trainers get a signal: the job may write a checkpoint, and goes on.
    Signal,
    /// The same; then the command of the bad node is stopped, and an elastic group goes on without that node.
    LeaveNode,
    /// The same; when the checkpoint is written, or not in time, the command is stopped.
    CheckpointAndStop,
    /// The same, and the scheduler is asked to start the job again without the bad node.
    Requeue,
}

impl Response {
    /// All, from least to most.
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

    /// The one of that name.
    pub fn of(name: &str) -> Option<Response> {
        Response::ALL.into_iter().find(|one| one.name() == name)
    }
}

impl fmt::Display for Response {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One incident among those of all runs of a job: numbers begin anew with each journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Incident {
    /// Number of the journal.
    pub run: u64,
    /// [`Verdict::id`].
    pub id: u64,
}

/// A verdict, as far as it asks for something to be done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ask {
    /// Which incident.
    pub incident: Incident,
    /// What would be treated.
    pub job: JobId,
    /// By what its budgets go: the scheduler's number of the job, which a requeue does not change. Empty: by its name.
    #[serde(default)]
    pub account: Arc<str>,
    /// The kind of trouble.
    pub finding: Finding,
    /// Whom it is about.
    pub subject: Subject,
    /// How bad.
    pub severity: Severity,
    /// The least trusted of its evidence.
    pub provenance: Provenance,
    /// Policy only observes this finding.
    pub observe_only: bool,
    /// What is asked for.
    pub response: Response,
    /// Whether a checkpoint that is written now is worth anything.
    pub checkpoint: bool,
}

impl Ask {
    /// What a verdict asks for; `None`: words.
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

    /// Whose budgets it draws on.
    pub(super) fn account(&self) -> &str {
        account(&self.account, &self.job)
    }

    /// Where the trouble sits: a node, if it sits on one.
    pub fn place(&self) -> Arc<str> {
        match (self.node(), &self.subject) {
            (Some(node), _) => node.0.clone(),
            (None, subject) => Arc::from(subject.to_string()),
        }
    }

    /// The node that a job which starts again should do without.
    pub fn node(&self) -> Option<&NodeId> {
        match &self.subject {
            Subject::Node { node } | Subject::Rank { node, .. } | Subject::Gpu { node, .. } => Some(node),
            Subject::Link { node, peer: None } => Some(node),
            // Which end is bad is not known.
            Subject::Link { .. } | Subject::Job { .. } | Subject::Rack { .. } => None,
        }
    }
}

/// A job without a scheduler's number goes by its name, as do deeds that were written down before there were accounts.
fn account<'a>(account: &'a str, job: &'a JobId) -> &'a str {
    if account.is_empty() { job.as_str() } else { account }
}

/// Why nothing is done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// It would have been: nobody has said that anything may be done.
    DryRun,
    /// Some of its evidence is not live.
    NotLive(Provenance),
    /// Policy only observes this finding.
    ObserveOnly,
    /// It is less than what may be treated.
    Severity(Severity),
    /// Something was done about this incident, or is about to be.
    Twice,
    /// It cleared before anything was done.
    Cleared,
    /// It could not be decided in time.
    Expired,
    /// Whoever had it in hand was started again; nobody knows how far it came.
    Restarted,
    /// Something was done to the job a short while ago; milliseconds that are left.
    CoolDown(u64),
    /// So much was done to this job within the window.
    JobBudget(u32),
    /// So much was done by all jobs of the site within the window.
    SiteBudget(u32),
    /// The same was done for the same place so often, and it came back.
    Repeated(u32),
    /// The job would start again on the same nodes: of none it is known that it should be left out.
    NoNode,
    /// So many places asked at once; an operator closes it.
    Breaker(u32),
    /// Somebody else treats it: their mark.
    Owned(Arc<str>),
    /// What was done by others cannot be known, and why.
    NoLedger(Arc<str>),
}

impl Reason {
    /// Its name, as it stands in metrics.
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

/// Done or not.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// It is to be done now, under this mark.
    Act,
    /// It is not, and why.
    Refuse(Reason),
}

/// What was decided of an ask: a line of the audit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// When, milliseconds since 1970.
    pub unix_ms: u64,
    /// What.
    pub outcome: Outcome,
    /// The ask.
    pub ask: Ask,
    /// Under whose mark.
    pub mark: Arc<str>,
}

#[cfg(test)]
#[path = "remedy_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "site_tests.rs"]
mod site_tests;
