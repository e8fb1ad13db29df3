//! Findings that were active when the job ended. When a job ends, its processes end too, so findings about them seem to
//! be over. That is no recovery. Once a job has begun to end, such claims are therefore withheld until the job shows
//! that it continues.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::silence::Scope;
use crate::detect::Detector;
use crate::detect::claim::{Body, Claim};
use crate::event::{Beat, Event};
use crate::frame::Frame;
use crate::id::Rank;
use crate::report::{Ending, Reason};
use crate::time::Time;
use crate::verdict::{Finding, State, Subject, Verdict};

/// A rank that completes this many steps after a sign of an end keeps training. Fewer do not prove that, because one or
/// two steps may have been in flight.
pub(super) const GOES_ON_STEPS: u64 = 3;

/// Claims that are withheld until it is clear whether the job continues.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct JobEnd {
    withheld: Vec<Claim>,
    /// Number of signs of an end that the job has survived ([`crate::detect::members::endings::Endings::signs`]).
    survived: u64,
    /// Number of signs at the latest one, and the step of each rank in its first pulse after that sign. Pulses are used
    /// because step records arrive late.
    sign: u64,
    steps: BTreeMap<Rank, u64>,
}

impl Detector {
    /// Searches for ranks that do not move or have died. A dead rank is no longer a straggler.
    pub(crate) fn look_for_silence(&mut self, at: Time, frame: &Frame) {
        if let Event::Beat(beat) = &frame.event {
            self.watch_progress(beat);
        }
        let scope = Scope {
            at,
            job: &self.job,
            roster: &self.roster,
            step_time: &self.step_time,
            limits: &self.policy.detector.silence,
            incidents: &self.incidents,
            comms: &self.comms,
        };
        self.silence
            .take(&scope, &frame.event, self.entry, frame.provenance);
        if let Some(rank) = self.silence.dead() {
            self.straggler.rank_died(at, rank, &self.roster, &self.job);
        }
    }

    /// Returns true if a claim must wait until it is clear whether the job continues.
    pub(crate) fn withholds(&mut self, claim: &Claim) -> bool {
        if matches!(claim.body, Body::Holds(_)) {
            let is_same = |held: &Claim| held.finding == claim.finding && held.subject == claim.subject;
            self.job_end.withheld.retain(|held| !is_same(held));
            return false;
        }
        // These findings are not withheld. Whether a node reports is independent of how its job ends, and a rank that
        // is alive again was not dead.
        let is_of_job = !matches!(
            claim.finding,
            Finding::TelemetryBlind | Finding::RankDied | Finding::RanksMissing
        );
        is_of_job && self.roster.endings.signs() > self.job_end.survived && !self.is_of_dead(claim)
    }

    /// Keeps a claim that a finding is over. Its cost is already settled.
    pub(crate) fn withhold(&mut self, claim: Claim) {
        self.incidents.settle(&claim);
        self.job_end.withheld.push(claim);
    }

    /// Returns true for findings about a living rank that has died. They end with its death, whatever happens to the
    /// job.
    fn is_of_dead(&self, claim: &Claim) -> bool {
        let of_rank = matches!(claim.finding, Finding::Straggler | Finding::RankSilent);
        of_rank && matches!(claim.subject, Subject::Rank { rank, .. } if Some(rank) == self.silence.dead())
    }

    /// Checks whether ranks keep training after a sign of an end. If they do, their own errors did not end the job.
    fn watch_progress(&mut self, beat: &Beat) {
        let signs = self.roster.endings.signs();
        if signs > self.job_end.sign {
            self.job_end.sign = signs;
            self.job_end.steps.clear();
        }
        if signs == self.job_end.survived {
            return;
        }
        let roster = &self.roster;
        let alive = beat.ranks.iter().filter(|pulse| {
            // Skip pulses of ranks that do not belong to the job.
            pulse.alive && pulse.restart == roster.restart && roster.member(pulse.rank).is_some()
        });
        let mut moved = BTreeSet::new();
        for pulse in alive {
            let first = *self.job_end.steps.entry(pulse.rank).or_insert(pulse.step);
            if pulse.step >= first.saturating_add(GOES_ON_STEPS) {
                moved.insert(pulse.rank);
            }
        }
        if !moved.is_empty() {
            self.roster.endings.forget(|rank| moved.contains(&rank));
            self.goes_on();
        }
    }

    /// Records that a job that had begun to end continues, with further steps or another group of ranks. The withheld
    /// claims take effect.
    pub(crate) fn goes_on(&mut self) {
        self.job_end.survived = self.roster.endings.signs();
        let origin = self.origin.unwrap_or_default();
        for claim in std::mem::take(&mut self.job_end.withheld) {
            self.incidents.record(claim, origin, &self.policy);
        }
    }
}

/// Marks findings that were active when the job ended abnormally.
pub(crate) fn mark_unresolved(verdicts: &mut [Verdict], end: Option<&Ending>) {
    let in_order = |end: &Ending| end.reason == Reason::Success || end.code == Some(0) && end.rank.is_none();
    if end.is_some_and(|end| !in_order(end)) {
        for verdict in verdicts
            .iter_mut()
            .filter(|verdict| verdict.state == State::Raised)
        {
            verdict.unresolved_at_exit = true;
        }
    }
}
