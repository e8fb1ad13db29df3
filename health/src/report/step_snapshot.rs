//! A compact snapshot of one compared step, for heat maps and charts. The detector draws no conclusions from it.

use crate::event::{Signal, StepKind};

/// The cell of a rank as fast as its peers.
pub const LEVEL: u8 = 128;
/// The cell of a rank without data in the step. The rank's state is unknown, which does not mean healthy.
pub const ABSENT: u8 = 0;
/// The smallest cell that counts as slow. It means 5 % slower than the peers.
pub const SLOW: u8 = LEVEL + 3;
/// Number of cells per factor of e. One cell is a difference of 1.6 %, and the range is from a seventh to sevenfold.
const CELLS_PER_E: f64 = 64.0;

/// One step of all ranks.
#[derive(Clone, Debug, PartialEq)]
pub struct StepSnapshot {
    /// Optimizer steps since training began.
    pub step: u64,
    /// The restart count of the job.
    pub restart: u32,
    /// The kind of the step, as determined afterwards.
    pub kind: StepKind,
    /// The source of self-times. If it is S0, self-times are unknown and cells compare whole steps.
    pub signal: Signal,
    /// When the step ended, in seconds since the first frame. The step may have been compared later, because late
    /// records delay the comparison.
    pub at_s: f64,
    /// Median of the ranks' step times, seconds.
    pub p50_s: f64,
    /// 99th percentile of the ranks' step times, seconds.
    pub p99_s: f64,
    /// Maximum of the ranks' step times, seconds.
    pub max_s: f64,
    /// Means over the ranks of data, compute, wait, optimizer and checkpoint, seconds. `None` if no rank reported
    /// phases.
    pub phases_s: Option<[f64; 5]>,
    /// For each rank, its self-time divided by that of its peers, encoded as in [`cell`]. [`ABSENT`] means that there
    /// is no data.
    pub cells: Vec<u8>,
}

/// Encodes the natural logarithm of a ratio in a byte.
pub fn cell(ln_ratio: f64) -> u8 {
    let cell = f64::from(LEVEL) + (ln_ratio * CELLS_PER_E).round();
    // NaN becomes ABSENT.
    cell.clamp(f64::from(ABSENT + 1), 255.0) as u8
}

/// Returns how bad a cell is, to select the worst of the cells that share a place. Slow cells are worst, slower ones
/// more so. Then come absent cells, and then the others.
pub fn badness(cell: u8) -> u16 {
    match cell {
        ABSENT => u16::from(SLOW - 1) * 2 + 1,
        cell => u16::from(cell) * 2,
    }
}

/// Returns the ratio that a cell encodes, or `None` if the rank has no data.
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
