//! Reports about a node. There is one incident for each finding and subject of each job, so that each GPU's incident
//! can clear separately.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use paceline_health::Provenance;
use paceline_health::fault::{Order, Remedy};
use paceline_health::verdict::{Finding, Severity};
use serde::{Deserialize, Serialize};

use crate::timestamp;

/// Limit of incidents of one node.
const MOST: usize = 32;
/// Limit of incidents of one job. With this limit, a job with many reports displaces only its own incidents.
const MOST_OF_A_JOB: usize = 12;
/// An incident without a report for longer than this is displaced first. Aggregators repeat reports every minute.
const FRESH_MS: u64 = 300_000;

/// A job's report about one node.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// The report's key, made of job, finding and subject.
    pub key: String,
    /// Namespace and name of the reporting job.
    pub job: String,
    /// Number of nodes of that job.
    pub job_nodes: u32,
    /// The finding.
    pub finding: Finding,
    /// The subject, as text.
    pub subject: String,
    /// The severity.
    pub severity: Severity,
    /// Where the evidence comes from.
    pub provenance: Provenance,
    /// True if the job's own policy only observes the finding.
    pub observe_only: bool,
    /// The action that the policy table requires.
    pub order: Option<Order>,
    /// True if the finding holds, and false if it was cleared.
    pub holds: bool,
}

/// Why an incident was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Closed {
    /// The reporter cleared the incident.
    Resolved,
    /// There was no report for too long.
    Expired,
    /// An administrator marked the node as repaired.
    Repaired,
    /// The node was rebooted, as the incident required.
    Rebooted,
    /// An administrator returned the node to service.
    Overridden,
}

/// A reported fault of a node; see the module documentation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Incident {
    /// The finding.
    pub finding: Finding,
    /// The subject, as text.
    #[serde(default)]
    pub subject: String,
    /// Namespace and name of the reporting job.
    #[serde(default)]
    pub job: String,
    /// Number of nodes of that job.
    #[serde(default)]
    pub job_nodes: u32,
    /// The highest severity so far.
    #[serde(default = "worst")]
    pub severity: Severity,
    /// The least trusted provenance of the evidence so far.
    #[serde(default = "least")]
    pub provenance: Provenance,
    /// True if the job's policy only observes the finding.
    #[serde(default)]
    pub observe_only: bool,
    /// The action that the policy table requires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<Order>,
    /// When the incident was raised, or raised again.
    #[serde(default = "timestamp::now_ms", with = "timestamp")]
    pub since: u64,
    /// When the last report arrived that the finding holds.
    #[serde(default = "timestamp::now_ms", with = "timestamp")]
    pub heard: u64,
    /// How often the incident was raised.
    #[serde(default)]
    pub times: u32,
    /// The number of reports.
    #[serde(default)]
    pub said: u64,
    /// The node's boot ID when the incident was raised.
    #[serde(default)]
    pub boot: String,
    /// True once the incident was trusted, severe and old enough to take the node out of service.
    #[serde(default)]
    pub ripe: bool,
    /// Why the incident was closed, or `None` if it is open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed: Option<Closed>,
}

/// Returns the default for a missing severity. It is the highest one, so that the incident does not end early.
fn worst() -> Severity {
    Severity::Critical
}

/// Returns the default for a missing provenance. It is the least trusted one, so that the incident causes no new action
/// before the next report.
fn least() -> Provenance {
    Provenance::Sim
}

impl Incident {
    /// Creates an incident.
    fn of(report: Report, now: u64, boot: &str) -> Incident {
        Incident {
            finding: report.finding,
            subject: report.subject,
            job: report.job,
            job_nodes: report.job_nodes,
            severity: report.severity,
            provenance: report.provenance,
            observe_only: report.observe_only,
            order: report.order,
            since: now,
            heard: now,
            times: 1,
            said: 1,
            boot: boot.to_owned(),
            ripe: false,
            closed: None,
        }
    }

    /// Returns true if the incident is open.
    pub fn is_open(&self) -> bool {
        self.closed.is_none()
    }

