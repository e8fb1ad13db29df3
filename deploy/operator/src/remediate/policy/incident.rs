//! What was heard about a node: one incident for each finding and subject of each job, so that each GPU clears by itself.

use std::collections::BTreeMap;

use paceline_health::Provenance;
use paceline_health::fault::{Order, Remedy};
use paceline_health::verdict::{Finding, Severity};
use serde::{Deserialize, Serialize};

use crate::stamp;

/// Incidents of one node that are remembered; what is closed goes first.
const MOST: usize = 32;

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
    pub subject: String,
    /// Namespace and name of the job that said it.
    pub job: String,
    /// Nodes of that job.
    pub job_nodes: u32,
    /// How bad it was at worst.
    pub severity: Severity,
    /// The least trusted of its evidence.
    pub provenance: Provenance,
    /// The job's policy only observes it.
    #[serde(default)]
    pub observe_only: bool,
    /// What its table asks for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<Order>,
    /// When it was raised; anew when it came back.
    #[serde(with = "stamp")]
    pub since: u64,
    /// When it was last said to hold.
    #[serde(with = "stamp")]
    pub heard: u64,
    /// How often it was raised.
    pub times: u32,
    /// How often it was said in all.
    pub said: u64,
    /// The node's boot in which it was raised.
    #[serde(default)]
    pub boot: String,
    /// Over, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed: Option<Closed>,
}

impl Incident {
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

/// Takes a report in. Whether an incident was raised, closed or made worse by it.
pub fn hear(incidents: &mut BTreeMap<String, Incident>, report: Report, now: u64, boot: &str) -> bool {
    let Report { key, .. } = report;
    let Some(known) = incidents.get_mut(&key) else {
        // What was never heard of is not over.
        if report.holds {
            incidents.insert(
                key,
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
                    closed: None,
                },
            );
            forget(incidents);
        }
        return report.holds;
    };
    known.said += 1;
    if !report.holds {
        let was_open = known.is_open();
        // One that a person had overridden is news when it comes back from now on.
        known.closed = match known.closed {
            None | Some(Closed::Overridden) => Some(Closed::Resolved),
            closed => closed,
        };
        return was_open;
    }
    let again = match known.closed {
        // The same said on is no news to a person who has decided about it.
        Some(Closed::Overridden) => return false,
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
        boot.clone_into(&mut known.boot);
    }
    again || is_worse
}

fn forget(incidents: &mut BTreeMap<String, Incident>) {
    while incidents.len() > MOST {
        let oldest = |incidents: &BTreeMap<String, Incident>, is_any: bool| {
            let all = incidents
                .iter()
                .filter(|(_, incident)| is_any || !incident.is_open());
            all.min_by_key(|(_, incident)| incident.heard)
                .map(|(key, _)| key.clone())
        };
        match oldest(incidents, false).or_else(|| oldest(incidents, true)) {
            Some(key) => incidents.remove(&key),
            None => return,
        };
    }
}
