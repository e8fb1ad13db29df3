//! Scores the worlds in which no rank is at fault.

use super::detection::{Tally, each_rule};
use super::{Case, INNOCENT};
use crate::evaluate::baselines::NAMES;
use crate::evaluate::expect::Who;
use crate::evaluate::interval::{poisson_upper, wilson};
use crate::evaluate::row::{Better, Row, Unit};
use crate::evaluate::suite::{Seen, Suite};
use paceline_health::verdict::Finding;

/// Rank-steps per unit of the alarm rate.
const TEN_MILLION: f64 = 1e7;

pub(super) fn rows(cases: &[Case<'_>]) -> Vec<Row> {
    let mut rows = Vec::new();
    rows.extend(false_alarms(cases));
    for finding in [
        Finding::StageImbalance,
        Finding::SequenceImbalance,
        Finding::ExpertImbalance,
    ] {
        rows.extend(imbalance(cases, finding));
    }
    rows.extend(nobody_named(cases));
    rows
}

/// Counts the alarms in worlds without faults, per ten million rank-steps. The upper bound is compared with the target.
fn false_alarms(cases: &[Case<'_>]) -> Option<Row> {
    let (mut steps, mut ours, mut others) = (0, 0, [0; NAMES.len()]);
    for case in cases.iter().filter(|case| case.is_of(&INNOCENT)) {
        steps += case.outcome.rank_steps;
        ours += case.wrong().count() as u64;
        for naming in &case.outcome.namings {
            others[naming.rule] += u64::from(!case.is_slow(naming.rank, naming.step));
        }
    }
    let rate = |count: f64| count * TEN_MILLION / steps as f64;
    let row = Row::at_most(
        "false alarms per 10,000,000 healthy rank-steps (upper 95 % bound)",
        1.0,
    );
    (steps > 0).then(|| {
        row.in_unit(Unit::PerTenMillion)
            .with(rate(poisson_upper(ours)), steps)
            .within(Some([rate(ours as f64), rate(poisson_upper(ours))]))
            .noting(format!("{ours} in {steps} rank-steps"))
            .beside(each_rule(|rule| rate(poisson_upper(others[rule]))))
    })
}

/// Scores worlds with imbalanced work. The finding must be raised for the job, and for no rank or node.
fn imbalance(cases: &[Case<'_>], finding: Finding) -> Option<Row> {
    let mut ours = Tally::default();
    for case in cases.iter().filter(|case| case.is_of(&[Suite::Imbalance])) {
        for expected in case.required().filter(|expected| expected.finding == finding) {
            let named = case.wrong().any(|claim| claim.who != Who::Job);
            ours.add(case.answer(expected).is_some() && !named);
        }
    }
    let name = format!("{finding} of the job alone, no rank named");
    (ours.of > 0).then(|| ours.row(Row::at_least(&name, 1.0)))
}

fn nobody_named(cases: &[Case<'_>]) -> Option<Row> {
    let mut ours = Tally::default();
    let mut others = [Tally::default(); NAMES.len()];
    for case in cases.iter().filter(|case| case.is_of(&[Suite::Imbalance])) {
        ours.add(case.wrong().all(|claim| claim.who == Who::Job));
        for (rule, tally) in others.iter_mut().enumerate() {
            tally.add(case.outcome.namings.iter().all(|naming| naming.rule != rule));
        }
    }
    let row = Row::at_least("unbalanced jobs in which no rank is named", 1.0);
    (ours.of > 0).then(|| ours.row(row).beside(each_rule(|rule| others[rule].share())))
}

/// Scores worlds with restarts, loss and disorder. They must cause no false alarms, and coverage must report what was
/// not seen.
pub(super) fn rough_rows(cases: &[Case<'_>]) -> Vec<Row> {
    let rough: Vec<&Case<'_>> = cases.iter().filter(|case| case.is_of(&[Suite::Rough])).collect();
    if rough.is_empty() {
        return Vec::new();
    }
    let wrong: u64 = rough.iter().map(|case| case.wrong().count() as u64).sum();
    let mut covered = Tally::default();
    let mut others = [0_u64; NAMES.len()];
    for case in &rough {
        covered.add(is_covered(case));
        for naming in &case.outcome.namings {
            others[naming.rule] += u64::from(!case.is_slow(naming.rank, naming.step));
        }
    }
    let affected = rough.iter().filter(|case| case.wrong().next().is_some()).count() as u64;
    vec![
        Row::at_most("false alerts in restarts, loss, disorder, late ranks", 0.0)
            .in_unit(Unit::Count)
            .with(wrong as f64, rough.len() as u64)
            .noting(format!("in {affected} of {} worlds", rough.len()))
            .beside(each_rule(|rule| others[rule] as f64)),
        covered.row(Row::at_least("coverage says what was not seen", 1.0)),
        Row::told("worlds of these with a false alert", Better::Lower)
            .with(affected as f64 / rough.len() as f64, rough.len() as u64)
            .within(wilson(affected, rough.len() as u64)),
    ]
}

fn is_covered(case: &Case<'_>) -> bool {
    let (ratio, gaps) = (case.outcome.steps_ratio, case.outcome.gaps);
    match case.scenario.seen {
        Seen::Any => ratio.is_some(),
        Seen::Whole => ratio.is_some_and(|ratio| ratio > 0.999),
        Seen::Part => ratio.is_some_and(|ratio| ratio < 0.98),
        Seen::Gap => gaps,
    }
}
