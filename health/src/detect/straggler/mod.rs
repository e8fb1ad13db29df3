//! Ranks whose self-time stays above that of their peers, and what they have in common. This is a comparison in space,
//! between ranks, and not in time.
//!
//! Wall step time identifies no rank, since all wait for the slowest. Self-time, a rank's time outside waiting, does.

mod claims;
mod critical_path;
mod cusum;
pub mod localise;
pub mod noise;
pub mod open_straggler;
mod readiness;
mod track;
mod undecided;
mod victims;

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use self::cusum::{Alarm, Bar};
use self::localise::Located;
use self::open_straggler::{Account, Extent, OpenStraggler};
use self::readiness::Readiness;
use self::track::Track;
use super::claim::{Claim, Outcome};
use super::members::roster::{Member, Roster};
use super::step::history::History;
use super::step::matrix::{RankStep, StepMatrix};
use super::view::View;
use crate::event::{Signal, StepKind};
use crate::frame::Provenance;
use crate::id::{JobId, Rank};
use crate::time::Time;
use crate::verdict::{Cause, Finding, Subject};

/// Maximum number of open findings of this rule. If there are more, the problem is one of the job.
const MAX_RAISED: usize = 64;
/// The hook times at least one in this many steps (`sidecar/probe/python/paceline/_sampling.py`).
const LONGEST_PERIOD: u32 = 512;
/// Number of steps after which a rank that is slow as part of a rotation counts as permanently slow.
const LASTING: u64 = 64;

/// The state of this rule.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct StragglerRule {
    /// The tests, by rank number.
    tracks: Vec<Track>,
    roles: Readiness,
    history: History,
    raised: Vec<OpenStraggler>,
    /// Seconds lost to slow ranks that have no finding of their own, by cause.
    untold: BTreeMap<Cause, f64>,
    /// The step before the first step.
    born: Option<u64>,
    provenance: Provenance,
    /// Source of the latest self-times.
    signal: Option<Signal>,
    /// Number of steps since one whose phases the hook timed.
    #[serde(default)]
    since_phases: Option<u32>,
    /// The latest ranks that were late together, and the step. It was not observed how lateness spread between them.
    #[serde(default)]
    late_together: Option<(u64, Vec<Rank>)>,
    out: VecDeque<Claim>,
}

impl StragglerRule {
    /// Ends all findings, because a new group of ranks starts or ranks changed their place.
    pub fn clear(&mut self, at: Time, roster: &Roster, job: &JobId) {
        for raised in std::mem::take(&mut self.raised) {
            self.end(at, &raised, roster, job);
        }
        self.tracks.clear();
        self.roles = Readiness::default();
        self.history.clear();
        self.since_phases = None;
        self.born = None;
        self.late_together = None;
    }

    /// Records the provenance of the step times.
    pub fn trust(&mut self, provenance: Provenance) {
        self.provenance = self.provenance.max(provenance);
    }

    /// Returns the next claim.
    pub fn poll(&mut self) -> Option<Claim> {
        self.out.pop_front()
    }

    /// Returns true if any rank's phases were ever known.
    pub fn has_phases(&self) -> bool {
        !self.tracks.is_empty()
    }

    /// Returns true if all self-times are only the part of the steps outside collectives.
    pub fn has_waits_only(&self) -> bool {
        self.signal == Some(Signal::S1)
    }

    /// Returns true if the hook samples phases and this step lies between two samples. Such a step is no evidence,
    /// because sums of collectives and wall times show less than phases do.
    pub fn is_between_samples(&self) -> bool {
        self.since_phases
            .is_some_and(|steps| 0 < steps && steps < LONGEST_PERIOD)
    }

    /// Returns the latest ranks that were late together in a way that could not be traced, and the step.
    pub fn late_together(&self) -> Option<(u64, &[Rank])> {
        let (step, ranks) = self.late_together.as_ref()?;
        Some((*step, ranks))
    }

    /// Returns the open stragglers.
    pub fn raised(&self) -> &[OpenStraggler] {
        &self.raised
    }

    /// Returns the ranks that are slow now by their time outside collectives.
    pub fn late(&self) -> Vec<Rank> {
        let raised = self.raised.iter().filter(|_| self.has_waits_only());
        raised.flat_map(|raised| raised.members.iter().copied()).collect()
    }

    /// Returns by how many seconds steps were longer because of ranks that are slow in turn for `cause` and have no
    /// findings of their own.
    pub fn untold_s(&self, cause: Cause) -> f64 {
        self.untold.get(&cause).copied().unwrap_or(0.0)
    }

