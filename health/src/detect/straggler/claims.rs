//! Claims about open stragglers.

use super::StragglerRule;
use crate::detect::claim::{Body, Claim, Detail, over, piece};
use crate::detect::members::roster::Roster;
use crate::detect::straggler::open_straggler::{Extent, OpenStraggler};
use crate::detect::view::View;
use crate::event::Signal;
use crate::id::{JobId, Rank};
use crate::policy::Thresholds;
use crate::time::Time;
use crate::verdict::{Cause, Severity};

/// Returns what is known about the cause of a finding. When this changes, the finding is reported again.
pub(super) fn known(raised: &OpenStraggler) -> (Cause, bool, bool) {
    (
        raised.cause(),
        raised.has_contributions(),
        raised.rotates_for.is_some(),
    )
}

impl StragglerRule {
    /// Reports a new finding, unless a rotation that is already reported covers it.
    pub(super) fn introduce(&mut self, view: &View<'_>, index: usize) {
        self.judge(view, index);
        let raised = &mut self.raised[index];
        if matches!(raised.extent, Extent::Rank(_)) {
            let mut rotating = view.rotating.iter().flatten().copied();
            raised.rotates_for = rotating.find(|known| may_be_for(raised, *known));
        }
        if let Some(cause) = raised.rotates_for {
            *self.untold.entry(cause).or_default() += raised.account.gain_s;
        }
        self.claim(view, index);
    }

    /// Searches for the cause of an open finding.
    pub(super) fn judge(&mut self, view: &View<'_>, index: usize) {
        let raised = &mut self.raised[index];
        let since = self.history.time_of(raised.start).unwrap_or(view.at);
        let suspect = raised.account.suspect(&raised.members, since);
        let known = raised.explained.as_ref().map(|known| known.cause);
        let found = view.causes.explain(&suspect, &view.scope(), known);
        raised.explain(view.at, found, view.limits.causes.min_readings);
        if raised.rotates_for.is_some_and(|known| !may_be_for(raised, known)) {
            raised.rotates_for = None;
        }
    }

    pub(super) fn judge_and_claim(&mut self, view: &View<'_>, index: usize) {
        self.judge(view, index);
        self.claim(view, index);
    }

    pub(super) fn severity(&self, index: usize, limits: &Thresholds) -> Severity {
        let raised = &self.raised[index];
        let impact = raised.account.impact();
        let severity = limits.impact.severity(impact);
        if raised.few_peers {
            severity.min(Severity::Warning)
        } else {
            severity
        }
    }

    /// Ends the findings of a rank that has died, because it is no longer slow.
    pub fn rank_died(&mut self, at: Time, rank: Rank, roster: &Roster, job: &JobId) {
        let (over, others): (Vec<OpenStraggler>, Vec<OpenStraggler>) = std::mem::take(&mut self.raised)
            .into_iter()
            .partition(|raised| raised.extent == Extent::Rank(rank));
        self.raised = others;
        for raised in over {
            self.end(at, &raised, roster, job);
        }
    }

    pub(super) fn end(&mut self, at: Time, raised: &OpenStraggler, roster: &Roster, job: &JobId) {
        if raised.rotates_for.is_some() {
            return;
        }
        let finding = raised.extent.finding();
        if let Some(subject) = raised.extent.subject(roster, job) {
            self.out
                .push_back(over(at, finding, subject, raised.outcome(roster)));
        }
    }

    /// Reports an open finding, unless the job's finding covers it.
    pub(super) fn claim(&mut self, view: &View<'_>, index: usize) {
        let severity = self.severity(index, view.limits);
        let raised = &mut self.raised[index];
        let Some(subject) = raised.extent.subject(view.roster, view.job) else {
            return;
        };
        let since = self.history.time_of(raised.start).unwrap_or(view.at);
        raised.severity = raised.severity.max(severity);
        if raised.rotates_for.is_some() {
            return;
        }
        let mut evidence = raised.evidence();
        let mut signals = vec![self.signal.unwrap_or(Signal::S2)];
        if signals == [Signal::S1]
            && let Extent::Rank(rank) = raised.extent
        {
            evidence.push(piece(
                "came_last_ratio",
                view.waits.came_last(rank, raised.account.rows),
                None,
            ));
        }
        let mut provenance = self.provenance;
        if let Some(explained) = &raised.explained {
            evidence.extend(explained.evidence.iter().cloned());
            signals.extend(&explained.signals);
            signals.sort_unstable();
            signals.dedup();
            provenance = provenance.max(explained.provenance);
        }
        let detail = Detail {
            severity: raised.severity,
            since,
            since_step: Some(raised.start + 1),
            step: Some(raised.step),
            cause: raised.cause(),
            signals,
            provenance,
            slowdown_ratio: Some(raised.account.x().exp()),
            impact_ratio: Some(raised.account.impact()),
            lost_rank_s: raised.lost(view.roster),
            evidence,
            says: None,
        };
        self.out.push_back(Claim {
            finding: raised.extent.finding(),
            subject,
            at: view.at,
            body: Body::Holds(Box::new(detail)),
        });
    }
}

/// Returns true if the finding may be part of a rotation for `cause`. This is the case if it has that cause, or if its
/// cause is not known yet because the counters are read only once a second.
fn may_be_for(raised: &OpenStraggler, cause: Cause) -> bool {
    match raised.cause() {
        Cause::Unknown => raised.is_early,
        known => known == cause,
    }
}
