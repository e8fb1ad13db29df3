//! `slow-link`: transfers that take longer than before, or longer than elsewhere, and the link that causes this.

mod attribution;
mod link;

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use self::attribution::Crossing;
use self::link::{Open, excess};
use super::claim::{Body, Claim, Detail, Outcome, over};
use super::comm::communicator::Comm;
use super::step::matrix::StepMatrix;
use super::straggler::open_straggler::OpenStraggler;
use super::view::View;
use crate::event::Signal;
use crate::frame::Provenance;
use crate::id::{NodeId, Rank};
use crate::time::Time;
use crate::verdict::{Finding, Severity, Subject};

/// Maximum number of open links. If there are more, the problem is one of the job.
const MAX_OPEN: usize = 32;
/// Number of steps whose times are kept.
const TIMES: usize = 64;
/// Number of steps over which the step time is smoothed.
const SMOOTH: f64 = 16.0;

/// The state of this rule.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct LinkRule {
    open: Vec<Open>,
    /// Usual time of a step, seconds.
    step_s: f64,
    /// True if steps have micro-batches and it was not declared whether there is a pipeline.
    may_join_stages: bool,
    /// The step of the last judgment that was used.
    looked: u64,
    /// The latest steps, and when they closed.
    times: VecDeque<(u64, Time)>,
    provenance: Provenance,
    out: VecDeque<Claim>,
}

impl LinkRule {
    /// Returns true if some link, or one of several candidates, is known to be slow.
    pub fn is_any_slow(&self) -> bool {
        !self.open.is_empty()
    }

    /// Ends the findings of the old group, because a new group of ranks starts.
    pub fn clear(&mut self, at: Time, world_size: u32) {
        for open in std::mem::take(&mut self.open) {
            self.end(at, &open, world_size);
        }
        *self = LinkRule {
            out: std::mem::take(&mut self.out),
            provenance: self.provenance,
            ..LinkRule::default()
        };
    }

    /// Records the provenance of the transfer times.
    pub fn trust(&mut self, provenance: Provenance) {
        self.provenance = self.provenance.max(provenance);
    }

    /// Returns the next claim.
    pub fn poll(&mut self) -> Option<Claim> {
        self.out.pop_front()
    }

    /// Returns the outcome of an open finding so far.
    pub fn outcome_now(&self, subject: &Subject, world_size: u32) -> Option<Outcome> {
        let open = self.open.iter().find(|open| open.subject == *subject)?;
        Some(open.outcome(self.step_s, world_size))
    }

    /// Takes a step. Call it after communicators have been judged up to this step.
    pub fn step(&mut self, view: &View<'_>, matrix: &StepMatrix<'_>, slow: &[OpenStraggler]) {
        self.step_s += (matrix.dur_s - self.step_s) / if self.step_s > 0.0 { SMOOTH } else { 1.0 };
        if self.times.len() == TIMES {
            self.times.pop_front();
        }
        self.times.push_back((matrix.step, view.at));
        if view.comms.judged == self.looked {
            return;
        }
        self.looked = view.comms.judged;
        self.may_join_stages = matrix.micro_batches > 1 && !view.plan.is_declared;
        self.renew(view);
        // Communicators become slow one after another. Wait until no more do, because the first one alone would point
        // to the wrong end.
        let settled = view.comms.turned + view.limits.link.settle_steps <= matrix.step;
        if settled {
            self.find(view, matrix.step, slow);
        }
    }

    /// Updates the open findings.
    fn renew(&mut self, view: &View<'_>) {
        let mut index = 0;
        while index < self.open.len() {
            let open = &mut self.open[index];
            open.account(view);
            open.comms
                .retain(|id| view.comms.get(*id).is_some_and(|comm| comm.is_slow));
            if open.comms.is_empty() {
                let open = self.open.remove(index);
                self.end(view.at, &open, view.roster.world_size);
                continue;
            }
            let was = (open.subject.clone(), open.severity, open.explained.is_some());
            open.excess = excess(open.comms.iter().filter_map(|id| view.comms.get(*id)), view);
            open.resolve(view);
            if open.subject != was.0 {
                // The slow one of the candidates is known now. End the old finding without a cost, because the new one
                // carries the cost of both.
                let outcome = Outcome {
                    lost_rank_s: 0.0,
                    ..open.outcome(self.step_s, view.roster.world_size)
                };
                let subject = was.0.clone();
                self.out
                    .push_back(over(view.at, Finding::SlowLink, subject, outcome));
            }
            let open = &mut self.open[index];
            open.severity = open.severity.max(open.severity_now(view, self.step_s));
            if was != (open.subject.clone(), open.severity, open.explained.is_some()) {
                self.claim(view, index);
            }
            index += 1;
        }
    }

