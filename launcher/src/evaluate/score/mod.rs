//! Compares verdicts with the truth. This module is pure: it converts outcomes to rows.
//!
//! It is strict where there is a choice. A verdict is false, whatever its severity, if no expectation of the world
//! matches both its finding and its subject. (A rank of a slow node is not the node.) A verdict is also false if it
//! comes before the fault or more than [`GRACE_STEPS`] after the fault's end. If the same true verdict is raised twice,
//! it is one hit. If the same mistake is made twice, it counts twice.

mod alarms;
mod cause;
mod collectives;
mod cost;
mod detection;
mod failures;

pub(super) use self::cause::Confusion;
pub(super) use self::detection::delays;
pub(super) use self::failures::{Failure, of as failure};

use paceline_health::id::Rank;

use super::baselines::NAMES;
use super::expect::{Expectation, Who};
use super::row::Row;
use super::suite::{Job, Scenario, Suite};
use super::watch::{Claim, Outcome};

/// Number of steps by which a verdict may follow the end of its fault, because the fault's last step must arrive first.
const GRACE_STEPS: u64 = 20;

/// One world with its outcome.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case<'a> {
    /// The scenario of this world.
    pub(super) scenario: &'a Scenario,
    /// The simulation job of this world.
    pub(super) job: &'a Job,
    /// The outcome of this world.
    pub(super) outcome: &'a Outcome,
}

/// Returns all rows, in the order of the table.
pub(super) fn rows(cases: &[Case<'_>]) -> Vec<Row> {
    [
        detection::rows(cases),
        alarms::rows(cases),
        cause::rows(cases),
        cost::rows(cases),
        alarms::rough_rows(cases),
        collectives::rows(cases),
        detection::other_rows(cases),
    ]
    .concat()
}

/// Returns the confusion matrix of causes.
pub(super) fn confusion(cases: &[Case<'_>]) -> Confusion {
    Confusion::of(cases)
}

/// Returns if the slow rank was found by the detector and by each other rule. Returns `None` if there is no single slow
/// rank.
pub(super) fn found_by(case: &Case<'_>) -> Option<[bool; NAMES.len() + 1]> {
    let (expected, rank) = case.culprit()?;
    Some(std::array::from_fn(|index| match index.checked_sub(1) {
        None => case.answer(expected).is_some(),
        Some(rule) => case.named_by(rule, expected, rank).is_some(),
    }))
}

/// Returns a failure for every world with a mistake.
pub(super) fn failures(cases: &[Case<'_>]) -> Vec<Failure> {
    cases.iter().filter_map(failure).collect()
}

impl<'a> Case<'a> {
    /// Returns the first and the last step in which `expected` holds.
    fn window(&self, expected: &Expectation) -> (u64, u64) {
        let fault = expected.fault.and_then(|fault| self.outcome.truths.get(fault));
        let since = fault.and_then(|truth| truth.since_step).unwrap_or(0);
        let last = fault.and_then(|truth| truth.last_step).unwrap_or(u64::MAX);
        (since, last)
    }

    fn is_in_time(&self, expected: &Expectation, step: u64) -> bool {
        let (since, last) = self.window(expected);
        // Allow one step less, because a hang is reported before its step ends.
        step + 1 >= since && step <= last.saturating_add(GRACE_STEPS)
    }

    fn answers(&self, claim: &Claim, expected: &Expectation) -> bool {
        claim.finding == expected.finding
            && claim.who.answers(expected.who)
            && self.was_struck(claim.who, expected)
            && self.is_in_time(expected, claim.step)
    }

    /// Returns true if the rank is among the affected ones, for expectations that permit several ranks.
    fn was_struck(&self, who: Who, expected: &Expectation) -> bool {
        let fault = expected.fault.and_then(|fault| self.outcome.truths.get(fault));
        match (expected.who, who) {
            (Who::AnyRank, Who::Rank(rank)) => fault.is_some_and(|truth| truth.ranks.contains(&Rank(rank))),
            (Who::RankOn(node), Who::Rank(rank)) => rank / self.outcome.per_node == node,
            _ => true,
        }
    }

    /// Returns the first claim that satisfies an expectation.
    pub(super) fn answer(&self, expected: &Expectation) -> Option<&'a Claim> {
        self.outcome
            .claims
            .iter()
            .find(|claim| self.answers(claim, expected))
    }

    /// Returns the claims that satisfy no expectation.
    pub(super) fn wrong(&self) -> impl Iterator<Item = &'a Claim> {
        let case = *self;
        self.outcome.claims.iter().filter(move |claim| {
            let mut expected = case.job.expect.iter();
            !expected.any(|expected| case.answers(claim, expected))
        })
    }

    /// Returns the expectations that are required.
    pub(super) fn required(&self) -> impl Iterator<Item = &'a Expectation> {
        self.job.expect.iter().filter(|expected| expected.required)
    }

    /// Returns the rank that must be named, if there is one.
    pub(super) fn culprit(&self) -> Option<(&'a Expectation, u32)> {
        self.required().find_map(|expected| match expected.who {
            Who::Rank(rank) => Some((expected, rank)),
            _ => None,
        })
    }

    /// Returns the step in which another rule named the slow rank, if it did so while the rank was slow.
    fn named_by(&self, rule: usize, expected: &Expectation, rank: u32) -> Option<u64> {
        let mut namings = self.outcome.namings.iter();
        namings
            .find(|naming| {
                naming.rule == rule && naming.rank == rank && self.is_in_time(expected, naming.step)
            })
            .map(|naming| naming.step)
    }

    /// Returns true if the rank was slow in that step, alone or with others. The other rules name only ranks, so for
    /// them a rank of a slow node counts as correct.
    fn is_slow(&self, rank: u32, step: u64) -> bool {
        let node = rank / self.outcome.per_node;
        self.job.expect.iter().any(|expected| {
            let whom = match expected.who {
                Who::Rank(whom) => whom == rank,
                Who::Node(whom) | Who::Link(whom, None) => whom == node,
                Who::Link(one, Some(other)) => one == node || other == node,
                Who::Rack(rack) => self.job.rack_of(node) == rack,
                Who::AnyRank | Who::RankOn(_) => self.was_struck(Who::Rank(rank), expected),
                Who::Job | Who::Stranger => false,
            };
            whom && self.is_in_time(expected, step)
        })
    }

    fn is_of(&self, suites: &[Suite]) -> bool {
        suites.contains(&self.scenario.suite)
    }
}

/// Suites in which only the job may be named, and no rank.
const INNOCENT: [Suite; 2] = [Suite::Healthy, Suite::Imbalance];

#[cfg(test)]
mod tests;
