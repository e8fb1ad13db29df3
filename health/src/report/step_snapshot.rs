//! A compact snapshot of one compared step, for heat maps and charts. The detector draws no conclusions from it.

use crate::event::{Signal, StepKind};

/// The cell of a rank as fast as its peers.
pub const LEVEL: u8 = 128;
/// The cell of a rank without data in the step: its state is unknown, which does not mean healthy.
pub const ABSENT: u8 = 0;
/// The smallest cell that counts as slow: 5 %.
pub const SLOW: u8 = LEVEL + 3;
/// Cells per factor of e: one is 1.6 %, and the range is from a seventh to sevenfold.
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
    /// The source of self-times; S0: they are unknown, and cells compare whole steps.
    pub signal: Signal,
    /// End of the step, seconds since the first frame: late records may delay the comparison itself.
    pub at_s: f64,
    /// Median of the ranks' step times, seconds.
    pub p50_s: f64,
    /// 99th percentile.
    pub p99_s: f64,
    /// Maximum.
    pub max_s: f64,
    /// Means over the ranks of data, compute, wait, optimizer and checkpoint, seconds; `None`: no rank reported phases.
    pub phases_s: Option<[f64; 5]>,
    /// By rank: self-time over that of its peers, see [`cell`]; [`ABSENT`]: no data.
    pub cells: Vec<u8>,
}

/// Encodes the natural logarithm of a ratio in a byte.
pub fn cell(ln_ratio: f64) -> u8 {
    let cell = f64::from(LEVEL) + (ln_ratio * CELLS_PER_E).round();
    // NaN becomes ABSENT.
    cell.clamp(f64::from(ABSENT + 1), 255.0) as u8
}

/// Order of cells that share a place, worst first: a slow one, an absent one, then the slowest.
pub fn badness(cell: u8) -> u16 {
    match cell {
        ABSENT => u16::from(SLOW - 1) * 2 + 1,
        cell => u16::from(cell) * 2,
    }
}

/// The ratio that a cell encodes.
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
