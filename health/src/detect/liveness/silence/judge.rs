//! Selects silent ranks: those that are behind or, if all stand still, those that their activity singles out.

use std::collections::BTreeMap;

use super::severity::severity;
use super::{BEAT, FRESH, Heard, Scope, SilenceRule, Silent};
use crate::detect::liveness::progress::{RankProgress, place};
use crate::detect::liveness::standstill::Named;
use crate::id::Rank;
use crate::verdict::{Finding, Severity, Subject};

impl SilenceRule {
    /// The dead rank, and the ranks that are silent now, with their severity.
    pub(super) fn judge(&mut self, scope: &Scope<'_>) -> BTreeMap<Subject, Silent> {
        let Some(death) = self.death.clone() else {
            return self.judge_living(scope);
        };
        let died = (Finding::RankDied, Severity::Critical, Some(death.rank));
        // All others wait for it, or were ended because of it, unless the job can do without it.
        let mut found = match self.left_behind {
            true => self.judge_living(scope),
            false => BTreeMap::new(),
        };
        found.insert(Self::subject_of(scope, &death), died);
        found
    }

    /// The silent ranks among the living.
    fn judge_living(&mut self, scope: &Scope<'_>) -> BTreeMap<Subject, Silent> {
        let (at, roster, limits) = (scope.at, scope.roster, scope.limits);
        let unknown = || {
            limits
                .unknown_p99_s
                .max(scope.step_time.median_s().unwrap_or(0.0))
        };
        let p99 = scope.step_time.p99_s().unwrap_or_else(unknown);
        let is_gone = |heard: &Heard| at.since(heard.at) <= FRESH && !heard.pulse.alive;
        if self.pulses.values().any(is_gone) && !self.open.is_empty() {
            // A job that is ended during a standstill stood still because of the ranks named before.
            let still = |named: &Named| match named.rank {
                Some(rank) => severity(self.pulses.get(&rank)?, at, p99, limits),
                None => Some(named.severity),
            };
            let holds = |named: &Named| Some((named.finding, still(named)?, named.rank));
            let open = self.open.iter();
            let open = open.filter_map(|(subject, named)| Some((subject.clone(), holds(named)?)));
            return open.collect();
        }
        let silent: Vec<(Rank, Severity)> = self
            .pulses
            .iter()
            .filter(|(_, heard)| at.since(heard.at) <= FRESH)
            .filter_map(|(rank, heard)| Some((*rank, severity(heard, at, p99, limits)?)))
            .collect();
        if silent.is_empty() {
            self.passed.clear();
            return BTreeMap::new();
        }
        let alive = self.pulses.values().filter(|heard| heard.pulse.alive);
        let front = RankProgress::of(alive.map(|heard| (place(&heard.pulse), heard.moved())));
        self.pass(&silent, &front);
        let behind: Vec<(Rank, Severity)> = silent
            .iter()
            .copied()
            .filter(|(rank, _)| self.is_behind(*rank))
            .collect();
        if !behind.is_empty() && behind.len() * 2 <= self.pulses.len().max(2) {
            let named = |(rank, severity)| {
                let finding = self.quiet(rank, scope)?;
                Some((roster.subject(rank)?, (finding, severity, Some(rank))))
            };
            return behind.into_iter().filter_map(named).collect();
        }
        // All ranks stand still, and none, or too many to blame, are behind. Without a live process nothing hangs.
        if silent.len() < self.pulses.len() || !self.lives() {
            return BTreeMap::new();
        }
        let severities = silent.iter().map(|(_, severity)| *severity);
        let severity = severities.min().unwrap_or(Severity::Info);
        let since = self.stands_since(at);
        self.entered.compare(since);
        let stopped = self.stopped(since);
        if !stopped.is_empty() && stopped.len() * 2 <= self.pulses.len() {
            let named = |rank| Some((roster.subject(rank)?, (Finding::RankSilent, severity, Some(rank))));
            return stopped.into_iter().filter_map(named).collect();
        }
        let subject = Subject::Job {
            job: scope.job.clone(),
        };
        BTreeMap::from([(subject, (Finding::JobHang, severity, None))])
    }

    /// Whether any process is alive.
    pub(super) fn lives(&self) -> bool {
        self.pulses.values().any(|heard| heard.pulse.alive)
    }

    /// Records which silent ranks others have passed: others are in a later step, or wait in the step that the rank has
    /// not finished.
    fn pass(&mut self, silent: &[(Rank, Severity)], front: &RankProgress) {
        let known = std::mem::take(&mut self.passed);
        let passed = silent.iter().filter_map(|(rank, _)| {
            let place = place(&self.pulses.get(rank)?.pulse);
            let at = front.passed_at(place)?;
            // Ranks that were past it then still are; when all others move on, the first of them changes each time.
            let before = known.get(rank).filter(|(known, _)| *known == place);
            Some((*rank, (place, before.map_or(at, |(_, before)| at.min(*before)))))
        });
        self.passed = passed.collect();
    }

    /// Whether its sidecar reported that it did not follow the ranks that passed it, or its process is gone.
    fn is_behind(&self, rank: Rank) -> bool {
        self.pulses.get(&rank).is_some_and(|heard| {
            let passed = self.passed.get(&rank);
            !heard.pulse.alive || passed.is_some_and(|(_, passed)| heard.at >= *passed + BEAT)
        })
    }
}
