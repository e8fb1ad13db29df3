//! `telemetry-blind`: a node is unreachable, so no frame arrives from it. Missing data must never count as health.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::detect::claim::{Body, Claim, Detail, Outcome, over, piece};
use crate::detect::members::roster::{Node, Roster};
use crate::frame::Provenance;
use crate::id::{JobId, NodeId};
use crate::policy::BlindThresholds;
use crate::time::Time;
use crate::verdict::{Cause, Evidence, Finding, Severity, Subject, UNHEARD_NODES};

/// Up to this many unreachable nodes get a verdict each. More of them have a common cause and get one verdict for the
/// job, so that the on-call engineer gets one page.
const MOST_NAMED: usize = 8;
/// Nodes that are lost together miss their beats within this time, so they are counted after it.
const TOGETHER: Duration = Duration::from_secs(1);
/// Maximum pause between two attempts of a sidecar to reach a lost aggregator.
const LONGEST_PAUSE: Duration = Duration::from_secs(90);
/// Minimum time between two deadlines at which nodes were found missing. Each deadline checks all nodes, and thousands
/// of them may be lost together.
const REST: Duration = Duration::from_millis(100);

/// The state of this rule.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct UnreachableNodeRule {
    /// Unreachable nodes, and when they last reported.
    open: BTreeMap<NodeId, Time>,
    /// The unreachable nodes that have a verdict of their own.
    named: BTreeSet<NodeId>,
    /// When to count the nodes without a verdict.
    count_at: Option<Time>,
    /// When a node was last found missing.
    missed_at: Option<Time>,
    /// Until this time, sidecars that lost the aggregator may still be searching for it.
    patient_until: Time,
    /// Number of nodes in the job's verdict. Zero if the job has none.
    counted: usize,
    provenance: Provenance,
    out: VecDeque<Claim>,
}

impl UnreachableNodeRule {
    /// Records that a node reported at `at`.
    pub fn heard(&mut self, at: Time, node: &NodeId, job: &JobId, provenance: Provenance) {
        self.provenance = self.provenance.max(provenance);
        if self.open.remove(node).is_none() {
            return;
        }
        if self.named.remove(node) {
            self.say_over(at, subject(node));
        }
        if self.open.len() <= MOST_NAMED {
            self.name_the_rest(at, job);
        } else if self.counted >= 2 * self.open.len() {
            self.count_at.get_or_insert(at + TOGETHER);
        }
    }

    /// Finds the nodes whose deadline has passed by `now`. Returns those that were not unreachable before.
    pub fn advance(
        &mut self,
        now: Time,
        roster: &Roster,
        job: &JobId,
        limits: &BlindThresholds,
    ) -> Vec<NodeId> {
        let mut new = Vec::new();
        for (name, node) in roster.nodes().filter(|(_, node)| is_awaited(node)) {
            if self.due(node, limits) > now || self.open.contains_key(name) {
                continue;
            }
            self.open.insert(name.clone(), node.last_heard);
            new.push(name.clone());
            if self.named.len() < MOST_NAMED {
                self.name(now, name.clone(), node.last_heard);
            } else {
                self.count_at.get_or_insert(now + TOGETHER);
            }
        }
        if !new.is_empty() {
            self.missed_at = Some(now);
        }
        if let Some(at) = self.count_at.take_if(|at| *at <= now) {
            self.count(at, roster, job);
        }
        new
    }

    /// Returns when [`UnreachableNodeRule::advance`] must be called next.
    pub fn wake_at(&self, roster: &Roster, limits: &BlindThresholds) -> Option<Time> {
        let due = roster
            .nodes()
            .filter(|(name, node)| is_awaited(node) && !self.open.contains_key(*name))
            .map(|(_, node)| self.due(node, limits))
            .chain(self.count_at)
            .min()?;
        let rested = self.missed_at.map_or(Time::ZERO, |at| at + REST);
        Some(due.max(rested))
    }

