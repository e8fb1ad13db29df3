//! Selects the silent ranks to report: those that are behind the others. If all ranks stand still, it selects those
//! whose activity differs.

use std::collections::BTreeMap;

use super::severity::severity;
use super::{BEAT, FRESH, Heard, Scope, SilenceRule, Silent};
use crate::detect::liveness::progress::{RankProgress, place};
use crate::detect::liveness::standstill::Named;
use crate::id::Rank;
use crate::verdict::{Finding, Severity, Subject};

impl SilenceRule {
    /// Returns the dead rank, and the ranks that are silent now, with their severity.
    pub(super) fn judge(&mut self, scope: &Scope<'_>) -> BTreeMap<Subject, Silent> {
        let Some(death) = self.death.clone() else {
            return self.judge_living(scope);
        };
        let died = (Finding::RankDied, Severity::Critical, Some(death.rank));
        // If a rank has died, all others wait for it or were ended because of it. They are judged only if the job
        // continues without that rank.
        let mut found = match self.left_behind {
            true => self.judge_living(scope),
            false => BTreeMap::new(),
        };
        found.insert(Self::subject_of(scope, &death), died);
        found
    }

    /// Returns the silent ranks among those that are alive.
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
            // Processes end during a standstill, so the job is being ended. The ranks that were named before remain the
            // reason.
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
        // All ranks stand still, and either none or too many are behind. If no process is alive, this is no hang.
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

    /// Returns true if any process is alive.
    pub(super) fn lives(&self) -> bool {
        self.pulses.values().any(|heard| heard.pulse.alive)
    }

    /// Records which silent ranks others have passed. The others are in a later step, or wait in the step that the rank
    /// has not finished.
    fn pass(&mut self, silent: &[(Rank, Severity)], front: &RankProgress) {
        let known = std::mem::take(&mut self.passed);
        let passed = silent.iter().filter_map(|(rank, _)| {
            let place = place(&self.pulses.get(rank)?.pulse);
            let at = front.passed_at(place)?;
            // Keep the earlier time if the rank has not moved: ranks that were ahead of it then are still ahead. It
            // must be kept because, when all others move on, the first rank ahead is another one each time.
            let before = known.get(rank).filter(|(known, _)| *known == place);
            Some((*rank, (place, before.map_or(at, |(_, before)| at.min(*before)))))
        });
        self.passed = passed.collect();
    }

    /// Returns true if the rank's process is gone, or its sidecar has reported since others passed the rank that it did
    /// not follow them.
    fn is_behind(&self, rank: Rank) -> bool {
        self.pulses.get(&rank).is_some_and(|heard| {
            let passed = self.passed.get(&rank);
            !heard.pulse.alive || passed.is_some_and(|(_, passed)| heard.at >= *passed + BEAT)
        })
    }
}
