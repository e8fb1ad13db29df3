//! A compact snapshot of one compared step, for heat maps and charts. The detector draws no conclusions from it.

use crate::event::{Signal, StepKind};

/// The cell of a rank as fast as its peers.
pub const LEVEL: u8 = 128;
/// The cell of a rank from which nothing came in the step: not known, and not healthy either.
pub const ABSENT: u8 = 0;
/// The cells of a rank that is said to be slow, from 5 % on.
pub const SLOW: u8 = LEVEL + 3;
/// Cells for each factor e: one is 1.6 %, and what has room reaches from a seventh to sevenfold.
const CELLS_PER_E: f64 = 64.0;

/// One step of all ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct StepSnapshot {
    /// Optimizer steps since training began.
    pub step: u64,
    /// How often the job had been started again.
    pub restart: u32,
    /// What the step was for, as it turned out.
    pub kind: StepKind,
    /// How self-times were known; S0: they were not, and cells compare whole steps.
    pub signal: Signal,
    /// When it had ended, seconds since the first frame: it may have been compared later, where records came late.
    pub at_s: f64,
    /// Median of the ranks' step times, seconds.
    pub p50_s: f64,
    /// 99th percentile.
    pub p99_s: f64,
    /// The longest.
    pub max_s: f64,
    /// Means over the ranks of data, compute, wait, optimizer and checkpoint, seconds; `None`: nobody told phases.
    pub phases_s: Option<[f64; 5]>,
    /// By rank: self-time over that of its peers, see [`cell`]; [`ABSENT`]: nothing came.
    pub cells: Vec<u8>,
}

/// The natural logarithm of a ratio in a byte.
pub fn cell(ln_ratio: f64) -> u8 {
    let cell = f64::from(LEVEL) + (ln_ratio * CELLS_PER_E).round();
    // NaN becomes ABSENT.
    cell.clamp(f64::from(ABSENT + 1), 255.0) as u8
}

/// Which of two cells is worse, if they share a place: one that is slow, then one that is absent, then the slowest.
pub fn badness(cell: u8) -> u16 {
    match cell {
        ABSENT => u16::from(SLOW - 1) * 2 + 1,
        cell => u16::from(cell) * 2,
    }
}

/// The ratio that a cell stands for.
pub fn ratio(cell: u8) -> Option<f64> {
    (cell != ABSENT).then(|| ((f64::from(cell) - f64::from(LEVEL)) / CELLS_PER_E).exp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_comes_back_within_a_percent_and_never_as_absent() {
        for ratio_in in [0.2, 0.5, 0.97, 1.0, 1.05, 1.26, 3.0, 6.9] {
            let out = ratio(cell(f64::ln(ratio_in))).unwrap();
            assert!((out / ratio_in - 1.0).abs() < 0.009, "{ratio_in} became {out}");
        }
        assert_eq!((cell(-99.0), cell(99.0), cell(f64::INFINITY)), (1, 255, 255));
        assert_eq!((cell(f64::NAN), ratio(ABSENT)), (ABSENT, None));
    }
}
