//! Runs one world through the detector and the other rules, and collects verdicts and truth.

use std::collections::BTreeMap;

use paceline_health::event::Event;
use paceline_health::sim::{Truth, World};
use paceline_health::verdict::{Cause, Finding, Severity, Verdict};
use paceline_health::{Detector, Policy};

use super::baselines::{Baselines, Naming};
use super::expect::{Gpus, Who};
use super::suite::Job;

/// One incident: a later verdict with the same number updates it, unless it has another finding or subject. Those are
/// separate claims.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Claim {
    /// What was found.
    pub(super) finding: Finding,
    /// Its subject.
    pub(super) who: Who,
    /// The current training step of the harness when it was first raised.
    pub(super) step: u64,
    /// The cause in its last state.
    pub(super) cause: Cause,
    /// The worst severity.
    pub(super) severity: Severity,
    /// The cost in its last state, GPU-seconds.
    pub(super) lost_gpu_s: f64,
}

/// The outcome of one world.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    /// The detector's verdicts, in order.
    pub(super) claims: Vec<Claim>,
    /// The ranks named by the other rules.
    pub(super) namings: Vec<Naming>,
    /// The simulated faults.
    pub(super) truths: Vec<Truth>,
    /// Ranks of the job.
    pub(super) ranks: u32,
    /// Ranks of each node.
    pub(super) per_node: u32,
    /// Samples that reached the detector.
    pub(super) rank_steps: u64,
    /// Steps received over expected, from the report.
    pub(super) steps_ratio: Option<f64>,
    /// Whether the report shows a gap in a node's monitoring.
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
    // Only the report has the final cost and cause: no verdict is raised for them unless something else changes.
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
    /// Index of the current claim of each incident.
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
