//! `rank-died`: reports the rank that died first on its own, from the first sign of its death.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Heard, Scope, SilenceRule};
use crate::detect::claim::{Body, Claim, Detail, piece};
use crate::detect::liveness::job_end::GOES_ON_STEPS;
use crate::detect::liveness::standstill::Named;
use crate::detect::members::endings::Death;
use crate::event::Signal;
use crate::id::Rank;
use crate::report;
use crate::time::Time;
use crate::verdict::{Cause, Finding, Severity, Subject};

/// An exit code of 128 + n means signal n, up to this signal number. Higher codes, such as 255 from `sys.exit(-1)`, are
/// no signals.
const SIGNALED: i32 = 128;
const SIGNALS: i32 = 64;

impl SilenceRule {
    /// Detects a death and raises it at once. If a standstill was raised before, it is then over.
    pub(super) fn bury(&mut self, scope: &Scope<'_>) {
        let stands = self
            .open
            .iter()
            .any(|(_, named)| named.finding != Finding::RankDied && named.severity == Severity::Critical);
        let endings = &scope.roster.endings;
        if self
            .death
            .take_if(|known| !endings.speaks_of(known.rank))
            .is_some()
        {
            self.left_behind = false;
        }
        let death = endings.first_death(scope.at, stands);
        if death.is_none() || death == self.death {
            return;
        }
        // The exception of a rank may arrive before or after its exit code. The first rank that died is kept, even if
        // another death is found later.
        let is_same = |known: &Death| death.as_ref().is_some_and(|death| death.rank == known.rank);
        if self.death.as_ref().is_some_and(|known| !is_same(known)) {
            return;
        }
        self.death = death;
        let Some(death) = self.death.clone() else { return };
        let subject = Self::subject_of(scope, &death);
        let holds = BTreeMap::from([(
            subject.clone(),
            (Finding::RankDied, Severity::Critical, Some(death.rank)),
        )]);
        let since = self.died_at(scope.at, death.rank);
        self.keep(
            scope.at,
            self.heard_until(scope.at),
            scope.roster.world_size,
            &holds,
        );
        match self.open.get_mut(&subject) {
            Some(named) => named.severity = Severity::Critical,
            None => {
                let named = Named::new(Finding::RankDied, Severity::Critical, since, Some(death.rank));
                self.open.insert(subject.clone(), named);
            }
        }
        self.report(scope, subject);
    }

    /// Returns the finding for a rank that is behind the others. A process that ended without an error counts as dead
    /// only once its peers wait or lose a connection. One that ended with an error is detected by that error and its
    /// end.
    pub(super) fn quiet(&self, rank: Rank, scope: &Scope<'_>) -> Option<Finding> {
        let is_alive = |rank: &Rank| self.pulses.get(rank).is_some_and(|heard| heard.pulse.alive);
        if is_alive(&rank) {
            return Some(Finding::RankSilent);
        }
        let is_missed = self.lives() && !scope.roster.endings.has_trouble(rank);
        is_missed.then_some(Finding::RankDied)
    }

    /// Returns the death of a rank about which only one fact is known: its process is gone.
    fn quiet_death(scope: &Scope<'_>, rank: Rank) -> Option<Death> {
        Some(Death::quiet(scope.roster.member(rank)?.node.clone(), rank))
    }

    /// Returns the rank that died.
    pub fn dead(&self) -> Option<Rank> {
        self.death.as_ref().map(|death| death.rank)
    }

    /// Detects that others keep training without the dead rank. Its pulse is then dropped, because the others are no
    /// longer compared with it.
    pub(super) fn leave_behind(&mut self) {
        let Some(dead) = self.dead() else { return };
        if let Some(last) = self.pulses.get(&dead).filter(|heard| !heard.pulse.alive) {
            let past = last.pulse.step.saturating_add(GOES_ON_STEPS);
            let mut pulses = self.pulses.values();
            self.left_behind |= pulses.any(|heard| heard.pulse.alive && heard.pulse.step > past);
        }
        if self.left_behind {
            self.pulses.remove(&dead);
        }
    }

    pub(super) fn tell_death(&mut self, scope: &Scope<'_>, named: &Named, subject: Subject) {
        let quiet = || Self::quiet_death(scope, named.rank?);
        let Some(death) = self.death.clone().or_else(quiet) else {
            return;
        };
        let at = scope.at;
        // Use the later of the two, because the rank's last step records may arrive after its last pulse.
        let pulse = self.pulses.get(&death.rank).map(|heard| heard.pulse.step);
        let step = pulse.max(scope.roster.step_of(death.rank));
        let alive = self
            .pulses
            .iter()
            .filter(|(rank, heard)| **rank != death.rank && heard.pulse.alive);
        let mut evidence = Vec::new();
        match death.code {
            Some(code) if (1..=SIGNALS).contains(&code.saturating_sub(SIGNALED)) => {
                evidence.push(piece("signal", f64::from(code - SIGNALED), None));
            }
            Some(code) => evidence.push(piece("exit_code", f64::from(code), None)),
            None => {}
        }
        match alive.count() {
            0 => {}
            peers => evidence.push(piece("peers_alive", peers as f64, None)),
        }
        let lost_s = self.open.lost_s(&subject, at).unwrap_or(0.0);
        let detail = Detail {
            severity: named.severity,
            since: named.since,
            since_step: step,
            step,
            cause: Cause::Unknown,
            signals: vec![Signal::S2],
            provenance: self.provenance,
            slowdown_ratio: None,
            impact_ratio: None,
            lost_rank_s: lost_s * f64::from(scope.roster.world_size),
            evidence,
            says: Some(says(&death)),
        };
        self.out.push_back(Claim {
            finding: Finding::RankDied,
            subject,
            at,
            body: Body::Holds(Box::new(detail)),
        });
    }

    /// Returns the subject of a dead rank, even if the rank had not trained yet.
    pub(super) fn subject_of(scope: &Scope<'_>, death: &Death) -> Subject {
        let known = scope.roster.subject(death.rank);
        known.unwrap_or_else(|| Subject::Rank {
            rank: death.rank,
            node: death.node.clone(),
            gpu_uuid: None,
        })
    }

    /// Returns the time of death, which is when the rank's process last moved. If this is not known, it is when the
    /// death was noticed.
    fn died_at(&self, at: Time, rank: Rank) -> Time {
        let gone = self.pulses.get(&rank).filter(|heard| !heard.pulse.alive);
        gone.map_or(at, Heard::moved)
    }
}

/// Returns the exception in one line, and the place in the user's code where it was raised.
fn says(death: &Death) -> Arc<str> {
    let headline = report::headline(&death.says);
    match report::user_frame(&death.says) {
        Some(frame) => format!("{headline} ({frame})").into(),
        None => headline.into(),
    }
}
