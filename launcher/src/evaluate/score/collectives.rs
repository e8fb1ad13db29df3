//! Scores verdicts that are based on collectives alone.

use super::Case;
use super::detection::Tally;
use crate::evaluate::expect::Who;
use crate::evaluate::interval::poisson_upper;
use crate::evaluate::row::{Better, Row, Unit};
use crate::evaluate::suite::Suite;

/// Rank-steps per unit of the alarm rate.
const TEN_MILLION: f64 = 1e7;

/// The suites and the labels of their rows.
const SUITES: [(Suite, &str); 3] = [
    (Suite::Collectives, "collectives alone"),
    (Suite::Overlap, "collectives beside the work"),
    (Suite::Undeclared, "layout not declared"),
];

pub(super) fn rows(cases: &[Case<'_>]) -> Vec<Row> {
    let of = |(suite, label)| {
        let of_suite = cases.iter().filter(|case| case.is_of(&[suite]));
        rows_of(suite.name(), label, &of_suite.collect::<Vec<_>>())
    };
    SUITES.into_iter().flat_map(of).collect()
}

fn rows_of(suite: &str, label: &str, cases: &[&Case<'_>]) -> Vec<Row> {
    let of = |kind: &str, least: Option<f64>| -> Vec<&Case<'_>> {
        let prefix = format!("{suite}-{kind}");
        let is_of = |case: &&&Case<'_>| {
            let scenario = case.scenario;
            scenario.name.starts_with(&prefix) && scenario.slower >= least
        };
        cases.iter().filter(is_of).copied().collect()
    };
    // The targets are the same as with known phases.
    let is_asked = suite != Suite::Collectives.name();
    let mut rows = Vec::new();
    for (name, least, cases) in [
        ("recall, >= 5 %, sigma 0.5 %", 0.99, of("quiet", Some(0.05))),
        ("recall, >= 10 %, sigma 11 %", 0.95, of("noisy", Some(0.10))),
        ("slow links named as links", 0.0, of("link", None)),
        ("the whole job is slower", 0.0, of("all-slow", None)),
    ] {
        let target = Some(least).filter(|least| is_asked && *least > 0.0);
        rows.extend(recall(&cases, &format!("{label}: {name}"), target));
    }
    let first_target = is_asked.then_some(0.98);
    rows.extend(first(cases, label, first_target));
    rows.extend(precision(cases, label).filter(|_| is_asked));
    rows.extend(false_alarms(cases, label));
    rows
}

fn row(name: &str, target: Option<f64>) -> Row {
    target.map_or_else(
        || Row::told(name, Better::Higher),
        |least| Row::at_least(name, least),
    )
}

fn recall(cases: &[&Case<'_>], name: &str, target: Option<f64>) -> Option<Row> {
    let mut tally = Tally::default();
    for case in cases {
        for expected in case.required() {
            tally.add(case.answer(expected).is_some());
        }
    }
    (tally.of > 0).then(|| tally.row(row(name, target)))
}

/// Returns the share of worlds with one slow rank in which only that rank was named.
fn first(cases: &[&Case<'_>], label: &str, target: Option<f64>) -> Option<Row> {
    let mut tally = Tally::default();
    for case in cases {
        let Some((expected, _)) = case.culprit() else {
            continue;
        };
        let others = case.wrong().any(|claim| claim.who != Who::Job);
        tally.add(case.answer(expected).is_some() && !others);
    }
    let name = format!("{label}: the slow rank named, and no other");
    (tally.of > 0).then(|| tally.row(row(&name, target)))
}

fn precision(cases: &[&Case<'_>], label: &str) -> Option<Row> {
    let mut tally = Tally::default();
    for case in cases {
        let answered = case
            .job
            .expect
            .iter()
            .filter(|expected| case.answer(expected).is_some());
        answered.for_each(|_| tally.add(true));
        case.wrong().for_each(|_| tally.add(false));
    }
    (tally.of > 0).then(|| tally.row(row(&format!("{label}: precision"), Some(0.99))))
}

fn false_alarms(cases: &[&Case<'_>], label: &str) -> Option<Row> {
    let (mut steps, mut alarms) = (0, 0);
    for case in cases.iter().filter(|case| case.job.expect.is_empty()) {
        steps += case.outcome.rank_steps;
        alarms += case.wrong().count() as u64;
    }
    let rate = |count: f64| count * TEN_MILLION / steps as f64;
    let row = Row::told(
        &format!("{label}: false alarms per 10,000,000 healthy rank-steps"),
        Better::Lower,
    );
    (steps > 0).then(|| {
        row.in_unit(Unit::PerTenMillion)
            .with(rate(poisson_upper(alarms)), steps)
            .within(Some([rate(alarms as f64), rate(poisson_upper(alarms))]))
            .noting(format!("{alarms} in {steps} rank-steps"))
    })
}
