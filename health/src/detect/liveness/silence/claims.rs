//! Claims about silent ranks.

use std::sync::Arc;

use super::{MAX_BEHIND, Scope, SilenceRule};
use crate::detect::claim::{Body, Claim, Detail, piece};
use crate::detect::liveness::progress::{doing, place};
use crate::detect::liveness::standstill::Named;
use crate::detect::liveness::unlaunched;
use crate::event::{Phase, Pulse, Signal};
use crate::id::{GpuId, Rank};
use crate::time::Time;
use crate::verdict::{Cause, Evidence, Finding, Subject};

/// GPU faults that stop a rank.
const STOP_A_RANK: [Finding; 2] = [Finding::GpuLost, Finding::GpuFault];

impl SilenceRule {
    pub(super) fn report(&mut self, scope: &Scope<'_>, subject: Subject) {
        let at = scope.at;
        let Some(named) = self.open.get(&subject).copied() else {
            return;
        };
        let Named {
            finding,
            severity,
            since,
            rank,
            ..
        } = named;
        let asked = self.asked(scope, since);
        if let Some(named) = self.open.get_mut(&subject) {
            (named.asked, named.stacks) = asked;
        }
        if finding == Finding::RankDied {
            return self.tell_death(scope, &named, subject);
        }
        let ranks = || self.about(rank);
        let idle = self.idle_s(at, rank);
        let step = ranks().map(|heard| heard.pulse.step).min();
        let waiting = self
            .pulses
            .values()
            .filter(|heard| heard.pulse.phase == Phase::Wait)
            .count();
        let piece = |what: &str, value| piece(what, value, None);
        let mut evidence = vec![piece("silent_s", idle)];
        if waiting > 0 {
            evidence.push(piece("ranks_waiting", waiting as f64));
        }
        if ranks().all(|heard| !heard.pulse.alive) {
            evidence.push(piece("process_gone", 1.0));
        }
        if finding == Finding::JobHang {
            evidence.extend(self.furthest_behind());
        }
        let mut provenance = self.provenance;
        if self.ras.speaks_of(since, scope.roster) {
            evidence.extend(self.ras.evidence(MAX_BEHIND, scope.roster));
            provenance = provenance.max(self.ras.provenance());
        }
        let (says, cause) = self.explanation(scope, rank, since);
        let lost_s = self.open.lost_s(&subject, at).unwrap_or(0.0);
        let detail = Detail {
            severity,
            since,
            since_step: step,
            step,
            cause,
            signals: vec![Signal::S2],
            provenance,
            slowdown_ratio: None,
            impact_ratio: None,
            lost_rank_s: lost_s * f64::from(scope.roster.world_size),
            evidence,
            says,
        };
        self.out.push_back(Claim {
            finding,
            subject,
            at,
            body: Body::Holds(Box::new(detail)),
        });
    }

    /// Returns text on why a rank, or the whole job, does not move: the collective that was not entered, then the
    /// activity. Also returns the cause. A GPU fault with a finding of its own takes precedence over a cause from the
    /// activity.
    fn explanation(&self, scope: &Scope<'_>, rank: Option<Rank>, since: Time) -> (Option<Arc<str>>, Cause) {
        let gpu = rank.and_then(|rank| gpu_of(scope, rank));
        let is_its_gpu = |subject: &Subject| match (subject, rank) {
            (Subject::Gpu { gpu_uuid, .. }, Some(_)) => Some(gpu_uuid) == gpu,
            (subject, None) => matches!(subject, Subject::Gpu { .. }),
            _ => false,
        };
        let (entered, stacks, cause) = match rank {
            Some(rank) => {
                let (entered, differs) = self.entered.says_of(rank, scope.comms).unzip();
                let cause = differs
                    .filter(|cause| *cause != Cause::Unknown)
                    .unwrap_or_else(|| self.cause_of(scope, rank, since));
                (entered, self.stacks.says_of(rank, since), cause)
            }
            None => {
                let (entered, differs) = self.entered.says_of_all(scope.comms).unzip();
                let cause = differs
                    .filter(|cause| *cause != Cause::Unknown)
                    .unwrap_or_else(|| self.cause_of_all(scope, since));
                // If a rank is inside a call that has not launched its collective, ranks do not wait in the collective
                // that all of them have entered.
                let is_launched = || self.calls(since).all(|call| !unlaunched::is_before_launch(call));
                let all = || is_launched().then(|| self.entered.says_of_none_missing(scope.comms));
                (entered.or_else(|| all()?), self.stacks.says_of_all(since), cause)
            }
        };
        // If the plugin saw different collectives, the program is at fault and not the GPU. A call that is seen only on
        // a stack proves less.
        let may_be_gpu = cause != Cause::CollectiveMismatch;
        let has_fault = may_be_gpu && scope.incidents.holds_any(&STOP_A_RANK, is_its_gpu);
        let cause = if has_fault { Cause::GpuFault } else { cause };
        let (entered, cause) = match self.inside_another(rank, since) {
            Some((words, is_one)) if cause == Cause::Unknown => {
                let cause = if is_one { Cause::CollectiveMismatch } else { cause };
                (entered.map(|entered| format!("{entered}; {words}")), cause)
            }
            _ => (entered, cause),
        };
        let says = match (entered, stacks) {
            (Some(entered), Some(stacks)) => Some(format!("{entered}; {stacks}").into()),
            (Some(entered), None) => Some(entered.into()),
            (None, stacks) => stacks,
        };
        (says, cause)
    }

