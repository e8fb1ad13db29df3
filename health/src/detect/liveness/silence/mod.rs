//! `rank-silent` and `job-hang` report ranks that do not move while others have arrived. `rank-died` reports a rank
//! whose process has ended. A silent rank is not a slow one.
//!
//! In synchronous training all ranks stop together. The rank to report is the one that has not reached the collective
//! in which the others wait. Each rank's own sidecar reports, by its own clock, how long the rank has not moved.

mod claims;
mod death;
mod judge;
mod severity;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::entered::EnteredEvidence;
use super::progress::Position;
use super::ras::RasEvidence;
use super::stacks::StackEvidence;
use super::standstill::{Named, Standstill};
use crate::detect::claim::{Claim, Outcome, over, piece};
use crate::detect::comm::communicators::Comms;
use crate::detect::members::endings::Death;
use crate::detect::members::roster::Roster;
use crate::detect::report::incidents::Incidents;
use crate::detect::step::step_time::StepTime;
use crate::event::{Beat, Event, Pulse};
use crate::frame::Provenance;
use crate::id::{JobId, Rank};
use crate::policy::SilenceThresholds;
use crate::report::StackGroup;
use crate::time::Time;
use crate::verdict::{Finding, Severity, Subject};

/// The state of this rule.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct SilenceRule {
    pulses: BTreeMap<Rank, Heard>,
    /// Ranks that are silent and behind: their position, and since when another rank has been ahead of them.
    passed: BTreeMap<Rank, (Position, Time)>,
    /// The findings on silent ranks, with the severity of each.
    open: Standstill,
    /// The rank of this group that died first on its own.
    death: Option<Death>,
    /// True if the others keep training without the dead rank.
    left_behind: bool,
    /// True if no process was alive at the last judgment.
    gone: bool,
    /// NCCL's last answer.
    ras: RasEvidence,
    /// Activity of the ranks according to their last answers.
    stacks: StackEvidence,
    /// The collectives that the ranks enqueued last.
    entered: EnteredEvidence,
    provenance: Provenance,
    /// When to judge all ranks again. They are judged at intervals, because beats of thousands of nodes arrive within
    /// one second.
    judge_at: Time,
    out: VecDeque<Claim>,
}

const JUDGE_EVERY: Duration = Duration::from_millis(250);

/// A pulse older than this does not show the present state. Its node is unreachable, which is another finding.
const FRESH: Duration = Duration::from_secs(3);

/// Interval of a sidecar's reports on a rank. When all ranks move again, they neither move nor report at the same
/// instant. A rank that has been behind for less than this may therefore have moved with the others.
const BEAT: Duration = Duration::from_secs(1);

/// Maximum number of ranks in a hang's evidence.
const MAX_BEHIND: usize = 8;

/// A verdict: the finding, its severity, and its rank. Without a rank it is about all ranks.
type Silent = (Finding, Severity, Option<Rank>);

/// The data that the rule can read.
#[derive(Clone, Copy, Debug)]
pub struct Scope<'a> {
    pub at: Time,
    pub job: &'a JobId,
    pub roster: &'a Roster,
    pub step_time: &'a StepTime,
    pub limits: &'a SilenceThresholds,
    /// Other active findings.
    pub incidents: &'a Incidents,
    pub comms: &'a Comms,
}

/// A rank's latest pulse, and when it arrived.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Heard {
    at: Time,
    pulse: Pulse,
}

impl Heard {
    /// Returns how long the rank has not moved by now: the idle time that its sidecar reported, plus the time since
    /// that report.
    fn idle_s(&self, now: Time) -> f64 {
        self.pulse.idle_ns as f64 / 1e9 + now.since(self.at).as_secs_f64()
    }

    /// Returns when the rank reached its position.
    fn moved(&self) -> Time {
        Time(self.at.0.saturating_sub(self.pulse.idle_ns))
    }
}

