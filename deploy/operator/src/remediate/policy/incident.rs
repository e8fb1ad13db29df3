//! What was heard about a node: one incident for each finding and subject of each job, so that each GPU clears by itself.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use paceline_health::Provenance;
use paceline_health::fault::{Order, Remedy};
use paceline_health::verdict::{Finding, Severity};
use serde::{Deserialize, Serialize};

use crate::timestamp;

/// Incidents of one node that are remembered.
const MOST: usize = 32;
/// And of one job: whoever says much pushes out what he said himself, and nothing of another's.
const MOST_OF_A_JOB: usize = 12;
/// What was not said for longer makes room for what is: aggregators say it each minute.
const FRESH_MS: u64 = 300_000;

/// One thing that somebody said about one node.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// By what it is known: job, finding and subject.
    pub key: String,
    /// Namespace and name of the job that says it.
    pub job: String,
    /// Nodes of that job.
    pub job_nodes: u32,
    /// What.
    pub finding: Finding,
    /// About whom, in words.
    pub subject: String,
    /// How bad.
    pub severity: Severity,
    /// Where the evidence comes from.
    pub provenance: Provenance,
    /// The job's own policy only observes it.
    pub observe_only: bool,
    /// What its table asks for.
    pub order: Option<Order>,
    /// Whether it holds.
    pub holds: bool,
}

/// Why an incident counts no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Closed {
    /// Whoever said it says that it is over.
    Resolved,
    /// Nothing was heard for too long.
    Expired,
    /// A person says that the node was repaired.
    Repaired,
    /// The node was started again, which is what it asked for.
    Rebooted,
    /// A person put the node back into service.
    Overridden,
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Incident {
    /// What.
    pub finding: Finding,
    /// About whom, in words.
    #[serde(default)]
    pub subject: String,
    /// Namespace and name of the job that said it.
    #[serde(default)]
    pub job: String,
    /// Nodes of that job.
    #[serde(default)]
    pub job_nodes: u32,
    /// How bad it was at worst.
    #[serde(default = "worst")]
    pub severity: Severity,
    /// The least trusted of its evidence.
    #[serde(default = "least")]
    pub provenance: Provenance,
    /// The job's policy only observes it.
    #[serde(default)]
    pub observe_only: bool,
    /// What its table asks for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<Order>,
    /// When it was raised; anew when it came back.
    #[serde(default = "timestamp::now_ms", with = "timestamp")]
    pub since: u64,
    /// When it was last said to hold.
    #[serde(default = "timestamp::now_ms", with = "timestamp")]
    pub heard: u64,
    /// How often it was raised.
    #[serde(default)]
    pub times: u32,
    /// How often it was said in all.
    #[serde(default)]
    pub said: u64,
    /// The node's boot in which it was raised.
    #[serde(default)]
    pub boot: String,
    /// It was trusted, bad and old enough to take the node out of service.
    #[serde(default)]
    pub ripe: bool,
    /// Over, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed: Option<Closed>,
}

/// Of one whose severity was not kept: it does not end early for that.
fn worst() -> Severity {
    Severity::Critical
}

/// Of one of which it was not kept: nothing new is done for it until it is said again.
fn least() -> Provenance {
    Provenance::Sim
}

impl Incident {
    /// One that is raised now.
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

    /// Whether it counts.
    pub fn is_open(&self) -> bool {
        self.closed.is_none()
    }

    /// Whether a new start of the node is what it asks for.
    pub fn ends_with_reboot(&self) -> bool {
        self.order.is_some_and(|order| {
            use Remedy::{DrainP2p, DrainReset, RebootNode, RecoverImex, ResetGpu};
            matches!(
                order.remedy,
                ResetGpu | DrainReset | RebootNode | RecoverImex | DrainP2p
            )
        })
    }

    /// In few words.
    pub fn words(&self) -> String {
        format!("{} of {} (job {})", self.finding, self.subject, self.job)
    }
}

/// What came of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// An incident was raised, closed or made worse.
    News,
    /// Nothing new.
    Same,
    /// There was no room: it, or something that counts less, is not kept.
    Unkept {
        /// It is another that went.
        is_other: bool,
    },
}

/// Takes a report in.
pub fn hear(incidents: &mut BTreeMap<String, Incident>, report: Report, now: u64, boot: &str) -> Heard {
    let key = report.key.clone();
    let news = |is_news| if is_news { Heard::News } else { Heard::Same };
    let Some(known) = incidents.get_mut(&key) else {
        // What was never heard of is not over.
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
        // One that a person had overridden is news when it comes back from now on.
        known.closed = match known.closed {
            None | Some(Closed::Overridden) => Some(Closed::Resolved),
            closed => closed,
        };
        return news(was_open);
    }
    let again = match known.closed {
        // The same said on is no news to a person who has decided about it.
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

/// Makes room behind what was just heard of `job`: `newest`, which goes itself where nothing counts less. What went.
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

/// What is over counts least, but for what a person has decided about; what a node is out for counts most. Of as bad ones those of a
/// job that says much go first, and the last of it: what is said again each minute would push out one another for ever.
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
