//! The parallel layout, which defines the ranks' positions on the axes of parallelism, in the order of Megatron-LM.
//!
//! Ranks are numbered along the tensor axis first, then along the context, data and pipeline axes. This is the order
//! `tp-cp-ep-dp-pp` of <https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/core/parallel_state.py>. Expert
//! parallelism divides the data-parallel ranks into blocks.

use serde::{Deserialize, Serialize};

use super::SpecError;
use crate::event::Axis;
use crate::event::Layout as Declared;
use crate::id::Rank;

/// Sizes of the axes. Their product is the number of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Layout {
    /// Number of data-parallel replicas. Zero means the number that results from the other axes.
    pub dp: u32,
    /// Size of the tensor-parallel axis.
    pub tp: u32,
    /// Number of pipeline stages.
    pub pp: u32,
    /// Size of the expert-parallel axis. It must divide `dp`.
    pub ep: u32,
    /// Size of the context-parallel axis.
    pub cp: u32,
    /// Number of micro-batches in a step.
    pub micro: u32,
    /// Number of parts of the model on each pipeline stage, which the micro-batches pass one after the other. More than
    /// one in interleaved pipelines.
    pub chunks: u32,
    /// True if ranks declare their position.
    pub declared: bool,
}

impl Default for Layout {
    fn default() -> Layout {
        Layout {
            dp: 0,
            tp: 1,
            pp: 1,
            ep: 1,
            cp: 1,
            micro: 1,
            chunks: 1,
            declared: true,
        }
    }
}

/// The position of one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Coordinates {
    pub dp: u32,
    pub tp: u32,
    pub pp: u32,
    pub cp: u32,
}

impl Layout {
    /// Fills in `dp` for this number of ranks.
    ///
    /// # Errors
    /// [`SpecError`] if no such layout has this number of ranks.
    pub fn of(mut self, ranks: u32) -> Result<Layout, SpecError> {
        let axes = [self.tp, self.pp, self.ep, self.cp, self.micro, self.chunks];
        if let Some(low) = axes.into_iter().find(|size| !(1..=1 << 16).contains(size)) {
            return Err(SpecError::Range {
                what: "the size of an axis",
                value: f64::from(low),
                expected: "1 to 65,536",
            });
        }
        let inner = u64::from(self.tp) * u64::from(self.cp) * u64::from(self.pp);
        let wrong = SpecError::Layout { layout: self, ranks };
        if !u64::from(ranks).is_multiple_of(inner) {
            return Err(wrong);
        }
        let dp = (u64::from(ranks) / inner) as u32;
        if self.dp != 0 && self.dp != dp {
            return Err(wrong);
        }
        if !dp.is_multiple_of(self.ep) {
            return Err(SpecError::Experts { ep: self.ep, dp });
        }
        self.dp = dp;
        Ok(self)
    }

    /// Returns the distance in ranks between neighbors on the data axis.
    pub(crate) fn block(&self) -> u32 {
        self.tp * self.cp
    }

    /// Returns the number of ranks of one pipeline stage.
    pub(crate) fn stage(&self) -> u32 {
        self.block() * self.dp
    }

    /// Returns the number of ranks of a cell. The ranks of a cell communicate inside each layer.
    pub(crate) fn cell(&self) -> u32 {
        self.block() * self.ep
    }

    /// Returns the number of parallel pipelines, which is the number of cells of a stage.
    pub(crate) fn pipelines(&self) -> u32 {
        self.dp / self.ep
    }

    /// Returns the position of a rank.
    pub(crate) fn coordinates(&self, rank: u32) -> Coordinates {
        Coordinates {
            tp: rank % self.tp,
            cp: rank / self.tp % self.cp,
            dp: rank / self.block() % self.dp,
            pp: rank / self.stage(),
        }
    }

    /// Returns the layout that a rank declares.
    pub(crate) fn declared(&self, rank: u32, restart: u32) -> Declared {
        let coordinates = self.coordinates(rank);
        let axis = |index, size| Axis { index, size };
        Declared {
            rank: Rank(rank),
            restart,
            dp: axis(coordinates.dp, self.dp),
            tp: axis(coordinates.tp, self.tp),
            pp: axis(coordinates.pp, self.pp),
            ep: axis(coordinates.dp % self.ep, self.ep),
            cp: axis(coordinates.cp, self.cp),
            micro_batches: self.micro,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_has_a_seat_of_its_own_and_tensor_is_fastest() {
        let layout = Layout {
            tp: 2,
            pp: 2,
            cp: 2,
            ep: 2,
            ..Layout::default()
        };
        let layout = layout.of(32).expect("32 ranks");
        assert_eq!(layout.dp, 4);
        for rank in 0..32 {
            let Coordinates { dp, tp, pp, cp } = layout.coordinates(rank);
            assert_eq!(rank, tp + 2 * (cp + 2 * (dp + 4 * pp)));
        }
        assert_eq!(layout.cell(), 8);
        assert_eq!(layout.pipelines(), 2);
    }

    #[test]
    fn a_layout_that_does_not_fit_is_an_error() {
        let layout = |dp, tp, ep| Layout {
            dp,
            tp,
            ep,
            ..Layout::default()
        };
        let error = |layout: Layout| layout.of(16).expect_err("does not fit").to_string();
        assert_eq!(
            error(layout(4, 2, 1)),
            "dp=4 tp=2 pp=1 cp=1 are 8 ranks; nodes × GPUs are 16"
        );
        assert_eq!(
            error(layout(0, 3, 1)),
            "tp=3 pp=1 cp=1 do not divide 16 ranks (nodes × GPUs)"
        );
        assert_eq!(error(layout(0, 2, 3)), "ep=3 does not divide dp=8");
        assert!(error(layout(0, 0, 1)).starts_with("the size of an axis is 0"));
    }
}
