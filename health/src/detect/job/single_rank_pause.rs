//! One rank alone pauses repeatedly and all others wait for it. It evaluates or saves for all of them, or does
//! something that is not declared.
//!
//! A pause is a step in which one rank's own time exceeds the usual and no other rank's does, while the others' steps
//! are as long as its own. A single pause may be chance. Several pauses at equal distances count as a habit, and so do
//! several with the same measured phase. Pauses from garbage collection are not covered here, because they have a
//! finding of their own.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use crate::detect::claim::{Body, Claim, Detail, Outcome, over, piece};
use crate::detect::cost::ledger::{Ledger, Stood};
use crate::detect::step::classifier::{OutlierTrack, StepClassifier};
use crate::detect::step::matrix::StepMatrix;
use crate::detect::step::rows::Sample;
use crate::detect::view::View;
use crate::event::{Signal, StepKind};
use crate::frame::Provenance;
use crate::id::Rank;
use crate::policy::{KindThresholds, Thresholds};
use crate::stats;
use crate::time::Time;
use crate::verdict::{Cause, Evidence, Finding, Severity, Subject};

/// Maximum number of pauses kept, over all ranks.
const MAX_PAUSES: usize = 64;
/// A rank pauses alone only if no other rank's excess is more than this share of its own excess, and no other rank
/// stands out.
const ALONE_RATIO: f64 = 0.1;
/// Pauses of one kind differ in duration by at most this factor.
const ALIKE_RATIO: f64 = 2.0;
/// A phase explains a pause if it takes at least this share of it.
const EXPLAINED_RATIO: f64 = 0.5;
/// Distances below this are more often equal by chance, so one more is required. For a rank that is slow by chance in
/// one step of twenty, three equal distances in a row have a probability of 1 in 1,200. If they are 16 steps or more,
/// it is 1 in 12,000.
const SHORT_PERIOD: u64 = 16;
/// A habit is over after this many periods without a pause.
const MISSED_PERIODS: u64 = 3;

/// The state of this rule.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct SingleRankPauses {
    /// ln of each step's duration divided by its duration without the longest rank.
    lone: OutlierTrack,
    /// Sum of the durations of all steps so far, seconds.
    elapsed_s: f64,
    recent: VecDeque<Pause>,
    /// The pause in the latest step.
    latest: Option<Pause>,
    open: BTreeMap<Rank, Open>,
}

/// A step that one rank alone delayed.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Pause {
    rank: Rank,
    step: u64,
    at: Time,
    pause_s: f64,
    /// The phase that was measured in the pause. Unknown if no declared phase was.
    cause: Cause,
    /// Waits in the step: that of the pausing rank, and the median of the others.
    wait_s: f64,
    others_wait_s: f64,
    elapsed_s: f64,
}

/// A rank with an open finding.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Open {
    subject: Subject,
    severity: Severity,
    first: Pause,
    last: Pause,
    /// Typical pause and period at the step in which the finding was raised.
    typical_s: f64,
    period: u64,
    raised_step: u64,
    /// Lost share of the job's GPU time, times the step's seconds: in the first pause, and in all later ones.
    first_lost_s: f64,
    later_lost_s: f64,
}

impl SingleRankPauses {
    /// Ends all open findings, because a new group of ranks starts.
    pub fn end(&mut self, at: Time, ranks: u32, out: &mut VecDeque<Claim>) {
        for (_, open) in std::mem::take(&mut self.open) {
            let outcome = open.outcome(ranks);
            out.push_back(over(at, Finding::SingleRankPause, open.subject, outcome));
        }
        *self = SingleRankPauses::default();
    }

    /// Learns again what is usual, because ranks changed their place in the layout.
    pub fn on_layout_change(&mut self) {
        self.lone = OutlierTrack::default();
        self.recent.clear();
        self.latest = None;
    }

    /// Takes a step before it is classified. Returns true if the step belongs to a habit.
    pub fn observe(
        &mut self,
        matrix: &StepMatrix<'_>,
        classifier: &StepClassifier,
        limits: &Thresholds,
    ) -> bool {
        self.elapsed_s += matrix.dur_s;
        self.latest = None;
        let Some((pause, is_lone)) = longest(matrix, classifier, self.elapsed_s, &limits.kinds) else {
            return false;
        };
        let without_s = (matrix.dur_s - pause.pause_s).max(1e-9);
        let excess = (matrix.dur_s.max(1e-9) / without_s).ln();
        if !self.lone.stands_out(matrix.step, excess, &limits.kinds) || !is_lone {
            return false;
        }
        self.latest = Some(pause);
        self.recent.push_back(pause);
        if self.recent.len() > MAX_PAUSES {
            self.recent.pop_front();
        }
        self.is_known(&pause) || self.habit(&pause, &limits.kinds).is_some()
    }

