//! Incidents: claims that have a number, an action and a history. Each new or changed incident is returned once.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::detect::claim::{Body, Claim, Detail, Outcome};
use crate::fault::Order;
use crate::policy::Policy;
use crate::time::Time;
use crate::verdict::{Cause, Evidence, Finding, Severity, State, Subject, Verdict};

/// Maximum number of incidents kept for the report. The oldest closed ones are dropped first.
const MAX_KEPT: usize = 10_000;

/// All incidents of the job, and those not yet returned.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Incidents {
    /// All incidents, by ID.
    all: BTreeMap<u64, Verdict>,
    /// Open incidents: their ID, and the severity that they would have if policy were not observe-only.
    open: BTreeMap<(Finding, Subject), (u64, Severity)>,
    last_id: u64,
    /// True if the job has only one rank.
    pub is_alone: bool,
    out: VecDeque<Verdict>,
}

impl Incidents {
    /// Books a claim. `origin` is the time of the first frame.
    pub fn record(&mut self, claim: Claim, origin: Time, policy: &Policy) {
        self.book_ordered(claim, None, origin, policy);
    }

    /// Books a claim with its own order and text.
    pub fn book_ordered(
        &mut self,
        claim: Claim,
        order: Option<(Order, Option<Arc<str>>)>,
        origin: Time,
        policy: &Policy,
    ) {
        let seconds = |at: Time| round(at.since(origin).as_secs_f64());
        let key = (claim.finding, claim.subject);
        let open = self.open.get(&key).map(|(id, _)| *id);
        let verdict = match (claim.body, open) {
            (Body::Holds(detail), known) => {
                let id = known.unwrap_or_else(|| {
                    self.last_id += 1;
                    self.last_id
                });
                self.open.insert(key.clone(), (id, detail.severity));
                let action = if self.is_alone {
                    policy.action_alone(key.0, detail.cause)
                } else {
                    policy.action(key.0, detail.cause)
                };
                let since_s = seconds(detail.since);
                let mut new = raised(id, key, *detail, since_s, seconds(claim.at), action);
                if let Some((order, words)) = order {
                    new.order = Some(order);
                    new.action = words.unwrap_or(new.action);
                }
                bound_severity(&mut new, policy);
                match self.all.get(&id) {
                    // Keep the time and step at which the incident was raised, and replace everything else.
                    Some(old) => Verdict {
                        raised_s: old.raised_s,
                        raised_step: old.raised_step,
                        ..new
                    },
                    None => new,
                }
            }
            (Body::Over(outcome), Some(id)) => {
                self.open.remove(&key);
                let Some(mut verdict) = self.all.get(&id).cloned() else {
                    return;
                };
                verdict.state = State::Cleared;
                verdict.cleared_s = Some(seconds(claim.at));
                renew(&mut verdict, outcome);
                verdict
            }
            (Body::Over(_), None) => return,
        };
        self.all.insert(verdict.id, verdict.clone());
        self.out.push_back(verdict);
        self.forget();
    }

    /// Updates the figures of a finding while it is unclear whether it is over.
    pub fn settle(&mut self, claim: &Claim) {
        let Body::Over(outcome) = &claim.body else { return };
        let key = (claim.finding, claim.subject.clone());
        if let Some((id, _)) = self.open.get(&key)
            && let Some(verdict) = self.all.get_mut(id)
        {
            renew(verdict, outcome.clone());
        }
    }

    /// Returns the cause of an open finding on a subject, or `None` if the finding is not open.
    pub fn cause_of(&self, finding: Finding, subject: &Subject) -> Option<Cause> {
        let (id, _) = self.open.get(&(finding, subject.clone()))?;
        self.all.get(id).map(|verdict| verdict.cause)
    }

    /// Returns true if one of these findings is open on a subject for which `on` returns true.
    pub fn holds_any(&self, findings: &[Finding], mut on: impl FnMut(&Subject) -> bool) -> bool {
        let mut open = self.open.keys();
        open.any(|(finding, subject)| findings.contains(finding) && on(subject))
    }

