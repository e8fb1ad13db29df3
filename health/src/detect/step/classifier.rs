//! Classifies steps whose kind was not declared. A step in which nearly all ranks take far longer than usual is an
//! outlier. Outliers at a fixed interval are periodic pauses (a checkpoint, an evaluation or an exchange of weights).
//!
//! Both are excluded from the noise estimate and from the tests of ordinary steps. If a longer step time lasts, it
//! becomes the usual one.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::matrix::StepMatrix;
use crate::event::StepKind;
use crate::policy::{KindThresholds, bounds};
use crate::stats;

/// Number of ordinary steps with which the next step is compared.
const KEPT: usize = 16;
/// With fewer ordinary steps than this, no step is classified.
const ENOUGH: usize = 8;
/// Number of occasions kept: those that form a period, and others between them.
const OCCASIONS: usize = 4 * bounds::OCCASIONS;
/// Recurring occasions differ in duration by at most this factor. Shorter occasions between them are ignored.
const ALIKE_RATIO: f64 = 2.0;

/// Class of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum StepClass {
    /// The step has its declared kind. If none was declared, it is an ordinary step.
    #[default]
    AsDeclared,
    /// The step is far longer than usual, but not at a fixed interval.
    Outlier,
    /// The step is far longer than usual, at a fixed interval.
    Periodic,
}

/// Keeps the levels of the latest ordinary steps.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct StepClassifier {
    /// ln of each role's median self-time in the latest ordinary steps.
    levels: Vec<VecDeque<f64>>,
    /// How far the ranks are above these levels, and ln of the steps' durations.
    common: OutlierTrack,
    longest: OutlierTrack,
}

/// The values of ordinary steps in one series, and the occasions that stood out from them.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct OutlierTrack {
    usual: VecDeque<f64>,
    /// Number of consecutive steps that stood out.
    run: u32,
    /// The first step of each of the latest runs, and its value.
    occasions: VecDeque<(u64, f64)>,
}

impl StepClassifier {
    /// Classifies a step. `is_between` is true if the step lies between two steps whose self-times are sampled.
    pub fn sort(&mut self, matrix: &StepMatrix<'_>, table: &KindThresholds, is_between: bool) -> StepClass {
        if matrix.kind != StepKind::Train {
            return StepClass::AsDeclared;
        }
        let longest = matrix.dur_s.max(1e-9).ln();
        let above = self.above(matrix, table).unwrap_or(longest);
        let common = !is_between && self.common.stands_out(matrix.step, above, table);
        // A rank that writes for all ranks delays the step, but it does not lengthen the self-time of the others. Such
        // a step is classified only if it recurs at a fixed interval, because otherwise the rank may just be slow now
        // and then.
        let held_up = self.longest.stands_out(matrix.step, longest, table);
        let recurs = |track: &OutlierTrack| track.recurs(table.recurrences as usize);
        let sort = match (common, held_up) {
            (true, _) if recurs(&self.common) => StepClass::Periodic,
            (true, _) => StepClass::Outlier,
            (false, true) if recurs(&self.longest) => StepClass::Periodic,
            _ => StepClass::AsDeclared,
        };
        if sort == StepClass::AsDeclared {
            self.learn(matrix);
        }
        sort
    }

    /// Returns the usual self-time of a role in an ordinary step, in seconds.
    pub fn usual_s(&self, role: u32) -> Option<f64> {
        let levels = self.levels.get(role as usize)?;
        let mut levels: Vec<f64> = levels.iter().copied().collect();
        Some(stats::median(&mut levels)?.exp())
    }

    /// Returns by how much at least the given share of the ranks is above their roles' usual levels.
    fn above(&self, matrix: &StepMatrix<'_>, table: &KindThresholds) -> Option<f64> {
        let usual: Vec<Option<f64>> = self
            .levels
            .iter()
            .map(|levels| stats::median(&mut levels.iter().copied().collect::<Vec<_>>()))
            .collect();
        let above = matrix.rank_steps.iter().map(|rank_step| {
            let usual = usual.get(rank_step.place.role as usize).copied().flatten();
            usual.map_or(0.0, |usual| rank_step.self_s.ln() - usual)
        });
        let mut above: Vec<f64> = above.collect();
        let last = above.len().checked_sub(1)?;
        let place = ((1.0 - table.ranks_ratio).max(0.0) * last as f64) as usize;
        Some(*above.select_nth_unstable_by(place, f64::total_cmp).1)
    }

