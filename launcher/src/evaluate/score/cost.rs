//! Scores the cost estimates by comparing each world with the same world without the fault.

use super::Case;
use crate::evaluate::interval::{median, quantile};
use crate::evaluate::row::{Better, Row};
use crate::evaluate::suite::Suite;

/// Tolerated relative error of a verdict's cost.
const WITHIN: f64 = 0.05;

pub(super) fn rows(cases: &[Case<'_>]) -> Vec<Row> {
    let mut errors = errors(cases);
    let n = errors.len() as u64;
    let Some((middle, ci)) = median(&mut errors) else {
        return Vec::new();
    };
    let within = errors.iter().filter(|error| **error <= WITHIN).count() as f64 / n as f64;
    let (late, worst) = (quantile(&errors, 0.95), errors.last().copied());
    vec![
        Row::at_most("cost of a straggler, median error", WITHIN)
            .with(middle, n)
            .within(Some(ci)),
        Row::told("cost of a straggler, share within 5 %", Better::Higher).with(within, n),
        Row::told("cost of a straggler, 95th percentile of the error", Better::Lower)
            .with(late.unwrap_or(f64::INFINITY), n),
        Row::told("cost of a straggler, worst error", Better::Lower).with(worst.unwrap_or(f64::INFINITY), n),
    ]
}

/// Returns the relative errors of the cost estimates for each slow rank.
pub(in crate::evaluate) fn errors(cases: &[Case<'_>]) -> Vec<f64> {
    let suites = [Suite::Quiet, Suite::Noisy, Suite::Pace];
    let cases = cases.iter().filter(|case| case.is_of(&suites));
    let costs = cases.filter_map(of);
    costs.map(|(said, lost)| (said - lost).abs() / lost).collect()
}

/// Returns the estimated cost of the slow rank, summed over its incidents, and the true cost, both in GPU-seconds.
/// Returns `None` if no rank was slow, if it was not found, or if it cost nothing.
pub(super) fn of(case: &Case<'_>) -> Option<(f64, f64)> {
    let (expected, _) = case.culprit()?;
    let truth = case.outcome.truths.get(expected.fault?)?;
    case.answer(expected)?;
    let claims = case.outcome.claims.iter();
    let said = claims
        .filter(|claim| case.answers(claim, expected))
        .map(|claim| claim.lost_gpu_s)
        .sum();
    (truth.lost_gpu_s > 0.0).then_some((said, truth.lost_gpu_s))
}
