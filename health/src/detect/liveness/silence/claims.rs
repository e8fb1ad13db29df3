//! Claims about silent ranks.

use super::{MAX_BEHIND, Scope, SilenceRule};
use crate::detect::claim::{Body, Claim, Detail, piece};
use crate::detect::liveness::progress::{doing, place};
use crate::detect::liveness::standstill::Named;
use crate::event::{Phase, Pulse, Signal};
use crate::id::Rank;
use crate::verdict::{Cause, Evidence, Finding, Subject};

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
        let lost_s = self.open.lost_s(&subject, at).unwrap_or(0.0);
        let detail = Detail {
            severity,
            since,
            since_step: step,
            step,
            cause: Cause::Unknown,
            signals: vec![Signal::S2],
            provenance,
            slowdown_ratio: None,
            impact_ratio: None,
            lost_rank_s: lost_s * f64::from(scope.roster.world_size),
            evidence,
            says: match rank {
                Some(rank) => self.stacks.says_of(rank, since),
                None => self.stacks.says_of_all(since),
            },
        };
        self.out.push_back(Claim {
            finding,
            subject,
            at,
            body: Body::Holds(Box::new(detail)),
        });
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