    /// Returns when [`UnreachableNodeRule::advance`] may have something to do because a node reported at `at`.
    pub fn due_after(&self, at: Time, limits: &BlindThresholds) -> Time {
        let due = deadline(at, limits);
        self.count_at.map_or(due, |count| count.min(due))
    }

    /// Allows for the time `missed`, up to `at`, in which the aggregator received nothing. A sidecar that gave up
    /// meanwhile tries again after a pause about as long as its attempts before.
    pub fn excuse(&mut self, at: Time, missed: Duration, limits: &BlindThresholds) {
        let until = deadline(at + missed.min(LONGEST_PAUSE), limits);
        self.patient_until = self.patient_until.max(until);
    }

    fn due(&self, node: &Node, limits: &BlindThresholds) -> Time {
        deadline(node.silent_from, limits).max(self.patient_until)
    }

    /// Returns true if the node is unreachable now.
    pub fn is_open(&self, node: &NodeId) -> bool {
        self.open.contains_key(node)
    }

    /// Returns the next claim.
    pub fn poll(&mut self) -> Option<Claim> {
        self.out.pop_front()
    }

    /// Reports all unreachable nodes together, and again when their number has doubled or halved.
    fn count(&mut self, at: Time, roster: &Roster, job: &JobId) {
        let (now, told) = (self.open.len(), self.counted);
        if now <= MOST_NAMED || (now < 2 * told && told < 2 * now) {
            return;
        }
        self.counted = self.open.len();
        let rest = self.open.iter().filter(|(name, _)| !self.named.contains(*name));
        let since = rest.map(|(_, since)| *since).min().unwrap_or(at);
        let nodes = roster.nodes().count() as f64;
        let evidence = vec![
            piece(UNHEARD_NODES, self.counted as f64, Some(nodes)),
            piece("unheard_s", at.since(since).as_secs_f64(), None),
        ];
        self.report(at, Subject::Job { job: job.clone() }, since, evidence);
    }

    /// Gives each of the few remaining nodes a verdict, and ends the job's verdict.
    fn name_the_rest(&mut self, at: Time, job: &JobId) {
        let rest = self.open.iter().filter(|(name, _)| !self.named.contains(*name));
        let rest: Vec<(NodeId, Time)> = rest.map(|(name, since)| (name.clone(), *since)).collect();
        for (name, since) in rest {
            self.name(at, name, since);
        }
        self.count_at = None;
        if std::mem::take(&mut self.counted) > 0 {
            self.say_over(at, Subject::Job { job: job.clone() });
        }
    }

    fn name(&mut self, at: Time, name: NodeId, since: Time) {
        let evidence = vec![piece("unheard_s", at.since(since).as_secs_f64(), None)];
        self.report(at, subject(&name), since, evidence);
        self.named.insert(name);
    }

    fn say_over(&mut self, at: Time, subject: Subject) {
        let claim = over(at, Finding::TelemetryBlind, subject, Outcome::default());
        self.out.push_back(claim);
    }

    fn report(&mut self, at: Time, subject: Subject, since: Time, evidence: Vec<Evidence>) {
        let detail = Detail {
            severity: Severity::Critical,
            since,
            since_step: None,
            step: None,
            cause: Cause::Unknown,
            signals: Vec::new(),
            provenance: self.provenance,
            slowdown_ratio: None,
            impact_ratio: None,
            lost_rank_s: 0.0,
            evidence,
            says: None,
        };
        let body = Body::Holds(Box::new(detail));
        self.out.push_back(Claim {
            finding: Finding::TelemetryBlind,
            subject,
            at,
            body,
        });
    }
}

/// Returns true if the node has not sent a goodbye and its command has not ended.
fn is_awaited(node: &Node) -> bool {
    !node.left && node.exit.is_none()
}

fn subject(node: &NodeId) -> Subject {
    Subject::Node { node: node.clone() }
}

/// Returns by when a node that reported at `heard` must have reported again.
pub fn deadline(heard: Time, limits: &BlindThresholds) -> Time {
    heard + Duration::from_secs_f64(limits.beat_missing_s)
}

#[cfg(test)]
#[path = "unreachable_node_tests.rs"]
mod tests;
