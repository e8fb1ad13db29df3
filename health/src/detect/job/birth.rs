//! The absolute axis: slow from the first step on, which neither the past nor the peers can show. Compared is what was
//! measured before the job (preflight), or in an earlier run of the same shape.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use super::scene::Scene;
use super::shift::Shift;
use super::slower::{Level, Slower};
use crate::detect::claim::{Claim, Outcome, piece};
use crate::event::{Baseline, BaselineOf, StepKind};
use crate::id::NodeId;
use crate::policy::ShiftThresholds;
use crate::stats;
use crate::time::Time;
use crate::verdict::{Finding, Subject};

/// Nodes whose baselines are kept; more than that is not one job.
const MAX_NODES: usize = 1 << 17;
/// Who measures before a job begins.
const PREFLIGHT: &str = "preflight";

/// See the module.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Birth {
    /// Seconds of an ordinary step.
    preflight_s: Option<f64>,
    earlier_s: Option<f64>,
    nodes: BTreeMap<NodeId, OfNode>,
    /// The first step of the epoch.
    first: Option<(u64, Time)>,
    judged: bool,
    open: Vec<Slower>,
}

/// One node: self-time of an ordinary step, and the latest, ln seconds.
#[derive(Debug, Default, Serialize, Deserialize)]
struct OfNode {
    baseline_s: f64,
    latest: VecDeque<f64>,
}

impl Birth {
    /// Takes a baseline. A later one of the same is the better one.
    pub fn know(&mut self, baseline: &Baseline) {
        if !(baseline.seconds.is_finite() && baseline.seconds > 0.0) {
            return;
        }
        match &baseline.of {
            BaselineOf::Step if &*baseline.source == PREFLIGHT => self.preflight_s = Some(baseline.seconds),
            BaselineOf::Step => self.earlier_s = Some(baseline.seconds),
            BaselineOf::SelfTime { node } => {
                if self.nodes.len() < MAX_NODES || self.nodes.contains_key(node) {
                    self.nodes.entry(node.clone()).or_default().baseline_s = baseline.seconds;
                }
            }
        }
    }

    /// A new group of ranks begins.
    pub fn begin_epoch(&mut self, at: Time, ranks: u32, out: &mut VecDeque<Claim>) {
        out.extend(self.open.drain(..).map(|slower| slower.end(at, ranks)));
        for node in self.nodes.values_mut() {
            node.latest.clear();
        }
        self.first = None;
        self.judged = false;
    }

    /// The first step of the epoch.
    pub fn first_step(&self) -> Option<u64> {
        self.first.map(|(step, _)| step)
    }

    /// Takes a step, after `shift` has.
    pub fn row(&mut self, scene: &Scene<'_>, shift: &Shift, out: &mut VecDeque<Claim>) {
        let matrix = scene.matrix;
        self.first.get_or_insert((matrix.step, matrix.at));
        let known = self.preflight_s.is_some() || self.earlier_s.is_some() || !self.nodes.is_empty();
        if !known || !scene.steady || matrix.kind != StepKind::Train {
            return;
        }
        let table = &scene.view.limits.shift;
        let held = table.held_steps as usize;
        self.keep(scene, held);
        let latest = shift.latest(held);
        self.follow(scene, &latest, table, out);
        if !self.judged && shift.steps() >= held as u64 {
            self.judged = true;
            self.judge(scene, &latest, table, out);
        }
    }

    /// What there is to say of an open finding up to now.
    pub fn outcome_now(&self, finding: Finding, subject: &Subject, ranks: u32) -> Option<Outcome> {
        let same = |slower: &&Slower| slower.finding == finding && slower.subject == *subject;
        Some(self.open.iter().find(same)?.outcome(ranks))
    }

    /// Share of a step that would be won if nothing of this held.
    pub fn open_share(&self) -> f64 {
        let jobs = self.open.iter().filter(|slower| slower.is_of_job());
        jobs.map(Slower::share).fold(0.0, f64::max)
    }

    /// Keeps what the nodes do that have a baseline.
    fn keep(&mut self, scene: &Scene<'_>, held: usize) {
        if self.nodes.is_empty() {
            return;
        }
        let plan = scene.view.plan;
        let mut by_node: Vec<Vec<f64>> = vec![Vec::new(); plan.nodes.len()];
        for rank_step in &scene.matrix.rank_steps {
            if let Some(ranks) = by_node.get_mut(rank_step.place.node as usize) {
                ranks.push(rank_step.fair_s);
            }
        }
        for ((name, _), mut ranks) in plan.nodes.iter().zip(by_node) {
            if let (Some(node), Some(own)) = (self.nodes.get_mut(name), stats::median(&mut ranks)) {
                node.latest.push_back(own.ln());
                let surplus = node.latest.len().saturating_sub(held);
                node.latest.drain(..surplus);
            }
        }
    }

