//! One slow link: its nodes, its cause, and its cost so far.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::detect::cause::causes::Explained;
use crate::detect::claim::{Outcome, piece};
use crate::detect::comm::communicator::Comm;
use crate::detect::view::View;
use crate::id::NodeId;
use crate::time::Time;
use crate::verdict::{Cause, Severity, Subject};

/// Maximum number of candidates named in the evidence.
const MAX_NAMED: usize = 8;
/// A step counts only if its excess is at least this share of the present excess.
const SLOW: f64 = 0.25;

/// One slow link, or several candidates of which one is slow.
#[derive(Debug, Serialize, Deserialize)]
pub struct Open {
    /// The candidates, one of which has the slow link. If `pair` is set, it is the link between the two nodes.
    pub nodes: Vec<NodeId>,
    pub pair: bool,
    /// True if the slow transfers are within the node.
    pub inside: bool,
    pub comms: Vec<u64>,
    /// Maximum number of slow communicators so far.
    pub most: usize,
    pub subject: Subject,
    pub since: Time,
    pub since_step: u64,
    pub step: u64,
    pub severity: Severity,
    pub explained: Option<Explained>,
    /// The current excess.
    pub excess: Excess,
    /// Cost so far: number of slow steps, the last step taken, and the sums of excess and usual transfer in the slow
    /// steps, in seconds.
    pub rows: u64,
    pub last: u64,
    pub gain_s: f64,
    pub usual_s: f64,
}

/// The slowest of some communicators, seconds.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Excess {
    pub transfer_s: f64,
    pub usual_s: f64,
}

impl Excess {
    /// Returns the lost time in seconds.
    pub fn seconds(&self) -> f64 {
        (self.transfer_s - self.usual_s).max(0.0)
    }
}

impl Open {
    /// Determines which link is slow, as far as that is known, and the cause.
    pub fn resolve(&mut self, view: &View<'_>) {
        let end = |node: &NodeId| Subject::Link {
            node: node.clone(),
            peer: None,
        };
        if self.inside {
            let ranks: Vec<_> = self
                .comms
                .iter()
                .filter_map(|id| view.comms.get(*id))
                .flat_map(|comm| comm.members.iter().copied())
                .collect();
            self.explained = self
                .explained
                .take()
                .or_else(|| view.causes.nvlink(&ranks, self.since, &view.scope()));
            self.subject = end(&self.nodes[0]);
            return;
        }
        // Both ends of one link may count errors, so they are compared with the other nodes and not with each other.
        let is_other = |node: &NodeId| !(self.pair && self.nodes.contains(node));
        let all = view.plan.nodes.iter().map(|(node, _)| node.clone());
        let others: Vec<NodeId> = all.filter(is_other).collect();
        let mut failing = self.nodes.iter().filter_map(|node| {
            let found = view.causes.ports(node, &others, self.since, view.limits)?;
            Some((node.clone(), found))
        });
        let (first, second) = (failing.next(), failing.next());
        match (first, second) {
            // If only one of the candidates has ports that count errors, that candidate is named.
            (Some((node, found)), None) => {
                self.explained.get_or_insert(found);
                self.nodes = vec![node];
            }
            (Some((_, found)), Some(_)) if self.pair => {
                self.explained.get_or_insert(found);
            }
            _ => {}
        }
        self.subject = match self.nodes.as_slice() {
            [node] => end(node),
            [node, peer] if self.pair => Subject::Link {
                node: node.clone(),
                peer: Some(peer.clone()),
            },
            _ => Subject::Job {
                job: view.job.clone(),
            },
        };
    }

    /// Returns the cause as far as it is known.
    pub fn cause(&self) -> Cause {
        self.explained
            .as_ref()
            .map_or(Cause::Unknown, |found| found.cause)
    }

    /// Returns the current severity. An undecided link raises no alert.
    pub fn severity_now(&self, view: &View<'_>, step_s: f64) -> Severity {
        let share = self.excess.seconds() / step_s.max(1e-9);
        match self.subject {
            Subject::Job { .. } => Severity::Info,
            _ => view.limits.impact.severity(share),
        }
    }

    /// Books the steps since the last call. Each costs the excess of its slowest communicator.
    pub fn account(&mut self, view: &View<'_>) {
        let mut steps: BTreeMap<u64, (f64, f64)> = BTreeMap::new();
        for comm in self.comms.iter().filter_map(|id| view.comms.get(*id)) {
            for (step, excess_s) in comm.excess_since(self.last) {
                let worst = steps.entry(step).or_insert((0.0, 0.0));
                if excess_s > worst.0 {
                    *worst = (excess_s, comm.usual_s.unwrap_or(0.0));
                }
            }
        }
        // Steps with little excess are left out. After the last slow step the problem is over, although this is not
        // known yet.
        let least = SLOW * self.excess.seconds();
        for (step, (excess_s, usual_s)) in steps {
            self.last = step;
            if excess_s >= least {
                self.rows += 1;
                self.gain_s += excess_s;
                self.usual_s += usual_s;
            }
        }
    }

    /// Returns the outcome so far, or at the end.
    pub fn outcome(&self, step_s: f64, world_size: u32) -> Outcome {
        let mean = |sum: f64| sum / self.rows.max(1) as f64;
        let (usual_s, transfer_s) = (mean(self.usual_s), mean(self.usual_s + self.gain_s));
        let mut evidence = vec![
            piece("transfer_s", transfer_s, Some(usual_s)),
            piece("slow_communicators", self.most as f64, None),
        ];
        if let Subject::Job { .. } = self.subject {
            evidence.push(piece("candidate_nodes", self.nodes.len() as f64, None));
            let named = self.nodes.iter().take(MAX_NAMED);
            evidence.extend(named.map(|node| piece(&format!("candidate {node}"), 1.0, None)));
        }
        Outcome {
            lost_rank_s: self.gain_s * f64::from(world_size),
            slowdown_ratio: (usual_s > 0.0).then(|| transfer_s / usual_s),
            impact_ratio: (step_s > 0.0).then(|| mean(self.gain_s) / step_s),
            evidence,
        }
    }
}

/// Returns the excess of the communicator that lost the most time.
pub fn excess<'a>(comms: impl Iterator<Item = &'a Comm>, view: &View<'_>) -> Excess {
    let of = |comm: &Comm| {
        Some(Excess {
            transfer_s: comm.transfer_s(&view.limits.link)?,
            usual_s: comm.usual_s?,
        })
    };
    comms
        .filter_map(of)
        .max_by(|a, b| a.seconds().total_cmp(&b.seconds()))
        .unwrap_or_default()
}