impl SilenceRule {
    /// Ends the findings of the old group, because a new group of ranks starts.
    pub fn clear(&mut self, at: Time, world_size: u32) {
        self.passed.clear();
        self.ras = RasEvidence::default();
        self.stacks = StackEvidence::default();
        self.entered = EnteredEvidence::default();
        self.keep(at, self.heard_until(at), world_size, &BTreeMap::new());
        self.pulses.clear();
        self.gone = false;
        self.death = None;
        self.left_behind = false;
    }

    /// Takes a beat of one node, NCCL's answer on all ranks, the activity of ranks, or a sign of how a rank ended.
    pub fn take(&mut self, scope: &Scope<'_>, event: &Event, entry: u64, provenance: Provenance) {
        match event {
            Event::Beat(beat) => self.beat(scope, beat, provenance),
            Event::Ras(report) => {
                self.ras.take(scope.at, entry, report, provenance);
                self.report_news(scope);
            }
            Event::Stacks(stacks) if stacks.restart == scope.roster.restart => {
                self.provenance = self.provenance.max(provenance);
                // Thousands of nodes answer within a second, so their answers are reported with the next judgment.
                let is_member = |rank| is_living(scope.roster, rank);
                self.stacks.take(scope.at, stacks, is_member);
            }
            Event::Entered(answer)
                if answer.restart == scope.roster.restart && is_living(scope.roster, answer.rank) =>
            {
                self.provenance = self.provenance.max(provenance);
                self.entered.take(scope.at, answer);
            }
            Event::Trouble(_) | Event::Exit(_) => {
                self.provenance = self.provenance.max(provenance);
                self.bury(scope);
            }
            _ => {}
        }
    }

    /// Reports active findings again if answers of NCCL or of the ranks are new evidence for them.
    fn report_news(&mut self, scope: &Scope<'_>) {
        let is_news = |named: &Named| {
            let (ras, stacks) = self.asked(scope, named.since);
            let says = named.finding != Finding::RankDied && stacks != 0 && stacks != named.stacks;
            says || (ras != 0 && ras != named.asked)
        };
        let open = self.open.iter().filter(|(_, named)| is_news(named));
        let open: Vec<Subject> = open.map(|(subject, _)| subject.clone()).collect();
        for subject in open {
            self.report(scope, subject);
        }
    }

    /// Returns two numbers that change with NCCL's answer on a silence since `since` and with the ranks' activity. Zero
    /// means none.
    pub(super) fn asked(&self, scope: &Scope<'_>, since: Time) -> (u64, u64) {
        let ras = u64::from(self.ras.speaks_of(since, scope.roster)) * self.ras.version();
        (ras, self.stacks.version(since) + self.entered.version(since))
    }

    /// Takes a beat of one node, and judges all ranks by the reports received so far.
    fn beat(&mut self, scope: &Scope<'_>, beat: &Beat, provenance: Provenance) {
        let Scope { at, roster, .. } = *scope;
        self.provenance = self.provenance.max(provenance);
        for pulse in &beat.ranks {
            let known = roster.member(pulse.rank).is_some_and(|member| !member.ended);
            if known && pulse.restart == roster.restart {
                let heard = Heard { at, pulse: *pulse };
                self.stacks.forget_before(pulse.rank, heard.moved());
                self.pulses.insert(pulse.rank, heard);
            }
        }
        if at < self.judge_at {
            return;
        }
        let heard = self.heard_until(at);
        self.judge_at = at + JUDGE_EVERY;
        self.pulses.retain(|rank, _| is_living(roster, *rank));
        self.stacks.keep(|rank| is_living(roster, rank));
        self.stacks.count();
        self.bury(scope);
        self.leave_behind();
        let verdicts = self.judge(scope);
        let worse: Vec<Subject> = verdicts
            .iter()
            .filter(|(subject, verdict)| self.name(at, subject, verdict))
            .map(|(subject, _)| subject.clone())
            .collect();
        self.keep(at, heard, roster.world_size, &verdicts);
        if !self.open.is_empty() {
            self.entered.compare(self.stands_since(at));
        }
        for subject in worse {
            self.report(scope, subject);
        }
        self.report_news(scope);
    }

    /// Returns the cost of an open incident so far, in rank-seconds.
    pub fn cost_now(&self, subject: &Subject, now: Time, world_size: u32) -> Option<f64> {
        Some(self.open.lost_s(subject, self.heard_until(now))? * f64::from(world_size))
    }