    /// Finds the nodes that explain those slow communicators that have no finding yet.
    fn find(&mut self, view: &View<'_>, step: u64, slow: &[OpenStraggler]) {
        let said = |id: u64| self.open.iter().any(|open| open.comms.contains(&id));
        // A stage that was already found slow makes the next one in its pipeline wait, so communicators between them
        // are left out.
        let replica = |rank: &Rank| view.plan.place(*rank).map(|place| place.replica);
        let waits = |comm: &Comm| {
            let with = |slow: &Rank| {
                let mut members = comm.members.iter();
                members.any(|rank| rank == slow || replica(rank) == replica(slow))
            };
            let is_slow = |raised: &OpenStraggler| raised.members.iter().any(with);
            // If stages are not declared, any communicator may join them.
            (comm.joins_stages || self.may_join_stages) && slow.iter().any(is_slow)
        };
        let new: Vec<u64> = view
            .comms
            .iter()
            .filter(|(id, comm)| comm.is_slow && !said(*id) && !waits(comm))
            .map(|(id, _)| id)
            .collect();
        if new.is_empty() {
            return;
        }
        for (nodes, pair, comms) in blames(view) {
            let comms: Vec<u64> = comms.into_iter().filter(|id| new.contains(id)).collect();
            let those = || comms.iter().filter_map(|id| view.comms.get(*id));
            let worst = excess(those(), view);
            let least = view.limits.impact.warning_ratio * self.step_s;
            if comms.is_empty() || worst.seconds() < least || self.open.len() >= MAX_OPEN {
                continue;
            }
            let since_step = those().filter_map(|comm| comm.slow_since).min().unwrap_or(step);
            let mut open = Open {
                inside: nodes.len() == 1 && those().all(|comm| comm.nodes.len() == 1),
                nodes,
                pair,
                most: comms.len(),
                comms,
                subject: Subject::Job {
                    job: view.job.clone(),
                },
                since: self.time_before(since_step).unwrap_or(view.at),
                since_step,
                step,
                severity: Severity::Info,
                explained: None,
                excess: worst,
                rows: 0,
                last: since_step.saturating_sub(1),
                gain_s: 0.0,
                usual_s: 0.0,
            };
            open.account(view);
            open.resolve(view);
            // A finding that names no node can wait, because the node may still be identified.
            let is_nobodys = matches!(open.subject, Subject::Job { .. });
            if is_nobodys && step < since_step + 2 * u64::from(view.limits.link.min_steps) {
                continue;
            }
            open.severity = open.severity_now(view, self.step_s);
            // If there is already a finding on the same subject, it is the same problem.
            if let Some(same) = self.open.iter_mut().find(|same| same.subject == open.subject) {
                same.comms.extend(open.comms);
                same.most = same.most.max(same.comms.len());
                continue;
            }
            self.open.push(open);
            self.claim(view, self.open.len() - 1);
        }
    }

    /// Returns when the step before `step` closed, if that is still known.
    fn time_before(&self, step: u64) -> Option<Time> {
        let after = self.times.partition_point(|(known, _)| *known < step);
        Some(self.times.get(after.saturating_sub(1))?.1)
    }

    fn end(&mut self, at: Time, open: &Open, world_size: u32) {
        let (subject, outcome) = (open.subject.clone(), open.outcome(self.step_s, world_size));
        self.out.push_back(over(at, Finding::SlowLink, subject, outcome));
    }

    fn claim(&mut self, view: &View<'_>, index: usize) {
        let open = &self.open[index];
        let outcome = open.outcome(self.step_s, view.roster.world_size);
        let mut evidence = outcome.evidence;
        let mut signals = vec![Signal::S1];
        let mut provenance = self.provenance;
        if let Some(explained) = &open.explained {
            evidence.extend(explained.evidence.iter().cloned());
            signals.extend(&explained.signals);
            provenance = provenance.max(explained.provenance);
        }
        let detail = Detail {
            severity: open.severity,
            since: open.since,
            since_step: Some(open.since_step),
            step: Some(open.step),
            cause: open.cause(),
            signals,
            provenance,
            slowdown_ratio: outcome.slowdown_ratio,
            impact_ratio: outcome.impact_ratio,
            lost_rank_s: outcome.lost_rank_s,
            evidence,
            says: None,
        };
        self.out.push_back(Claim {
            finding: Finding::SlowLink,
            subject: open.subject.clone(),
            at: view.at,
            body: Body::Holds(Box::new(detail)),
        });
    }
}

/// Returns what explains all slow communicators: the nodes, whether two of them form a link, and the communicators.
fn blames(view: &View<'_>) -> Vec<(Vec<NodeId>, bool, Vec<u64>)> {
    let name = |node: &u32| view.plan.nodes[*node as usize].0.clone();
    let mut found = Vec::new();
    let mut crossings = Vec::new();
    let mut ids = Vec::new();
    for (id, comm) in view.comms.iter() {
        let (Some(transfer), Some(usual)) = (comm.transfer_s(&view.limits.link), comm.usual_s) else {
            continue;
        };
        match comm.nodes.as_slice() {
            [] => {}
            [node] if comm.is_slow => found.push((vec![name(node)], false, vec![id])),
            [_] => {}
            nodes => {
                ids.push(id);
                crossings.push(Crossing {
                    nodes: nodes.to_vec(),
                    excess: transfer / usual - 1.0,
                    is_slow: comm.is_slow,
                });
            }
        }
    }
    for blame in attribution::explain(&crossings) {
        found.push((
            blame.nodes.iter().map(name).collect(),
            blame.pair,
            blame.explains.iter().map(|index| ids[*index]).collect(),
        ));
    }
    found
}