    /// Reports open incidents again if a change of policy makes them observe-only or ends that.
    pub fn reconsider(&mut self, policy: &Policy) {
        for (id, severity) in self.open.values() {
            let Some(verdict) = self.all.get_mut(id) else {
                continue;
            };
            if verdict.observe_only != policy.observes_only(verdict.finding) {
                verdict.severity = *severity;
                bound_severity(verdict, policy);
                self.out.push_back(verdict.clone());
            }
        }
    }

    /// Returns the next new or changed incident.
    pub fn poll(&mut self) -> Option<Verdict> {
        self.out.pop_front()
    }

    /// Returns all incidents that are kept, in the order in which they were raised.
    pub fn all(&self) -> impl Iterator<Item = &Verdict> {
        self.all.values()
    }

    fn forget(&mut self) {
        while self.all.len() > MAX_KEPT {
            let closed = self
                .all
                .iter()
                .find(|(_, verdict)| verdict.state == State::Cleared);
            let Some(id) = closed.or_else(|| self.all.iter().next()).map(|(id, _)| *id) else {
                return;
            };
            self.all.remove(&id);
        }
    }
}

fn raised(
    id: u64,
    (finding, subject): (Finding, Subject),
    detail: Detail,
    since_s: f64,
    raised_s: f64,
    action: Arc<str>,
) -> Verdict {
    Verdict {
        id,
        finding,
        subject,
        severity: detail.severity,
        state: State::Raised,
        since_s,
        since_step: detail.since_step,
        raised_s,
        raised_step: detail.step,
        cleared_s: None,
        signals: detail.signals,
        provenance: detail.provenance,
        slowdown_ratio: detail.slowdown_ratio.map(round),
        cause: detail.cause,
        evidence: detail.evidence.into_iter().map(rounded).collect(),
        impact_ratio: detail.impact_ratio.map(round),
        lost_gpu_hours: hours(detail.lost_rank_s),
        lost_cost: None,
        action,
        observe_only: false,
        order: None,
        says: detail.says,
        unresolved_at_exit: false,
    }
}

/// Lowers a severity to what policy allows for the finding. Findings that are observe-only are marked as such and raise
/// no alert.
fn bound_severity(verdict: &mut Verdict, policy: &Policy) {
    verdict.observe_only = policy.observes_only(verdict.finding);
    verdict.severity = match verdict.observe_only {
        true => Severity::Info,
        false => policy.finding(verdict.finding).urgency.bound(verdict.severity),
    };
}

/// Replaces the figures from when the incident was raised by the current ones.
pub fn renew(verdict: &mut Verdict, outcome: Outcome) {
    verdict.lost_gpu_hours = hours(outcome.lost_rank_s);
    verdict.slowdown_ratio = outcome.slowdown_ratio.map(round).or(verdict.slowdown_ratio);
    verdict.impact_ratio = outcome.impact_ratio.map(round).or(verdict.impact_ratio);
    // Keep the evidence that the outcome does not renew, such as that of the cause.
    let is_renewed = |old: &Evidence| outcome.evidence.iter().any(|new| new.what == old.what);
    verdict.evidence.retain(|old| !is_renewed(old));
    verdict
        .evidence
        .splice(0..0, outcome.evidence.into_iter().map(rounded));
}

fn rounded(mut piece: Evidence) -> Evidence {
    piece.value = round(piece.value);
    piece.peers = piece.peers.map(round);
    piece
}

/// Rounds to six decimals, which is precise to a microsecond and short enough to read.
pub fn round(value: f64) -> f64 {
    if value.is_finite() {
        (value * 1e6).round() / 1e6
    } else {
        0.0
    }
}

/// Converts rank-seconds to GPU-hours with nine decimals, because a short run loses little.
pub fn hours(rank_s: f64) -> f64 {
    (rank_s / 3600.0 * 1e9).round() / 1e9
}
