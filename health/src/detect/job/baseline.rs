//! Findings against a baseline. They detect a job that is slow from its first step, which neither its own past nor a
//! comparison of its ranks can show. The baseline comes from the preflight or from an earlier run of the same shape.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use super::job_step::JobStep;
use super::level_shift::{Level, LevelShift};
use super::regression::Regression;
use crate::detect::claim::{Claim, Outcome, piece};
use crate::event::{Baseline, BaselineOf, StepKind};
use crate::id::NodeId;
use crate::policy::ShiftThresholds;
use crate::stats;
use crate::time::Time;
use crate::verdict::{Finding, Subject};

/// Maximum number of nodes whose baselines are kept. No job has more.
const MAX_NODES: usize = 1 << 17;
/// Source name of baselines that are measured before a job begins.
const PREFLIGHT: &str = "preflight";

/// Compares the first steady steps of an epoch with the baselines.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct BaselineRule {
    /// Baseline of an ordinary step in seconds: from the preflight, and from an earlier run.
    preflight_s: Option<f64>,
    earlier_s: Option<f64>,
    nodes: BTreeMap<NodeId, OfNode>,
    /// The first step of the epoch.
    first: Option<(u64, Time)>,
    judged: bool,
    open: Vec<LevelShift>,
}

/// One node: its baseline self-time in an ordinary step, and its latest self-times as ln seconds.
#[derive(Debug, Default, Serialize, Deserialize)]
struct OfNode {
    baseline_s: f64,
    latest: VecDeque<f64>,
}

