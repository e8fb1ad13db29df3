//! Scores detection by recall, precision and time to decision.

use std::collections::{BTreeMap, BTreeSet};

use super::Case;
use crate::evaluate::baselines::NAMES;
use crate::evaluate::expect::Who;
use crate::evaluate::interval::{median, wilson};
use crate::evaluate::row::{Better, Row, Unit};
use crate::evaluate::suite::Suite;

/// A slowdown counts as caught if it is found in at least this share of its worlds.
const CAUGHT: f64 = 0.95;

/// The number of hits, and the total.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    pub(super) hits: u64,
    pub(super) of: u64,
}

impl Tally {
    pub(super) fn add(&mut self, hit: bool) {
        self.hits += u64::from(hit);
        self.of += 1;
    }

    pub(super) fn share(self) -> f64 {
        self.hits as f64 / self.of as f64
    }

    /// Fills a row with this share.
    pub(super) fn row(self, row: Row) -> Row {
        row.with(self.share(), self.of).within(wilson(self.hits, self.of))
    }
}

pub(super) fn rows(cases: &[Case<'_>]) -> Vec<Row> {
    let mut rows = Vec::new();
    let recalls = [
        (
            "recall, persistent slowdown >= 5 %, sigma 0.5 %",
            Suite::Quiet,
            0.99,
        ),
        (
            "recall, persistent slowdown >= 10 %, sigma 11 %",
            Suite::Noisy,
            0.95,
        ),
    ];
    for (name, suite, target) in recalls {
        rows.extend(recall(cases, suite, Row::at_least(name, target)));
    }
    rows.extend(precision(cases));
    rows.extend(first_named(cases));
    rows.extend(floor(cases));
    for (scenario, name, target) in [
        (
            "pace-20-quiet",
            "median steps to decide, 64 ranks: 20 %, sigma 0.5 %",
            5.0,
        ),
        (
            "pace-20-noisy",
            "median steps to decide, 64 ranks: 20 %, sigma 11 %",
            25.0,
        ),
        (
            "pace-10-noisy",
            "median steps to decide, 64 ranks: 10 %, sigma 11 %",
            110.0,
        ),
    ] {
        rows.extend(pace(cases, scenario, Row::at_most(name, target)));
    }
    rows
}

/// Computes one number for each of the other rules, by the rule's name.
pub(super) fn each_rule(mut value: impl FnMut(usize) -> f64) -> BTreeMap<String, Option<f64>> {
    let named = |(rule, name): (usize, &&str)| {
        let value = Some(value(rule)).filter(|value| value.is_finite());
        ((*name).to_owned(), value)
    };
    NAMES.iter().enumerate().map(named).collect()
}

fn recall(cases: &[Case<'_>], suite: Suite, row: Row) -> Option<Row> {
    let mut ours = Tally::default();
    let mut others = [Tally::default(); NAMES.len()];
    for case in cases.iter().filter(|case| case.is_of(&[suite])) {
        for expected in case.required() {
            ours.add(case.answer(expected).is_some());
            let Who::Rank(rank) = expected.who else { continue };
            for (rule, tally) in others.iter_mut().enumerate() {
                tally.add(case.named_by(rule, expected, rank).is_some());
            }
        }
    }
    (ours.of > 0).then(|| ours.row(row).beside(each_rule(|rule| others[rule].share())))
}

/// Returns the share of true verdicts among all verdicts in all worlds, with and without faults.
fn precision(cases: &[Case<'_>]) -> Option<Row> {
    let mut ours = Tally::default();
    let mut others = [Tally::default(); NAMES.len()];
    for case in cases {
        for expected in &case.job.expect {
            if case.answer(expected).is_some() {
                ours.add(true);
            }
        }
        case.wrong().for_each(|_| ours.add(false));
        for naming in &case.outcome.namings {
            others[naming.rule].add(case.is_slow(naming.rank, naming.step));
        }
    }
    let row = Row::at_least("precision, all worlds, sick and healthy", 0.99);
    (ours.of > 0).then(|| ours.row(row).beside(each_rule(|rule| others[rule].share())))
}

/// Returns the share of worlds with one slow rank in which the first named rank is that rank. Naming no rank counts as
/// wrong.
fn first_named(cases: &[Case<'_>]) -> Option<Row> {
    let mut ours = Tally::default();
    let mut others = [Tally::default(); NAMES.len()];
    for case in cases
        .iter()
        .filter(|case| case.is_of(&[Suite::Quiet, Suite::Noisy, Suite::Pace]))
    {
        let Some((expected, rank)) = case.culprit() else {
            continue;
        };
        let mut claims = case.outcome.claims.iter();
        let first = claims.find(|claim| claim.who != Who::Job);
        ours.add(first.is_some_and(|claim| case.answers(claim, expected)));
        for (rule, tally) in others.iter_mut().enumerate() {
            let mut namings = case.outcome.namings.iter();
            let first = namings.find(|naming| naming.rule == rule);
            tally.add(first.is_some_and(|first| first.rank == rank && case.is_in_time(expected, first.step)));
        }
    }
    let row = Row::at_least("rank named first is the slow one", 0.98);
    (ours.of > 0).then(|| ours.row(row).beside(each_rule(|rule| others[rule].share())))
}

/// Finds the smallest slowdown from which on all larger ones are caught.
fn floor(cases: &[Case<'_>]) -> Option<Row> {
    // Count slowdowns in tenths of a percent. They are integers because the keys of a map must be ordered.
    let mut ours: BTreeMap<u64, Tally> = BTreeMap::new();
    let mut others: BTreeMap<u64, [Tally; NAMES.len()]> = BTreeMap::new();
    for case in cases.iter().filter(|case| case.is_of(&[Suite::Floor])) {
        let (Some(slower), Some((expected, rank))) = (case.scenario.slower, case.culprit()) else {
            continue;
        };
        let slower = (slower * 1000.0).round() as u64;
        ours.entry(slower)
            .or_default()
            .add(case.answer(expected).is_some());
        let others = others.entry(slower).or_default();
        for (rule, tally) in others.iter_mut().enumerate() {
            tally.add(case.named_by(rule, expected, rank).is_some());
        }
    }
    let smallest = |tallies: &mut dyn DoubleEndedIterator<Item = (u64, Tally)>| {
        let caught = tallies.rev().take_while(|(_, tally)| tally.share() >= CAUGHT);
        caught
            .last()
            .map_or(f64::INFINITY, |(slower, _)| slower as f64 / 1000.0)
    };
    let n = ours.values().map(|tally| tally.of).sum();
    let value = smallest(&mut ours.iter().map(|(slower, tally)| (*slower, *tally)));
    let shares: Vec<String> = ours
        .iter()
        .map(|(slower, tally)| format!("{:.1} %: {} of {}", *slower as f64 / 10.0, tally.hits, tally.of))
        .collect();
    let row = Row::at_most("smallest slowdown caught (95 % of worlds), sigma 0.5 %", 0.03);
    (n > 0).then(|| {
        row.with(value, n)
            .noting(shares.join(", "))
            .beside(each_rule(|rule| {
                smallest(&mut others.iter().map(|(slower, rules)| (*slower, rules[rule])))
            }))
    })
}

/// Returns the number of steps from the first slow step to the verdict in each world of the scenario. Infinity means
/// that there was no verdict.
pub(in crate::evaluate) fn delays(cases: &[Case<'_>], scenario: &str, rule: Option<usize>) -> Vec<f64> {
    let named = cases.iter().filter(|case| case.scenario.name == scenario);
    named
        .filter_map(|case| {
            let (expected, rank) = case.culprit()?;
            let (since, _) = case.window(expected);
            let step = match rule {
                None => case.answer(expected).map(|claim| claim.step),
                Some(rule) => case.named_by(rule, expected, rank),
            };
            Some(step.map_or(f64::INFINITY, |step| (step + 1).saturating_sub(since) as f64))
        })
        .collect()
}

fn pace(cases: &[Case<'_>], scenario: &str, row: Row) -> Option<Row> {
    let mut ours = delays(cases, scenario, None);
    let (value, ci) = median(&mut ours)?;
    let row = row
        .in_unit(Unit::Steps)
        .with(value, ours.len() as u64)
        .within(Some(ci));
    Some(row.beside(each_rule(|rule| {
        median(&mut delays(cases, scenario, Some(rule))).map_or(f64::INFINITY, |(middle, _)| middle)
    })))
}

/// Returns rows for all other expected findings. They have no target.
pub(super) fn other_rows(cases: &[Case<'_>]) -> Vec<Row> {
    let mut by_finding: BTreeMap<&str, Tally> = BTreeMap::new();
    let mut whom: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for case in cases
        .iter()
        .filter(|case| case.is_of(&[Suite::Faults, Suite::Causes]))
    {
        for expected in case.required() {
            let name = expected.finding.name();
            let found = case.answer(expected).is_some();
            by_finding.entry(name).or_default().add(found);
            if !found {
                whom.entry(name).or_default().insert(&case.scenario.name);
            }
        }
    }
    by_finding
        .into_iter()
        .map(|(finding, tally)| {
            let missed: Vec<&str> = whom.get(finding).into_iter().flatten().copied().collect();
            let note = if missed.is_empty() {
                String::new()
            } else {
                format!("missed in {}", missed.join(", "))
            };
            let row = Row::told(&format!("recall, {finding}, all other faults"), Better::Higher);
            tally.row(row).noting(note)
        })
        .collect()
}