    /// Returns true if every role has warmed up.
    pub fn has_warmed_up(&self) -> bool {
        self.roles.have_warmed_up()
    }

    /// Counts a row that closes. `has_phases` is true if the row has phases.
    pub fn count(&mut self, has_phases: bool) {
        self.since_phases = match has_phases {
            true => Some(0),
            false => self.since_phases.map(|steps| steps.saturating_add(1)),
        };
    }

    /// Takes a step. `view.at` is when it closed.
    pub fn step(&mut self, view: &View<'_>, matrix: &StepMatrix<'_>) {
        if matrix.kind != StepKind::Train {
            return;
        }
        if matrix.is_empty() {
            // Between samples, slow ranks are assumed to lose as much as before. If phases have stopped for good, their
            // cost is not known.
            if self.is_between_samples() {
                self.history.pass();
                for raised in &mut self.raised {
                    raised.account.pass(matrix.dur_s);
                }
            }
            return;
        }
        self.born.get_or_insert(matrix.step.saturating_sub(1));
        self.signal = Some(matrix.signal);
        if let Some(last) = matrix.rank_steps.last() {
            let ranks = last.rank.0 as usize + 1;
            self.tracks
                .resize_with(self.tracks.len().max(ranks), Track::default);
        }
        self.history.push(matrix);
        self.roles.observe(matrix, &mut self.history, view);
        self.account(view, matrix);
        let mut alarms = Vec::new();
        for rank_step in &matrix.rank_steps {
            let role = rank_step.place.role as usize;
            let bar = self.roles.bar(role);
            let few = matrix.roles[role].seen <= view.limits.straggler.min_peers as usize;
            if let Some(alarm) = self.test(rank_step, matrix.step, bar.as_ref()) {
                alarms.push((rank_step.rank, alarm, few));
            }
        }
        for (rank, alarm, few) in alarms {
            if self.decide(view, matrix, rank, alarm, few).is_none() {
                self.tracks[rank.0 as usize].refuse(matrix.step);
            }
        }
    }

    /// Searches for the cause of open findings after a reading of the ranks that `is_of` selects.
    pub fn reading(&mut self, view: &View<'_>, is_of: impl Fn(Rank, &Member) -> bool) {
        for index in 0..self.raised.len() {
            let raised = &mut self.raised[index];
            let is_due = raised.asks_again(view.at)
                && raised.members.iter().any(|rank| {
                    view.roster
                        .member(*rank)
                        .is_some_and(|member| is_of(*rank, member))
                });
            if is_due {
                let before = claims::known(raised);
                self.judge(view, index);
                if claims::known(&self.raised[index]) != before {
                    self.claim(view, index);
                }
            }
        }
    }

    /// Returns the outcome of an open finding so far.
    pub fn outcome_now(
        &self,
        finding: Finding,
        subject: &Subject,
        roster: &Roster,
        job: &JobId,
    ) -> Option<Outcome> {
        let raised = self.raised.iter().find(|raised| {
            raised.extent.finding() == finding && raised.extent.subject(roster, job).as_ref() == Some(subject)
        })?;
        Some(raised.outcome(roster))
    }

    /// Feeds a rank's test. `bar` is `None` while the rank's role warms up.
    fn test(&mut self, rank_step: &RankStep, step: u64, bar: Option<&Bar>) -> Option<Alarm> {
        let mut raised = self.raised.iter();
        let is_named = raised.any(|raised| raised.members.binary_search(&rank_step.rank).is_ok());
        self.tracks[rank_step.rank.0 as usize].feed(rank_step.x, step, bar, is_named)
    }

    /// Updates the open findings: their account and severity, and whether they have ended.
    fn account(&mut self, view: &View<'_>, matrix: &StepMatrix<'_>) {
        if self.raised.is_empty() {
            return;
        }
        for raised in &mut self.raised {
            raised.account.add(&raised.members, matrix);
        }
        let mut before: Vec<f64> = self.raised.iter().map(|raised| raised.account.gain_s).collect();
        critical_path::share_gain(&mut self.raised, matrix, self.tracks.len());
        let mut index = 0;
        while index < self.raised.len() {
            if self.recovers(matrix, index) {
                let mut raised = self.raised.remove(index);
                before.remove(index);
                raised.account = raised.before_recovery;
                for rank in &raised.members {
                    self.tracks[rank.0 as usize].cusum.reset();
                }
                self.end(view.at, &raised, view.roster, view.job);
                continue;
            }
            let raised = &mut self.raised[index];
            if let Some(cause) = raised.rotates_for {
                *self.untold.entry(cause).or_default() += raised.account.gain_s - before[index];
                if raised.account.rows >= LASTING {
                    // The rank is slow permanently and not just as part of a rotation, so it gets a finding of its own.
                    raised.rotates_for = None;
                    self.judge_and_claim(view, index);
                }
            }
            if self.severity(index, view.limits) > self.raised[index].severity {
                self.judge_and_claim(view, index);
            }
            index += 1;
        }
    }

