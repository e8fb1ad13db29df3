//! Blame from collectives alone.

use super::Case;
use super::detection::Tally;
use crate::evaluate::expect::Who;
use crate::evaluate::interval::poisson_upper;
use crate::evaluate::row::{Better, Row, Unit};
use crate::evaluate::suite::Suite;

/// Rank-steps in which alarms are counted.
const TEN_MILLION: f64 = 1e7;

pub(super) fn rows(cases: &[Case<'_>]) -> Vec<Row> {
    let cases: Vec<&Case<'_>> = cases
        .iter()
        .filter(|case| case.is_of(&[Suite::Collectives]))
        .collect();
    let of = |noise: &str, least: f64| -> Vec<&Case<'_>> {
        let is_of = |case: &&&Case<'_>| {
            let name = &case.scenario.name;
            name.starts_with(&format!("collectives-{noise}")) && case.scenario.slower >= Some(least)
        };
        cases.iter().filter(is_of).copied().collect()
    };
    let links: Vec<&Case<'_>> = cases
        .iter()
        .filter(|case| case.scenario.name.starts_with("collectives-link"))
        .copied()
        .collect();
    let mut rows = Vec::new();
    for (name, cases) in [
        (
            "collectives alone: recall, >= 5 %, sigma 0.5 %",
            of("quiet", 0.05),
        ),
        (
            "collectives alone: recall, >= 10 %, sigma 11 %",
            of("noisy", 0.10),
        ),
        ("collectives alone: slow links named as links", links),
    ] {
        rows.extend(recall(&cases, name));
    }
    rows.extend(first(&cases));
    rows.extend(false_alarms(&cases));
    rows
}

fn recall(cases: &[&Case<'_>], name: &str) -> Option<Row> {
    let mut tally = Tally::default();
    for case in cases {
        for expected in case.required() {
            tally.add(case.answer(expected).is_some());
        }
    }
    (tally.of > 0).then(|| tally.row(Row::told(name, Better::Higher)))
}

/// Of the worlds with one slow rank, those in which it alone was named.
fn first(cases: &[&Case<'_>]) -> Option<Row> {
    let mut tally = Tally::default();
    for case in cases {
        let Some((expected, _)) = case.culprit() else {
            continue;
        };
        let others = case.wrong().any(|claim| claim.who != Who::Job);
        tally.add(case.answer(expected).is_some() && !others);
    }
    (tally.of > 0).then(|| {
        tally.row(Row::told(
            "collectives alone: the slow rank named, and no other",
            Better::Higher,
        ))
    })
}

fn false_alarms(cases: &[&Case<'_>]) -> Option<Row> {
    let (mut steps, mut alarms) = (0, 0);
    for case in cases.iter().filter(|case| case.job.expect.is_empty()) {
        steps += case.outcome.rank_steps;
        alarms += case.wrong().count() as u64;
    }
    let rate = |count: f64| count * TEN_MILLION / steps as f64;
    let row = Row::told(
        "collectives alone: false alarms per 10,000,000 healthy rank-steps",
        Better::Lower,
    );
    (steps > 0).then(|| {
        row.in_unit(Unit::PerTenMillion)
            .with(rate(poisson_upper(alarms)), steps)
            .within(Some([rate(alarms as f64), rate(poisson_upper(alarms))]))
            .noting(format!("{alarms} in {steps} rank-steps"))
    })
}
