//! Scores the stated causes against the true ones.

use std::collections::{BTreeMap, BTreeSet};

use paceline_health::verdict::Cause;

use super::Case;
use crate::evaluate::row::{Better, Row};
use crate::evaluate::suite::Suite;

/// Counts how often each cause was stated for each true cause. A missed straggler counts as no stated cause.
#[derive(Clone, Debug, Default, PartialEq)]
pub(in crate::evaluate) struct Confusion {
    /// The counts, by true and stated cause.
    pub(in crate::evaluate) counts: BTreeMap<(Cause, Option<Cause>), u64>,
    /// Number of false verdicts in the same worlds, by the stated cause. Their subjects have no fault. Verdicts without
    /// a cause do not count here, but they do count for precision.
    pub(in crate::evaluate) invented: BTreeMap<Cause, u64>,
}

impl Confusion {
    pub(super) fn of(cases: &[Case<'_>]) -> Confusion {
        let mut confusion = Confusion::default();
        for case in cases.iter().filter(|case| case.is_of(&[Suite::Causes])) {
            for expected in case.required() {
                let Some(truth) = expected.cause else { continue };
                let said = case.answer(expected).map(|claim| claim.cause);
                *confusion.counts.entry((truth, said)).or_default() += 1;
            }
            for claim in case.wrong().filter(|claim| claim.cause != Cause::Unknown) {
                *confusion.invented.entry(claim.cause).or_default() += 1;
            }
        }
        confusion
    }

    /// Returns all true causes.
    pub(in crate::evaluate) fn causes(&self) -> BTreeSet<Cause> {
        self.counts.keys().map(|(truth, _)| *truth).collect()
    }

    /// Returns the harmonic mean of precision and recall of a cause.
    pub(in crate::evaluate) fn f1(&self, cause: Cause) -> f64 {
        let count = |wanted: &dyn Fn(Cause, Option<Cause>) -> bool| -> u64 {
            let counts = self.counts.iter();
            counts
                .filter(|((truth, said), _)| wanted(*truth, *said))
                .map(|(_, count)| count)
                .sum()
        };
        let right = count(&|truth, said| truth == cause && said == Some(cause));
        let missed = count(&|truth, said| truth == cause && said != Some(cause));
        let mistaken = count(&|truth, said| truth != cause && said == Some(cause))
            + self.invented.get(&cause).copied().unwrap_or(0);
        if right == 0 {
            return 0.0;
        }
        2.0 * right as f64 / (2 * right + missed + mistaken) as f64
    }

    fn total(&self) -> u64 {
        self.counts.values().sum()
    }
}

pub(super) fn rows(cases: &[Case<'_>]) -> Vec<Row> {
    let confusion = Confusion::of(cases);
    let causes = confusion.causes();
    if causes.is_empty() {
        return Vec::new();
    }
    let scores: Vec<(Cause, f64)> = causes
        .iter()
        .map(|cause| (*cause, confusion.f1(*cause)))
        .collect();
    let mean = scores.iter().map(|(_, f1)| f1).sum::<f64>() / scores.len() as f64;
    let worst = scores.iter().min_by(|a, b| a.1.total_cmp(&b.1));
    let words: Vec<String> = scores
        .iter()
        .map(|(cause, f1)| format!("{} {f1:.2}", cause.name()))
        .collect();
    let mut rows = vec![
        Row::at_least("injected causes, macro-F1", 0.95)
            .with(mean, confusion.total())
            .noting(words.join(", ")),
    ];
    if let Some((cause, f1)) = worst {
        rows.push(
            Row::told("injected causes, worst F1", Better::Higher)
                .with(*f1, confusion.total())
                .noting(cause.name()),
        );
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f1_counts_what_was_missed_mistaken_and_invented() {
        let confusion = Confusion {
            counts: BTreeMap::from([
                ((Cause::Thermal, Some(Cause::Thermal)), 6),
                ((Cause::Thermal, None), 1),
                ((Cause::Thermal, Some(Cause::Unknown)), 1),
                ((Cause::Power, Some(Cause::Thermal)), 2),
                ((Cause::Power, Some(Cause::Power)), 3),
            ]),
            invented: BTreeMap::from([(Cause::Thermal, 2)]),
        };
        // Precision is 6 of 10, and recall is 6 of 8.
        assert!((confusion.f1(Cause::Thermal) - 12.0 / 18.0).abs() < 1e-12);
        assert!((confusion.f1(Cause::Power) - 6.0 / 8.0).abs() < 1e-12);
        assert_eq!(confusion.f1(Cause::Ecc), 0.0);
        assert_eq!(confusion.causes().len(), 2);
    }
}