    fn follow(&mut self, scene: &Scene<'_>, job: &[f64], table: &ShiftThresholds, out: &mut VecDeque<Claim>) {
        let nodes = &self.nodes;
        let ranks = scene.view.roster.world_size;
        self.open.retain_mut(|slower| {
            let of_node = match &slower.subject {
                Subject::Node { node } => nodes.get(node).map(OfNode::values),
                _ => None,
            };
            let latest = of_node.as_deref().unwrap_or(job);
            let Some(now) = latest.last() else { return true };
            if slower.take(scene, *now) {
                out.push_back(slower.claim(scene));
            }
            let over = slower.is_over(latest, table);
            if over {
                out.push_back(slower.end(scene.view.at, ranks));
            }
            !over
        });
    }

    /// The first steady steps of an epoch beside what they should be.
    fn judge(&mut self, scene: &Scene<'_>, job: &[f64], table: &ShiftThresholds, out: &mut VecDeque<Claim>) {
        let mut found = Vec::new();
        let of_job = [
            (self.preflight_s, Finding::SlowFromBirth),
            (self.earlier_s, Finding::StepRegression),
        ];
        for (baseline, finding) in of_job {
            found.extend(baseline.and_then(|seconds| {
                let base = base(seconds, job).filter(|base| base.is_left(job, table))?;
                Some((finding, scene.job(), base, job.to_vec()))
            }));
        }
        let slow = self.slow_nodes(table);
        let nodes = scene.view.plan.nodes.len() as f64;
        let limits = &scene.view.limits.straggler;
        let count = slow.len();
        let many =
            count >= limits.correlated_min_ranks as usize && count as f64 > limits.correlated_ratio * nodes;
        let is_born = |(finding, subject, ..): &(Finding, Subject, Level, Vec<f64>)| {
            *finding == Finding::SlowFromBirth && *subject == scene.job()
        };
        if !many {
            found.extend(
                slow.into_iter().map(|(node, base, values)| {
                    (Finding::SlowFromBirth, Subject::Node { node }, base, values)
                }),
            );
        } else if !found.iter().any(is_born) {
            // What holds so many nodes is none's own. The step is as much longer as they are.
            let base = step_without(job, &slow).filter(|base| base.is_left(job, table));
            found.extend(base.map(|base| (Finding::SlowFromBirth, scene.job(), base, job.to_vec())));
        }
        // Measured before the job on these nodes says more than an earlier run does.
        if found.iter().any(is_born) {
            found.retain(is_born);
        }
        let first = self.first.unwrap_or((scene.matrix.step, scene.view.at));
        for (finding, subject, base, values) in found {
            let evidence = match count {
                0 => Vec::new(),
                count => vec![piece("slow_nodes", count as f64, None)],
            };
            let slower = Slower::new(scene, finding, subject, base, first, &values, evidence);
            out.push_back(slower.claim(scene));
            self.open.push(slower);
        }
    }
}

impl Birth {
    fn slow_nodes(&self, table: &ShiftThresholds) -> Vec<(NodeId, Level, Vec<f64>)> {
        let slow = self.nodes.iter().filter_map(|(name, node)| {
            let values = node.values();
            let base = base(node.baseline_s, &values)?;
            base.is_left(&values, table).then(|| (name.clone(), base, values))
        });
        slow.collect()
    }
}

impl OfNode {
    fn values(&self) -> Vec<f64> {
        self.latest.iter().copied().collect()
    }
}

/// What the job's step (ln seconds, of late) would be if none of `slow` took longer than its baseline.
fn step_without(job: &[f64], slow: &[(NodeId, Level, Vec<f64>)]) -> Option<Level> {
    let excess_s =
        |(_, base, values): &(NodeId, Level, Vec<f64>)| stats::mean(values).exp() - base.mean.exp();
    let excess_s = stats::median(&mut slow.iter().map(excess_s).collect::<Vec<_>>())?;
    let step_s = stats::mean(job).exp();
    (step_s > excess_s).then(|| base(step_s - excess_s, job))?
}

/// What should be, with the noise of what is.
fn base(seconds: f64, values: &[f64]) -> Option<Level> {
    let now = Level::of(values)?;
    Some(Level {
        mean: seconds.ln(),
        sigma: now.sigma,
    })
}