impl BaselineRule {
    /// Sets a baseline. A later one for the same quantity replaces it.
    pub fn set_baseline(&mut self, baseline: &Baseline) {
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

    /// Ends the open findings, because a new group of ranks starts.
    pub fn begin_epoch(&mut self, at: Time, ranks: u32, out: &mut VecDeque<Claim>) {
        out.extend(self.open.drain(..).map(|slower| slower.end(at, ranks)));
        for node in self.nodes.values_mut() {
            node.latest.clear();
        }
        self.first = None;
        self.judged = false;
    }

    /// Returns the first step of the epoch.
    pub fn first_step(&self) -> Option<u64> {
        self.first.map(|(step, _)| step)
    }

    /// Takes a step. Call it after `regression` has taken the step.
    pub fn row(&mut self, job_step: &JobStep<'_>, regression: &Regression, out: &mut VecDeque<Claim>) {
        let matrix = job_step.matrix;
        self.first.get_or_insert((matrix.step, matrix.at));
        let known = self.preflight_s.is_some() || self.earlier_s.is_some() || !self.nodes.is_empty();
        if !known || !job_step.steady || matrix.kind != StepKind::Train {
            return;
        }
        let table = &job_step.view.limits.shift;
        let held = table.held_steps as usize;
        self.keep(job_step, held);
        let latest = regression.latest(held);
        self.follow(job_step, &latest, table, out);
        if !self.judged && regression.steps() >= held as u64 {
            self.judged = true;
            self.judge(job_step, &latest, table, out);
        }
    }

    /// Returns the outcome of an open finding so far.
    pub fn outcome_now(&self, finding: Finding, subject: &Subject, ranks: u32) -> Option<Outcome> {
        let same = |slower: &&LevelShift| slower.finding == finding && slower.subject == *subject;
        Some(self.open.iter().find(same)?.outcome(ranks))
    }

    /// Returns the share of a step that would be gained without these findings.
    pub fn open_share(&self) -> f64 {
        let jobs = self.open.iter().filter(|slower| slower.is_of_job());
        jobs.map(LevelShift::share).fold(0.0, f64::max)
    }

    /// Keeps the self-times of nodes that have a baseline.
    fn keep(&mut self, job_step: &JobStep<'_>, held: usize) {
        if self.nodes.is_empty() {
            return;
        }
        let plan = job_step.view.plan;
        let mut by_node: Vec<Vec<f64>> = vec![Vec::new(); plan.nodes.len()];
        for rank_step in &job_step.matrix.rank_steps {
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

    fn follow(
        &mut self,
        job_step: &JobStep<'_>,
        job: &[f64],
        table: &ShiftThresholds,
        out: &mut VecDeque<Claim>,
    ) {
        let nodes = &self.nodes;
        let ranks = job_step.view.roster.world_size;
        self.open.retain_mut(|slower| {
            let of_node = match &slower.subject {
                Subject::Node { node } => nodes.get(node).map(OfNode::values),
                _ => None,
            };
            let latest = of_node.as_deref().unwrap_or(job);
            let Some(now) = latest.last() else { return true };
            if slower.take(job_step, *now) {
                out.push_back(slower.claim(job_step));
            }
            let over = slower.is_over(latest, table);
            if over {
                out.push_back(slower.end(job_step.view.at, ranks));
            }
            !over
        });
    }

    /// Compares the first steady steps of an epoch with the baselines.
    fn judge(
        &mut self,
        job_step: &JobStep<'_>,
        job: &[f64],
        table: &ShiftThresholds,
        out: &mut VecDeque<Claim>,
    ) {
        let mut found = Vec::new();
        let of_job = [
            (self.preflight_s, Finding::SlowFromBirth),
            (self.earlier_s, Finding::StepRegression),
        ];
        for (baseline, finding) in of_job {
            found.extend(baseline.and_then(|seconds| {
                let base = base(seconds, job).filter(|base| base.is_left(job, table))?;
                Some((finding, job_step.job(), base, job.to_vec()))
            }));
        }
        let slow = self.slow_nodes(table);
        let nodes = job_step.view.plan.nodes.len() as f64;
        let limits = &job_step.view.limits.straggler;
        let count = slow.len();
        let many =
            count >= limits.correlated_min_ranks as usize && count as f64 > limits.correlated_ratio * nodes;
        let is_born = |(finding, subject, ..): &(Finding, Subject, Level, Vec<f64>)| {
            *finding == Finding::SlowFromBirth && *subject == job_step.job()
        };
        if !many {
            found.extend(
                slow.into_iter().map(|(node, base, values)| {
                    (Finding::SlowFromBirth, Subject::Node { node }, base, values)
                }),
            );
        } else if !found.iter().any(is_born) {
            // A slowdown of so many nodes belongs to no single node, so the job gets the finding. Its base is the step
            // time without the nodes' excess.
            let base = step_without(job, &slow).filter(|base| base.is_left(job, table));
            found.extend(base.map(|base| (Finding::SlowFromBirth, job_step.job(), base, job.to_vec())));
        }
        // If a measurement on these nodes before the job shows the slowdown, findings against an earlier run are
        // dropped, because they are weaker evidence.
        if found.iter().any(is_born) {
            found.retain(is_born);
        }
        let first = self.first.unwrap_or((job_step.matrix.step, job_step.view.at));
        for (finding, subject, base, values) in found {
            let evidence = match count {
                0 => Vec::new(),
                count => vec![piece("slow_nodes", count as f64, None)],
            };
            let slower = LevelShift::new(job_step, finding, subject, base, first, &values, evidence);
            out.push_back(slower.claim(job_step));
            self.open.push(slower);
        }
    }
}

impl BaselineRule {
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

/// Returns the job's recent step time (ln seconds) as it would be if no node of `slow` exceeded its baseline.
fn step_without(job: &[f64], slow: &[(NodeId, Level, Vec<f64>)]) -> Option<Level> {
    let excess_s =
        |(_, base, values): &(NodeId, Level, Vec<f64>)| stats::mean(values).exp() - base.mean.exp();
    let excess_s = stats::median(&mut slow.iter().map(excess_s).collect::<Vec<_>>())?;
    let step_s = stats::mean(job).exp();
    (step_s > excess_s).then(|| base(step_s - excess_s, job))?
}

/// Returns the expected level, with the noise of the actual one.
fn base(seconds: f64, values: &[f64]) -> Option<Level> {
    let now = Level::of(values)?;
    Some(Level {
        mean: seconds.ln(),
        sigma: now.sigma,
    })
}