    /// Takes the same step again and claims findings. The ledger leaves out the seconds that are claimed here.
    pub fn row(
        &mut self,
        view: &View<'_>,
        matrix: &StepMatrix<'_>,
        (stood, provenance): (Stood, Provenance),
        ledger: &mut Ledger,
        out: &mut VecDeque<Claim>,
    ) {
        self.end_missed(view, matrix.step, out);
        let Some(pause) = self.latest else { return };
        let ranks = view.roster.world_size;
        // The pausing rank loses nothing, because it works meanwhile. Standstill is subtracted, because it is claimed
        // elsewhere.
        let lost_s = |pause: &Pause, stood_s: f64| {
            let others = f64::from(ranks.saturating_sub(1)) / f64::from(ranks.max(1));
            (pause.pause_s - stood_s).max(0.0) * others
        };
        let now_s = lost_s(&pause, stood.here_s);
        let is_known = self.is_known(&pause);
        let habit = self.habit(&pause, &view.limits.kinds).filter(|_| !is_known);
        if let Some(open) = self.open.get_mut(&pause.rank) {
            if is_known {
                open.last = pause;
            } else if habit.is_some() {
                // A rank may both evaluate and save. This is one finding, whose cause does not change with each pause.
                open.last.elapsed_s = pause.elapsed_s;
            } else {
                return;
            }
            open.later_lost_s += now_s;
            ledger.report(now_s);
            let severity = view.limits.impact.severity(open.impact());
            if severity > open.severity {
                open.severity = severity;
                out.push_back(open.claim(matrix, view, provenance));
            }
            return;
        }
        let Some(pauses) = habit else { return };
        let (Some(first), Some(subject)) = (pauses.first(), view.roster.subject(pause.rank)) else {
            return;
        };
        let mut open = Open {
            subject,
            severity: Severity::Info,
            first: *first,
            last: pause,
            typical_s: stats::median(&mut pauses.iter().map(|each| each.pause_s).collect::<Vec<_>>())
                .unwrap_or(pause.pause_s),
            period: period(&pauses),
            raised_step: matrix.step,
            first_lost_s: lost_s(first, 0.0),
            later_lost_s: now_s,
        };
        let between = &pauses[1..pauses.len() - 1];
        open.later_lost_s += between.iter().map(|each| lost_s(each, 0.0)).sum::<f64>();
        open.severity = view.limits.impact.severity(open.impact());
        if open.severity == Severity::Info {
            // The loss of the others is too small to be reported.
            return;
        }
        ledger.report(now_s);
        for each in &pauses[..pauses.len() - 1] {
            ledger.take_over(each.step, lost_s(each, 0.0));
        }
        out.push_back(open.claim(matrix, view, provenance));
        self.open.insert(pause.rank, open);
    }

    /// Returns the outcome of an open finding so far.
    pub fn outcome_now(&self, subject: &Subject, ranks: u32) -> Option<Outcome> {
        let open = self.open.values().find(|open| open.subject == *subject)?;
        Some(open.outcome(ranks))
    }

    /// Ends findings whose pauses have not recurred for a long time.
    fn end_missed(&mut self, view: &View<'_>, step: u64, out: &mut VecDeque<Claim>) {
        let ranks = view.roster.world_size;
        self.open.retain(|_, open| {
            let missed = step.saturating_sub(open.last.step) > MISSED_PERIODS * open.period;
            if missed {
                let (subject, outcome) = (open.subject.clone(), open.outcome(ranks));
                out.push_back(over(view.at, Finding::SingleRankPause, subject, outcome));
            }
            !missed
        });
    }

    /// Returns true if the pause belongs to an open finding.
    fn is_known(&self, pause: &Pause) -> bool {
        let open = self.open.get(&pause.rank);
        open.is_some_and(|open| open.last.cause == pause.cause && alike(open.typical_s, pause.pause_s))
    }

    /// Returns the pauses that form a habit with `latest`, which is the last of them.
    fn habit(&self, latest: &Pause, table: &KindThresholds) -> Option<Vec<Pause>> {
        let is_alike = |known: &&Pause| {
            known.rank == latest.rank && known.cause == latest.cause && alike(known.pause_s, latest.pause_s)
        };
        let mut pauses: Vec<Pause> = self.recent.iter().filter(is_alike).copied().collect();
        let gaps: Vec<u64> = pauses
            .windows(2)
            .map(|pair| pair[1].step - pair[0].step)
            .collect();
        let last = *gaps.last()?;
        let needed = match latest.cause {
            Cause::Unknown => table.recurrences + u32::from(last < SHORT_PERIOD),
            // Fewer recurrences are needed here, because the same measured phase each time is no chance.
            _ => table.recurrences.saturating_sub(1).max(1),
        } as usize;
        let from = gaps.len().checked_sub(needed)?;
        // Consecutive slow steps are not a period.
        let is_apart = gaps[from..].iter().all(|gap| *gap > 2);
        let is_even = gaps[from..].iter().all(|gap| *gap == last);
        (is_apart && (is_even || latest.cause != Cause::Unknown)).then(|| pauses.split_off(from))
    }
}