    /// Returns the collective calls that ranks have been in since `since`.
    fn calls(&self, since: Time) -> impl Iterator<Item = &'static str> {
        let ranks = self.pulses.keys();
        ranks.filter_map(move |rank| self.stacks.call_of(*rank, since))
    }

    /// Returns text such as `it is inside barrier instead`, and true if it is about a single rank. It applies to ranks
    /// that have not entered a collective that others have entered, if all of them are inside the call of another
    /// collective that they have not launched. Two or more such ranks may wait for each other in a group that has not
    /// connected yet, which is no mismatch.
    fn inside_another(&self, rank: Option<Rank>, since: Time) -> Option<(String, bool)> {
        let (awaited, missing) = self.entered.awaited(rank)?;
        let mut calls = missing.iter().map(|rank| self.stacks.call_of(*rank, since));
        let call = calls.next()??;
        let is_other = awaited
            .iter()
            .all(|launched| unlaunched::is_another(call, launched));
        if !is_other || calls.any(|other| other != Some(call)) {
            return None;
        }
        Some(match missing.len() {
            1 => (format!("it is inside {call} instead"), true),
            _ => (format!("they are inside {call}"), false),
        })
    }

    /// Returns why a rank does not move, according to its activity.
    fn cause_of(&self, scope: &Scope<'_>, rank: Rank, since: Time) -> Cause {
        let heard = self.pulses.get(&rank);
        let phase = heard.map_or(Phase::Other, |heard| heard.pulse.phase);
        self.stacks
            .cause_of(rank, since, phase, gpu_of(scope, rank).is_some())
    }

    /// Returns the cause that all ranks share, which can only be storage that does not respond or a stopped job. Other
    /// waits do not count: all ranks may wait for a lock, a socket or a loader because they wait for each other.
    fn cause_of_all(&self, scope: &Scope<'_>, since: Time) -> Cause {
        let mut causes = self.pulses.keys().map(|rank| self.cause_of(scope, *rank, since));
        let first = causes.next().unwrap_or_default();
        if matches!(first, Cause::Storage | Cause::Stopped) && causes.all(|cause| cause == first) {
            first
        } else {
            Cause::Unknown
        }
    }

    /// Returns the ranks that a signal has stopped although all ranks have the same position. Collectives that were
    /// launched earlier hide the stop from their phases. A stopped rank that waits for others is left out, because it
    /// is not the reason for the hang.
    pub(super) fn stopped(&self, since: Time) -> Vec<Rank> {
        let stopped = self.stacks.stopped(since);
        stopped
            .filter(|rank| self.pulses.contains_key(rank) && !self.entered.waits_for_others(*rank))
            .collect()
    }

    /// Returns the ranks that are behind the others, the furthest behind first. They are where to look if no single
    /// rank is to blame.
    pub(super) fn furthest_behind(&self) -> Vec<Evidence> {
        let most = self.pulses.values().map(|heard| place(&heard.pulse)).max();
        let mut behind: Vec<(&Rank, &Pulse)> = self
            .pulses
            .iter()
            .map(|(rank, heard)| (rank, &heard.pulse))
            .filter(|(_, pulse)| Some(place(pulse)) < most)
            .collect();
        behind.sort_by_key(|(rank, pulse)| (place(pulse), **rank));
        let furthest = most.map_or(0.0, |(step, _)| step as f64);
        let item = |(rank, pulse): &(&Rank, &Pulse)| {
            let what = format!("rank {rank} in step, {}", doing(pulse.phase));
            piece(&what, pulse.step as f64, Some(furthest))
        };
        behind.iter().take(MAX_BEHIND).map(item).collect()
    }
}

fn gpu_of<'a>(scope: &Scope<'a>, rank: Rank) -> Option<&'a GpuId> {
    scope.roster.member(rank)?.gpu.as_ref()
}