    fn learn(&mut self, matrix: &StepMatrix<'_>) {
        self.levels.resize_with(matrix.roles.len(), VecDeque::new);
        for (levels, role) in self.levels.iter_mut().zip(&matrix.roles) {
            if role.seen > 0 {
                levels.push_back(role.self_s.ln());
                let surplus = levels.len().saturating_sub(KEPT);
                levels.drain(..surplus);
            }
        }
    }
}

impl OutlierTrack {
    /// Returns true if the step stands out. If it does not, or if it ends a long run, its value counts as usual from
    /// now on.
    pub(crate) fn stands_out(&mut self, step: u64, value: f64, table: &KindThresholds) -> bool {
        let mut usual: Vec<f64> = self.usual.iter().copied().collect();
        let level = stats::median(&mut usual);
        let sigma = stats::robust_sigma(&mut usual).unwrap_or(0.0);
        let far = table.jump_ratio.ln().max(table.jump_sigmas * sigma);
        let out = self.usual.len() >= ENOUGH && level.is_some_and(|level| value > level + far);
        if out && self.run + 1 < table.lasting_steps {
            if self.run == 0 {
                self.occasions.push_back((step, value));
                let surplus = self.occasions.len().saturating_sub(OCCASIONS);
                self.occasions.drain(..surplus);
            }
            self.run += 1;
            return true;
        }
        if out {
            // The new level lasts, so it becomes the usual one.
            self.usual.clear();
            self.occasions.pop_back();
        }
        self.run = 0;
        self.usual.push_back(value);
        let surplus = self.usual.len().saturating_sub(KEPT);
        self.usual.drain(..surplus);
        false
    }

    /// Returns true if the latest `times` occasions like the last one came at equal distances.
    fn recurs(&self, times: usize) -> bool {
        let Some((_, latest)) = self.occasions.back() else {
            return false;
        };
        let is_alike = |value: f64| (value - latest).abs() <= ALIKE_RATIO.ln();
        let alike = self.occasions.iter().rev().filter(|(_, value)| is_alike(*value));
        let steps: Vec<u64> = alike.take(times + 1).map(|(step, _)| *step).collect();
        let mut gaps = steps.windows(2).map(|pair| pair[0] - pair[1]);
        let first = gaps.next();
        // Consecutive slow steps are not a period.
        steps.len() > times && first.is_some_and(|first| first > 2 && gaps.all(|gap| gap == first))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Policy;

    /// Feeds durations in seconds by step. Returns the steps that stood out, and the step after which the period was
    /// known.
    fn watch(seconds: impl Fn(u64) -> f64, steps: u64) -> (Vec<u64>, Option<u64>) {
        let table = Policy::default().detector.kinds;
        let mut track = OutlierTrack::default();
        let (mut out, mut learned) = (Vec::new(), None);
        for step in 1..=steps {
            if track.stands_out(step, seconds(step).ln(), &table) {
                out.push(step);
                if track.recurs(table.recurrences as usize) {
                    learned.get_or_insert(step);
                }
            }
        }
        (out, learned)
    }

    #[test]
    fn a_period_is_learned_after_three_equal_distances() {
        let every_twentieth = |step| if step % 20 == 0 { 0.17 } else { 0.1 };
        assert_eq!(watch(every_twentieth, 100), (vec![20, 40, 60, 80, 100], Some(80)));
    }

    #[test]
    fn shorter_ones_between_hide_no_period() {
        let busy = |step: u64| match step {
            _ if step.is_multiple_of(20) => 2.0,
            33 | 47 | 61 | 74 => 0.17,
            _ => 0.1,
        };
        assert_eq!(watch(busy, 100).1, Some(80));
    }

    #[test]
    fn what_comes_at_uneven_distances_has_no_period() {
        let odd = |step| {
            if [20, 33, 61, 70, 95].contains(&step) {
                0.17
            } else {
                0.1
            }
        };
        assert_eq!(watch(odd, 100), (vec![20, 33, 61, 70, 95], None));
    }

    #[test]
    fn a_level_that_stays_is_ordinary() {
        let slower = |step| if step >= 50 { 0.13 } else { 0.1 };
        assert_eq!(watch(slower, 200), (vec![50, 51, 52, 53], None));
    }

    #[test]
    fn noise_stands_out_never() {
        // Eleven percent is the variation of one rank with packed sequences.
        let packed = |step: u64| (0.11 * (step as f64 * 1.7).sin() * 1.4).exp();
        assert_eq!(watch(packed, 500), (vec![], None));
    }
}