    /// Returns true if the incident requires a reboot of the node.
    pub fn ends_with_reboot(&self) -> bool {
        self.order.is_some_and(|order| {
            use Remedy::{DrainP2p, DrainReset, RebootNode, RecoverImex, ResetGpu};
            matches!(
                order.remedy,
                ResetGpu | DrainReset | RebootNode | RecoverImex | DrainP2p
            )
        })
    }

    /// Returns a short description of the incident.
    pub fn words(&self) -> String {
        format!("{} of {} (job {})", self.finding, self.subject, self.job)
    }
}

/// The effect of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// An incident was raised, closed or became more severe.
    News,
    /// The report contained nothing new.
    Same,
    /// The limit was reached, so this incident or a less important one was dropped.
    Unkept {
        /// True if another incident was dropped.
        is_other: bool,
    },
}

/// Processes a report.
pub fn hear(incidents: &mut BTreeMap<String, Incident>, report: Report, now: u64, boot: &str) -> Heard {
    let key = report.key.clone();
    let news = |is_news| if is_news { Heard::News } else { Heard::Same };
    let Some(known) = incidents.get_mut(&key) else {
        // A report that a finding has cleared has no effect if the incident is unknown.
        if !report.holds {
            return Heard::Same;
        }
        let job = report.job.clone();
        incidents.insert(key.clone(), Incident::of(report, now, boot));
        return match forget(incidents, &key, &job, now) {
            Some((_, gone)) if !gone.is_open() => Heard::News,
            Some((gone, _)) => Heard::Unkept {
                is_other: gone != key,
            },
            None => Heard::News,
        };
    };
    known.said += 1;
    if !report.holds {
        let was_open = known.is_open();
        // An overridden incident that clears becomes a resolved one, so that it counts as new when it returns.
        known.closed = match known.closed {
            None | Some(Closed::Overridden) => Some(Closed::Resolved),
            closed => closed,
        };
        return news(was_open);
    }
    let again = match known.closed {
        // A repeated report does not undo an administrator's decision.
        Some(Closed::Overridden) => return Heard::Same,
        Some(_) => true,
        None => false,
    };
    let is_worse = report.severity > known.severity;
    known.heard = now;
    known.job_nodes = report.job_nodes;
    known.order = report.order.or(known.order);
    known.observe_only = report.observe_only;
    known.provenance = report.provenance;
    known.severity = if again {
        report.severity
    } else {
        known.severity.max(report.severity)
    };
    if again {
        known.since = now;
        known.times += 1;
        known.closed = None;
        known.ripe = false;
        boot.clone_into(&mut known.boot);
    }
    news(again || is_worse)
}

/// Enforces the limits after a report of `job`. Drops the least important incident, which may be `newest` itself, and
/// returns the dropped incident.
fn forget(
    incidents: &mut BTreeMap<String, Incident>,
    newest: &str,
    job: &str,
    now: u64,
) -> Option<(String, Incident)> {
    let mut by_job = BTreeMap::<&str, usize>::new();
    for incident in incidents.values() {
        *by_job.entry(&incident.job).or_default() += 1;
    }
    let is_too_much = by_job.get(job).is_some_and(|of_job| *of_job > MOST_OF_A_JOB);
    if !is_too_much && incidents.len() <= MOST {
        return None;
    }
    let all = incidents
        .iter()
        .filter(|(_, incident)| !is_too_much || incident.job == job);
    let least = all.min_by_key(|(key, incident)| {
        let of_job = by_job[&*incident.job];
        (worth(incident, of_job, now), *key != newest)
    });
    let least = least?.0.clone();
    incidents.remove_entry(&least)
}

/// Returns the importance of an incident. Closed incidents are the least important, except those that an administrator
/// overrode. Incidents for which the node is out of service are the most important. Among equals, incidents of a job
/// with many reports are dropped first. Of these, the newest is dropped before older ones, because reports that are
/// repeated every minute would otherwise displace each other forever.
fn worth(
    incident: &Incident,
    of_job: usize,
    now: u64,
) -> (bool, bool, Severity, bool, Reverse<usize>, Reverse<u64>) {
    (
        matches!(incident.closed, None | Some(Closed::Overridden)),
        incident.ripe,
        incident.severity,
        now.saturating_sub(incident.heard) < FRESH_MS,
        Reverse(of_job),
        Reverse(incident.since),
    )
}