    /// Runs the mirrored test on the median of a finding's ranks. Returns true if they have recovered.
    fn recovers(&mut self, matrix: &StepMatrix<'_>, index: usize) -> bool {
        let raised = &mut self.raised[index];
        let mut bar = None;
        let mut x: Vec<f64> = Vec::with_capacity(raised.members.len());
        for rank in &raised.members {
            if let Ok(place) = matrix
                .rank_steps
                .binary_search_by_key(rank, |rank_step| rank_step.rank)
            {
                let rank_step = &matrix.rank_steps[place];
                bar = bar.or(self.roles.bar(rank_step.place.role as usize));
                x.push(rank_step.x);
            }
        }
        let (Some(bar), Some(x)) = (bar, crate::stats::median(&mut x)) else {
            return false;
        };
        let before = matrix.step.saturating_sub(1);
        let over = raised
            .clearing
            .observe(&bar, raised.alternative, x, before)
            .is_some();
        if raised.clearing.is_idle() {
            raised.before_recovery = raised.account;
        }
        over
    }

    /// Raises the finding of an alarm. Returns `None` if the alarm is inconsistent or already reported.
    fn decide(
        &mut self,
        view: &View<'_>,
        matrix: &StepMatrix<'_>,
        rank: Rank,
        alarm: Alarm,
        few_peers: bool,
    ) -> Option<()> {
        let taken = |raised: &OpenStraggler| raised.members.binary_search(&rank).is_ok();
        if self.raised.len() >= MAX_RAISED || self.raised.iter().any(taken) {
            return None;
        }
        let role = view.plan.place(rank).map_or(0, |place| place.role as usize);
        let bar = self.roles.bar(role)?;
        let slow = localise::slow_since(&self.history, view.plan, alarm.start, alarm.alternative, &bar);
        if matrix.signal == Signal::S1 && view.waits.are_apart(rank, &slow, view.comms, view.plan) {
            self.late_together = Some((matrix.step, slow));
            return None;
        }
        let located = localise::locate(rank, &slow, view.plan, &view.limits.straggler);
        let Located { extent, members } = &located;
        let account = Account::open(members, alarm.start, &self.history, view.plan);
        if !account.is_waited_for(view.limits) {
            return None;
        }
        let excess_s = account.suspect(members, view.at).excess_s;
        // Lateness is traced here only if stages are known, because otherwise their waits cannot be compared.
        if view.plan.stages > 1
            && members.len() == 1
            && view.comms.victim_of(rank, excess_s, view.plan).is_some()
        {
            return None;
        }
        let is_known = || self.raised.iter().any(|raised| raised.extent == Extent::Job);
        if *extent == Extent::Job && (is_known() || view.waits.latecomer(view.comms).is_some()) {
            return None;
        }
        // If a larger unit is slow, its finding replaces the findings on parts of it.
        let mut start = self.tracks[rank.0 as usize].onset(alarm, self.born);
        let (parts, others): (Vec<OpenStraggler>, Vec<OpenStraggler>) =
            std::mem::take(&mut self.raised).into_iter().partition(|raised| {
                raised
                    .members
                    .iter()
                    .any(|rank| members.binary_search(rank).is_ok())
            });
        self.raised = others;
        let told_s = parts.iter().map(|part| part.account.lost_s()).sum();
        for part in parts {
            start = start.min(part.start);
            self.take_over(view, part);
        }
        self.tracks[rank.0 as usize].cusum.reset();
        let account = Account::open(members, start, &self.history, view.plan);
        let mut raised = OpenStraggler::new(located, (start, matrix.step), alarm.alternative, account);
        (raised.told_s, raised.few_peers) = (told_s, few_peers);
        self.raised.push(raised);
        self.introduce(view, self.raised.len() - 1);
        Some(())
    }

    /// Ends a finding that is now part of a larger one, which counts its cost from the beginning.
    fn take_over(&mut self, view: &View<'_>, mut part: OpenStraggler) {
        if let Some(untold) = part.rotates_for.and_then(|cause| self.untold.get_mut(&cause)) {
            *untold -= part.account.gain_s;
        }
        part.account.gain_s = 0.0;
        self.end(view.at, &part, view.roster, view.job);
    }
}
