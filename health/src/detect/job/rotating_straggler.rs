//! Rotating stragglers: different ranks are slow one after another, for the same cause. Each rank is reported while it
//! is slow. The rotation itself is a finding of the job and not of a node.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use super::job_step::JobStep;
use crate::detect::claim::{Claim, Detail, Outcome, over, piece};
use crate::detect::straggler::StragglerRule;
use crate::detect::straggler::open_straggler::Extent;
use crate::event::StepKind;
use crate::id::Rank;
use crate::time::Time;
use crate::verdict::{Cause, Finding, Subject};

/// Number of ordinary steps kept.
const KEPT: usize = 256;
/// Minimum number of different ranks that must have been slow.
const RANKS: usize = 3;
/// Maximum share of the slow steps that may belong to one rank.
const ONE: f64 = 2.0 / 3.0;
/// Causes that can move from rank to rank. A hardware fault cannot, because it stays on its rank.
const ROTATING: [(Cause, Finding); 3] = [
    (Cause::CpuContention, Finding::CpuContention),
    (Cause::GcPause, Finding::GcPause),
    (Cause::DataLoading, Finding::DataLoading),
];

/// One step in which a rank was slow because of the cause, and the share of the step that this cost.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Turn {
    step: u64,
    at: Time,
    rank: Rank,
    share: f64,
}

/// The recent steps of one cause.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Track {
    /// The slow rank of each step, or `None` if no rank was slow because of this cause.
    turns: VecDeque<Option<Turn>>,
    open: bool,
    /// Total seconds lost to slow ranks without a finding of their own: when the rotation was reported, and now.
    untold_s: (f64, f64),
}

/// The state of this rule.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct RotatingStraggler {
    tracks: [Track; ROTATING.len()],
}

impl Track {
    fn slow(&self) -> impl Iterator<Item = &Turn> {
        self.turns.iter().flatten()
    }

    /// Returns true if several ranks were slow one after another.
    fn rotates(&self) -> bool {
        let mut by_rank: BTreeMap<Rank, usize> = BTreeMap::new();
        for turn in self.slow() {
            *by_rank.entry(turn.rank).or_default() += 1;
        }
        let all: usize = by_rank.values().sum();
        let most = by_rank.values().max().copied().unwrap_or(0);
        by_rank.len() >= RANKS && most as f64 <= ONE * all as f64
    }

    /// Returns the share of the time that the rotation costs, since its first step.
    fn impact(&self) -> f64 {
        let first = self.turns.iter().position(Option::is_some).unwrap_or(0);
        let steps = self.turns.len() - first;
        self.slow().map(|turn| turn.share).sum::<f64>() / steps.max(1) as f64
    }

    fn outcome(&self, ranks: u32) -> Outcome {
        // Losses before the rotation was reported are part of each rank's finding.
        Outcome {
            lost_rank_s: (self.untold_s.1 - self.untold_s.0) * f64::from(ranks),
            impact_ratio: Some(self.impact()),
            ..Outcome::default()
        }
    }
}

impl RotatingStraggler {
    /// Ends all open findings, because a new group of ranks starts.
    pub fn end(&mut self, at: Time, job: &Subject, ranks: u32, out: &mut VecDeque<Claim>) {
        for (track, (_, finding)) in self.tracks.iter_mut().zip(ROTATING) {
            if track.open {
                out.push_back(over(at, finding, job.clone(), track.outcome(ranks)));
            }
            *track = Track::default();
        }
    }

    /// Returns true if a finding is open for `cause`.
    pub fn is_open(&self, cause: Cause) -> bool {
        let mut tracks = self.tracks.iter().zip(ROTATING);
        tracks.any(|(track, (known, _))| known == cause && track.open)
    }

    /// Returns the causes with an open finding.
    pub fn open_causes(&self) -> [Option<Cause>; ROTATING.len()] {
        ROTATING
            .map(|(cause, _)| cause)
            .map(|cause| self.is_open(cause).then_some(cause))
    }

    /// Takes a step. The predicate is true for findings that are already active for the whole job.
    pub fn row(
        &mut self,
        job_step: &JobStep<'_>,
        straggler: &StragglerRule,
        told: impl Fn(Finding) -> bool,
        out: &mut VecDeque<Claim>,
    ) {
        if !job_step.steady || job_step.matrix.kind != StepKind::Train {
            return;
        }
        let ranks = job_step.view.roster.world_size;
        for (track, (cause, finding)) in self.tracks.iter_mut().zip(ROTATING) {
            track.untold_s.1 = straggler.untold_s(cause);
            let turn = straggler.raised().iter().find_map(|slow| match slow.extent {
                Extent::Rank(rank) if slow.cause() == cause || slow.rotates_for == Some(cause) => {
                    Some(Turn {
                        step: job_step.matrix.step,
                        at: job_step.view.at,
                        rank,
                        share: slow.account.impact(),
                    })
                }
                _ => None,
            });
            track.turns.push_back(turn);
            if track.turns.len() > KEPT {
                track.turns.pop_front();
            }
            // A finding starts only in a step in which a rank is slow, and ends only in a step in which none is.
            if track.open && turn.is_none() && !track.rotates() {
                track.open = false;
                out.push_back(over(
                    job_step.view.at,
                    finding,
                    job_step.job(),
                    track.outcome(ranks),
                ));
            } else if !track.open && turn.is_some() && track.rotates() && !told(finding) {
                track.open = true;
                track.untold_s.0 = track.untold_s.1;
                out.push_back(claim(track, job_step, cause, finding));
            }
        }
    }

    /// Returns the outcome of an open finding so far.
    pub fn outcome_now(&self, finding: Finding, ranks: u32) -> Option<Outcome> {
        let mut tracks = self.tracks.iter().zip(ROTATING);
        let (track, _) = tracks.find(|(track, (_, known))| *known == finding && track.open)?;
        Some(track.outcome(ranks))
    }
}

fn claim(track: &Track, job_step: &JobStep<'_>, cause: Cause, finding: Finding) -> Claim {
    let first = track.slow().next();
    let mut ranks: Vec<Rank> = track.slow().map(|turn| turn.rank).collect();
    ranks.sort_unstable();
    ranks.dedup();
    let detail = Detail {
        since: first.map_or(job_step.view.at, |turn| turn.at),
        since_step: first.map(|turn| turn.step),
        cause,
        impact_ratio: Some(track.impact()),
        evidence: vec![piece("ranks_in_turn", ranks.len() as f64, None)],
        ..job_step.detail(job_step.severity(track.impact()))
    };
    job_step.holds(finding, job_step.job(), detail)
}
