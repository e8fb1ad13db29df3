//! Summary of the audit log, for the report.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Decision, Outcome, Response};
use crate::verdict::{Finding, Subject};

/// Maximum number of decisions that are listed. Refusals are dropped first.
const MOST: usize = 64;
/// Maximum number of results listed per decision.
const MOST_WORDS: usize = 16;

/// Decisions about a job's findings, and their results.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Remedies {
    /// Number of decisions by kind.
    pub counts: Vec<Counted>,
    /// The latest decisions, oldest first.
    pub latest: Vec<AuditedDecision>,
}

/// Decisions of one kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Counted {
    /// The requested response.
    pub response: Response,
    /// `act`, or the reason for the refusal ([`super::Reason::name`]).
    pub outcome: Arc<str>,
    /// The number of such decisions.
    pub count: u64,
}

/// One decision.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AuditedDecision {
    /// When the decision was made, in milliseconds since 1970.
    pub unix_ms: u64,
    /// The finding.
    pub finding: Finding,
    /// Its subject.
    pub subject: Subject,
    /// The requested response.
    pub response: Response,
    /// `act`, or the reason for the refusal.
    pub outcome: Arc<str>,
    /// The mark that identifies the decision.
    pub mark: Arc<str>,
    /// The results of carrying it out, in order.
    pub course: Vec<Arc<str>>,
}

impl Remedies {
    /// Returns true if there were no requests.
    pub fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    /// Adds a decision.
    pub fn decision(&mut self, decision: &Decision) {
        let ask = &decision.ask;
        let outcome: Arc<str> = Arc::from(match &decision.outcome {
            Outcome::Act => ACT,
            Outcome::Refuse(reason) => reason.name(),
        });
        let is_alike = |one: &&mut Counted| one.response == ask.response && one.outcome == outcome;
        match self.counts.iter_mut().find(is_alike) {
            Some(counted) => counted.count += 1,
            None => self.counts.push(Counted {
                response: ask.response,
                outcome: outcome.clone(),
                count: 1,
            }),
        }
        self.latest.push(AuditedDecision {
            unix_ms: decision.unix_ms,
            finding: ask.finding,
            subject: ask.subject.clone(),
            response: ask.response,
            outcome,
            mark: decision.mark.clone(),
            course: Vec::new(),
        });
        if self.latest.len() > MOST {
            let refused = self.latest.iter().position(|told| &*told.outcome != ACT);
            self.latest.remove(refused.unwrap_or(0));
        }
    }

    /// Adds a result of the decision with this mark.
    pub fn course(&mut self, mark: &str, what: &str) {
        let told = self.latest.iter_mut().rev().find(|told| &*told.mark == mark);
        if let Some(told) = told.filter(|told| told.course.len() < MOST_WORDS) {
            told.course.push(Arc::from(what));
        }
    }
}

/// The name of [`Outcome::Act`].
pub const ACT: &str = "act";

#[cfg(test)]
mod tests {
    use super::super::tests::ask;
    use super::super::{Guard, Ledger, Reason, Saved};
    use super::*;

    #[test]
    fn what_was_done_stays_and_all_is_counted() {
        let mut remedies = Remedies::default();
        assert!(remedies.is_empty());
        let mut guard = Guard::open(super::super::tests::rules("hold_s=0"), Saved::default(), 0);
        let mut site = Ledger::default();
        guard.ask(0, ask(1, "n1"), &mut site);
        guard.advance(0, &mut site);
        let mut decision = guard.poll().unwrap();
        remedies.decision(&decision);
        let mark = decision.mark.clone();
        decision.outcome = Outcome::Refuse(Reason::CoolDown(7));
        for id in 2..=200 {
            decision.mark = Arc::from(format!("paceline:j:1:{id}"));
            remedies.decision(&decision);
        }
        remedies.course(&mark, "requeued");
        remedies.course("nobody", "nothing");
        let counts: Vec<_> = remedies
            .counts
            .iter()
            .map(|one| (&*one.outcome, one.count))
            .collect();
        assert_eq!(counts, [("act", 1), ("cool-down", 199)]);
        assert_eq!(remedies.latest.len(), MOST);
        assert_eq!(remedies.latest[0].course, [Arc::from("requeued")]);
        assert_eq!(&*remedies.latest[MOST - 1].mark, "paceline:j:1:200");
    }
}
