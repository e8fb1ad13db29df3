//! Claims about silent ranks.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::{MAX_BEHIND, Scope, SilenceRule};
use crate::detect::claim::{Body, Claim, Detail, piece};
use crate::detect::liveness::hang_cause::is_certain;
use crate::detect::liveness::progress::{doing, place};
use crate::detect::liveness::standstill::Named;
use crate::detect::liveness::unlaunched;
use crate::event::{Phase, Pulse, Signal};
use crate::id::{GpuId, Rank};
use crate::time::Time;
use crate::verdict::{Cause, Evidence, Finding, Subject};

/// Faults of a GPU after which its rank does not go on.
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

    /// What is said of a rank that does not move, or of all: the collective that is not entered, then what they do; and
    /// the cause. A fault that another finding shows goes before what the rank does.
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
                // What all have entered is not what they wait in while they are inside a call that launches another.
                let is_launched = || self.calls().all(|call| !unlaunched::is_before_launch(call));
                let all = || is_launched().then(|| self.entered.says_of_none_missing(scope.comms));
                (entered.or_else(|| all()?), self.stacks.says_of_all(since), cause)
            }
        };
        let (entered, cause) = match self.inside_another(rank) {
            Some(words) if cause == Cause::Unknown => {
                let entered = entered.map(|entered| format!("{entered}; {words} instead"));
                (entered, Cause::CollectiveMismatch)
            }
            _ => (entered, cause),
        };
        let says = match (entered, stacks) {
            (Some(entered), Some(stacks)) => Some(format!("{entered}; {stacks}").into()),
            (Some(entered), None) => Some(entered.into()),
            (None, stacks) => stacks,
        };
        // Where the collectives differ, the program is at fault.
        let may_be_gpu = cause != Cause::CollectiveMismatch;
        let has_fault = may_be_gpu && scope.incidents.holds_any(&STOP_A_RANK, is_its_gpu);
        (says, if has_fault { Cause::GpuFault } else { cause })
    }

    /// The calls of collectives in which ranks are.
    fn calls(&self) -> impl Iterator<Item = &'static str> {
        self.pulses.keys().filter_map(|rank| self.stacks.call_of(*rank))
    }

    /// `it is inside barrier`: ranks that have not entered what others have, and are all in the call of another
    /// collective, which they have not launched.
    fn inside_another(&self, rank: Option<Rank>) -> Option<String> {
        let (awaited, missing) = self.entered.awaited(rank)?;
        let mut calls = missing.iter().map(|rank| self.stacks.call_of(*rank));
        let call = calls.next()??;
        let is_other = unlaunched::is_another(call, awaited) && calls.all(|other| other == Some(call));
        let they_are = if missing.len() == 1 { "it is" } else { "they are" };
        is_other.then(|| format!("{they_are} inside {call}"))
    }

    /// Why a rank does not move, by what it did.
    fn cause_of(&self, scope: &Scope<'_>, rank: Rank, since: Time) -> Cause {
        let heard = self.pulses.get(&rank);
        let phase = heard.map_or(Phase::Other, |heard| heard.pulse.phase);
        self.stacks
            .cause_of(rank, since, phase, gpu_of(scope, rank).is_some())
    }

    /// The cause that each rank has, such as storage that responds to none of them.
    fn cause_of_all(&self, scope: &Scope<'_>, since: Time) -> Cause {
        let mut causes = self.pulses.keys().map(|rank| self.cause_of(scope, *rank, since));
        let first = causes.next().unwrap_or_default();
        let tells = is_certain(first) || matches!(first, Cause::DataLoading | Cause::Checkpoint);
        // All may wait for a lock or a socket of their own only because they wait for each other.
        if tells && causes.all(|cause| cause == first) {
            first
        } else {
            Cause::Unknown
        }
    }

    /// Ranks that cannot go on while the others wait for them, though all stand at the same place: what they launched
    /// before hides that from their phases. They are stopped or wait for storage or the driver; or they have not entered
    /// a collective, and do instead what most others do not, with a cause.
    pub(super) fn singled_out(&self, scope: &Scope<'_>, since: Time) -> BTreeSet<Rank> {
        let missing = self.entered.missing();
        let is_blocked = |rank: &Rank| {
            let cause = self.cause_of(scope, *rank, since);
            let is_elsewhere = || missing.contains(rank) && self.stacks.differs(*rank);
            is_certain(cause) || (cause != Cause::Unknown && is_elsewhere())
        };
        self.pulses.keys().copied().filter(is_blocked).collect()
    }

    /// Ranks that have got less far than the others, the furthest behind first: where to look when nobody alone is to
    /// blame.
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
