//! Runs one world through the detector and the other rules, and collects their verdicts and the truth.

use std::collections::BTreeMap;

use paceline_health::event::Event;
use paceline_health::sim::{Truth, World};
use paceline_health::verdict::{Cause, Finding, Severity, Verdict};
use paceline_health::{Detector, Policy};

use super::baselines::{Baselines, Naming};
use super::expect::{Gpus, Who};
use super::suite::Job;

/// One incident. A later verdict with the same number updates the claim, unless it has another finding or subject. In
/// that case it becomes a separate claim.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Claim {
    /// The finding of the verdict.
    pub(super) finding: Finding,
    /// The subject of the verdict.
    pub(super) who: Who,
    /// The simulation's current training step when the verdict was first raised.
    pub(super) step: u64,
    /// The cause that was stated last.
    pub(super) cause: Cause,
    /// The worst severity of the incident.
    pub(super) severity: Severity,
    /// The cost that was stated last, in GPU-seconds.
    pub(super) lost_gpu_s: f64,
}

/// The outcome of one world.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    /// The detector's verdicts, in order.
    pub(super) claims: Vec<Claim>,
    /// The ranks that the other rules named.
    pub(super) namings: Vec<Naming>,
    /// The simulated faults.
    pub(super) truths: Vec<Truth>,
    /// Number of ranks of the job.
    pub(super) ranks: u32,
    /// Number of ranks on each node.
    pub(super) per_node: u32,
    /// Number of samples that reached the detector.
    pub(super) rank_steps: u64,
    /// Share of the expected steps that was received, from the report.
    pub(super) steps_ratio: Option<f64>,
    /// True if the report shows a gap in the monitoring of a node.
    pub(super) gaps: bool,
}

/// Simulates and judges one world.
pub(super) fn watch(job: &Job) -> Outcome {
    let mut outcome = Outcome {
        claims: Vec::new(),
        namings: Vec::new(),
        truths: Vec::new(),
        ranks: job.spec.ranks(),
        per_node: job.spec.gpus_per_node,
        rank_steps: 0,
        steps_ratio: None,
        gaps: false,
    };
    let Ok(mut world) = World::new(job.spec.clone()) else {
        return outcome;
    };
    let mut detector = Detector::new(Policy::default());
    let mut others = Baselines::new(outcome.ranks);
    let mut claims = Claims::default();
    for (at, frame) in world.by_ref() {
        if let Event::Step(step) = &frame.event {
            outcome.rank_steps += 1;
            claims.step = claims.step.max(step.step);
            others.observe(step);
        }
        claims.gpus.observe(&frame.event);
        detector.observe(at, &frame);
        while let Some(verdict) = detector.poll() {
            claims.take(&verdict);
        }
    }
    let report = detector.report();
    // Take the verdicts of the report too, because only it has the final cost and cause. If nothing else changes, no
    // further verdict is raised for these.
    report.verdicts.iter().for_each(|verdict| claims.take(verdict));
    outcome.steps_ratio = report.coverage.steps_ratio;
    outcome.gaps = !report.coverage.gaps.is_empty();
    outcome.claims = claims.said;
    outcome.namings = others.finish();
    outcome.truths = world.truth().to_vec();
    outcome
}

#[derive(Default)]
struct Claims {
    gpus: Gpus,
    step: u64,
    said: Vec<Claim>,
    /// Index in the list of claims of the current claim of each incident.
    present: BTreeMap<u64, usize>,
}

impl Claims {
    fn take(&mut self, verdict: &Verdict) {
        let who = Who::of(&verdict.subject, &self.gpus);
        let same = |claim: &Claim| claim.finding == verdict.finding && claim.who == who;
        let index = self
            .present
            .get(&verdict.id)
            .copied()
            .filter(|index| same(&self.said[*index]));
        let index = index.unwrap_or_else(|| {
            self.said.push(Claim {
                finding: verdict.finding,
                who,
                step: self.step,
                cause: verdict.cause,
                severity: verdict.severity,
                lost_gpu_s: 0.0,
            });
            self.said.len() - 1
        });
        self.present.insert(verdict.id, index);
        let claim = &mut self.said[index];
        claim.cause = verdict.cause;
        claim.severity = claim.severity.max(verdict.severity);
        claim.lost_gpu_s = verdict.lost_gpu_hours * 3600.0;
    }
}
