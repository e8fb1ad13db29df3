//! `telemetry-blind`: a node from which nothing is heard. Absence of data is never health.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::claim::{Body, Claim, Detail, Outcome, over, piece};
use super::roster::{Node, Roster};
use crate::frame::Provenance;
use crate::id::NodeId;
use crate::policy::BlindThresholds;
use crate::time::Time;
use crate::verdict::{Cause, Finding, Severity, Subject};

/// The rule.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct BlindRule {
    open: BTreeSet<NodeId>,
    provenance: Provenance,
    out: VecDeque<Claim>,
}

impl BlindRule {
    /// Takes note that a node was heard at `at`.
    pub fn heard(&mut self, at: Time, node: &NodeId, provenance: Provenance) {
        self.provenance = self.provenance.max(provenance);
        if self.open.remove(node) {
            let claim = over(at, Finding::TelemetryBlind, subject(node), Outcome::default());
            self.out.push_back(claim);
        }
    }

    /// Names the nodes whose deadline has passed by `now`, and gives those that are new.
    pub fn advance(&mut self, now: Time, roster: &Roster, limits: &BlindThresholds) -> Vec<NodeId> {
        let patience = patience(limits);
        let mut new = Vec::new();
        for (name, node) in roster.nodes().filter(|(_, node)| is_awaited(node)) {
            let deadline = node.last_heard + patience;
            if deadline <= now && self.open.insert(name.clone()) {
                self.raise(deadline, name, node, patience);
                new.push(name.clone());
            }
        }
        new
    }

    /// When [`BlindRule::advance`] has something to do.
    pub fn wake_at(&self, roster: &Roster, limits: &BlindThresholds) -> Option<Time> {
        let patience = patience(limits);
        roster
            .nodes()
            .filter(|(name, node)| is_awaited(node) && !self.open.contains(*name))
            .map(|(_, node)| node.last_heard + patience)
            .min()
    }

    /// Whether nothing is heard from a node now.
    pub fn is_open(&self, node: &NodeId) -> bool {
        self.open.contains(node)
    }

    /// The next claim.
    pub fn poll(&mut self) -> Option<Claim> {
        self.out.pop_front()
    }

    fn raise(&mut self, at: Time, name: &NodeId, node: &Node, patience: Duration) {
        let evidence = vec![piece("unheard_s", patience.as_secs_f64(), None)];
        let detail = Detail {
            severity: Severity::Critical,
            since: node.last_heard,
            since_step: None,
            step: None,
            cause: Cause::Unknown,
            signals: Vec::new(),
            provenance: self.provenance,
            slowdown_ratio: None,
            impact_ratio: None,
            lost_rank_s: 0.0,
            evidence,
        };
        let body = Body::Holds(Box::new(detail));
        self.out.push_back(Claim {
            finding: Finding::TelemetryBlind,
            subject: subject(name),
            at,
            body,
        });
    }
}

/// A node that has neither said goodbye nor seen its command end.
fn is_awaited(node: &Node) -> bool {
    !node.left && node.exit.is_none()
}

fn subject(node: &NodeId) -> Subject {
    Subject::Node { node: node.clone() }
}

fn patience(limits: &BlindThresholds) -> Duration {
    Duration::from_secs_f64(limits.beat_missing_s)
}