    /// Returns how long the job has stood still outside the steps already processed, in seconds. A rank's silence is no
    /// standstill if the others continue.
    pub fn stood_s(&self, now: Time) -> f64 {
        self.open.left_s(self.heard_until(now))
    }

    /// Returns how much of the standstill was in the step being processed, which has room for `room_s`.
    pub fn stood_in_step(&mut self, now: Time, room_s: f64) -> f64 {
        self.open.take(self.heard_until(now), room_s)
    }

    /// Returns the time up to which silence counts. It ends soon after reports stop arriving, because a rank without
    /// reports may have moved long ago.
    fn heard_until(&self, now: Time) -> Time {
        now.min(self.judge_at + FRESH)
    }

    /// Returns the activity of ranks that do not move. `seconds` converts a time.
    pub fn stacks(&self, seconds: impl Fn(Time) -> f64) -> Vec<StackGroup> {
        self.stacks.report(seconds)
    }

    /// Returns the next claim.
    pub fn poll(&mut self) -> Option<Claim> {
        self.out.pop_front()
    }

    /// Ends findings that no longer hold. They held until `heard`.
    fn keep(&mut self, at: Time, heard: Time, world_size: u32, holds: &BTreeMap<Subject, Silent>) {
        if self.gone {
            // Time without any process is not booked here, because it belongs to the restart.
            self.open.pass(at);
        } else {
            self.open.book(heard);
        }
        self.gone = !self.pulses.is_empty() && !self.lives();
        let over_now = self.open.keep(|subject, named| {
            let found = holds.get(subject);
            found.is_some_and(|(finding, ..)| *finding == named.finding)
        });
        for (subject, named) in over_now {
            let silent_s = heard.since(named.since).as_secs_f64();
            let what = if named.finding == Finding::RankDied {
                "dead_s"
            } else {
                "silent_s"
            };
            let outcome = Outcome {
                lost_rank_s: named.lost_s * f64::from(world_size),
                evidence: vec![piece(what, silent_s, None)],
                ..Outcome::default()
            };
            self.out.push_back(over(at, named.finding, subject, outcome));
        }
    }

    /// Records a silent rank. Returns true if it was not silent before, or if its severity has increased.
    fn name(&mut self, at: Time, subject: &Subject, (finding, severity, rank): &Silent) -> bool {
        if let Some(named) = self.open.get_mut(subject) {
            let is_worse = *severity > named.severity;
            named.severity = named.severity.max(*severity);
            return is_worse;
        }
        let since = self.since(at, *rank);
        let named = Named::new(*finding, *severity, since, *rank);
        self.open.insert(subject.clone(), named);
        true
    }

    /// Returns the start of the open silence, or of the one that begins now.
    fn stands_since(&self, at: Time) -> Time {
        let open = self.open.iter().map(|(_, named)| named.since).min();
        open.unwrap_or_else(|| self.since(at, None))
    }

    /// Returns since when a rank, or all of them, have not moved.
    fn since(&self, at: Time, rank: Option<Rank>) -> Time {
        at - Duration::from_secs_f64(self.idle_s(at, rank).clamp(0.0, 1e9))
    }

    /// Returns how long a rank, or all of them, have not moved.
    fn idle_s(&self, at: Time, rank: Option<Rank>) -> f64 {
        let ranks = self.about(rank);
        ranks.map(|heard| heard.idle_s(at)).fold(f64::INFINITY, f64::min)
    }

    /// Returns the latest pulse of a rank, or those of all ranks.
    fn about(&self, rank: Option<Rank>) -> impl Iterator<Item = &Heard> {
        let pulses = self.pulses.iter();
        let pulses = pulses.filter(move |(other, _)| rank.is_none_or(|rank| **other == rank));
        pulses.map(|(_, heard)| heard)
    }
}

/// Returns true if the rank is a member of the job that has not ended.
fn is_living(roster: &Roster, rank: Rank) -> bool {
    roster.member(rank).is_some_and(|member| !member.ended)
}