/// Returns the rank furthest above the usual, its distance to the next rank, and whether it alone stood out while the
/// others' steps were as long as its own. `elapsed_s` is the sum of durations at the end of the step.
fn longest(
    matrix: &StepMatrix<'_>,
    classifier: &StepClassifier,
    elapsed_s: f64,
    table: &KindThresholds,
) -> Option<(Pause, bool)> {
    // Skip the step if few ranks reported, because they do not represent the others.
    if matrix.rank_steps.len() < 2 || matrix.rank_steps.len() * 2 <= matrix.plan.ranks {
        return None;
    }
    let usual: Vec<Option<f64>> = (0..matrix.roles.len() as u32)
        .map(|role| classifier.usual_s(role))
        .collect();
    let (mut top, mut next) = ((f64::NEG_INFINITY, 0), f64::NEG_INFINITY);
    for (index, rank_step) in matrix.rank_steps.iter().enumerate() {
        let usual_s = usual.get(rank_step.place.role as usize).copied().flatten()?;
        let excess_s = rank_step.self_s + rank_step.sample.checkpoint_s - usual_s;
        if excess_s > top.0 {
            (next, top) = (top.0, (excess_s, index));
        } else {
            next = next.max(excess_s);
        }
    }
    let rank_step = &matrix.rank_steps[top.1];
    let pause_s = (top.0 - next.max(0.0)).max(0.0);
    let notable_s = (table.jump_ratio - 1.0) * (matrix.dur_s - top.0).max(0.0);
    let is_alone = pause_s >= notable_s
        && next <= notable_s.max(ALONE_RATIO * top.0)
        && rank_step.sample.gc_s < EXPLAINED_RATIO * pause_s;
    let cause = if rank_step.sample.checkpoint_s >= EXPLAINED_RATIO * pause_s {
        Cause::Checkpoint
    } else if matrix.kind == StepKind::Evaluation {
        Cause::Evaluation
    } else {
        Cause::Unknown
    };
    let mut pause = Pause {
        rank: rank_step.rank,
        step: matrix.step,
        at: matrix.at,
        pause_s,
        cause,
        wait_s: rank_step.sample.wait_s,
        others_wait_s: 0.0,
        elapsed_s,
    };
    if !is_alone {
        return Some((pause, false));
    }
    let others = |of: fn(&Sample) -> f64| {
        let rank_steps = matrix.rank_steps.iter().enumerate();
        let others = rank_steps.filter(|(index, _)| *index != top.1);
        let mut values: Vec<f64> = others.map(|(_, rank_step)| of(&rank_step.sample)).collect();
        stats::median(&mut values)
    };
    pause.others_wait_s = others(|sample| sample.wait_s)?;
    let they_wait = others(|sample| sample.dur_s)? >= rank_step.sample.dur_s - 0.5 * pause_s;
    Some((pause, they_wait))
}

fn alike(one_s: f64, other_s: f64) -> bool {
    one_s <= ALIKE_RATIO * other_s && other_s <= ALIKE_RATIO * one_s
}

/// Returns the usual distance between pauses, in steps.
fn period(pauses: &[Pause]) -> u64 {
    let mut gaps: Vec<u64> = pauses
        .windows(2)
        .map(|pair| pair[1].step - pair[0].step)
        .collect();
    gaps.sort_unstable();
    gaps.get(gaps.len() / 2).copied().unwrap_or(1).max(1)
}

impl Open {
    /// Returns the share of the job's GPU time lost from the first pause to the last.
    fn impact(&self) -> f64 {
        let of_s = self.last.elapsed_s - self.first.elapsed_s;
        (self.later_lost_s / of_s.max(1e-9)).clamp(0.0, 1.0)
    }

    fn outcome(&self, ranks: u32) -> Outcome {
        Outcome {
            lost_rank_s: (self.first_lost_s + self.later_lost_s) * f64::from(ranks),
            impact_ratio: Some(self.impact()),
            ..Outcome::default()
        }
    }

    fn claim(&self, matrix: &StepMatrix<'_>, view: &View<'_>, provenance: Provenance) -> Claim {
        let outcome = self.outcome(view.roster.world_size);
        let detail = Detail {
            severity: self.severity,
            since: self.first.at,
            since_step: Some(self.first.step),
            step: Some(self.raised_step),
            cause: self.last.cause,
            signals: vec![if matrix.is_empty() {
                Signal::S0
            } else {
                matrix.signal
            }],
            provenance,
            slowdown_ratio: None,
            impact_ratio: outcome.impact_ratio,
            lost_rank_s: outcome.lost_rank_s,
            evidence: self.evidence(),
            says: None,
        };
        Claim {
            finding: Finding::SingleRankPause,
            subject: self.subject.clone(),
            at: view.at,
            body: Body::Holds(Box::new(detail)),
        }
    }

    fn evidence(&self) -> Vec<Evidence> {
        let mut evidence = vec![
            piece("pause_s", self.typical_s, None),
            piece("pause_every_steps", self.period as f64, None),
            piece("wait_s", self.last.wait_s, Some(self.last.others_wait_s)),
        ];
        if self.last.cause == Cause::Unknown {
            evidence.push(piece("undeclared_pause", 1.0, None));
        }
        evidence
    }
}
