//! The step time for given times of the ranks, computed by the critical path.
//!
//! Ranks of one stage of one replica move together, so a stage takes as long as its slowest rank. Micro-batches pass
//! through the stages of a replica one forward and one backward pass at a time (1F1B, Narayanan et al., SC 2021,
//! <https://arxiv.org/abs/2104.04473>). A backward pass takes twice as long as a forward one. Replicas meet at the end
//! of the step. Without a pipeline, the step takes as long as the slowest rank of all.

use super::matrix::RoleLevel;
use super::plan::{Place, Plan};

/// Share of a micro-batch's compute that is its forward pass.
const FORWARD: f64 = 1.0 / 3.0;
/// Maximum number of micro-batches that are computed. More of them make no visible difference.
const MOST_MICRO_BATCHES: u32 = 512;

/// The shape of a step, with scratch space for the computation.
#[derive(Clone, Debug, Default)]
pub struct Path {
    stages: usize,
    micro_batches: usize,
    /// By role: the share of a rank's self-time outside micro-batches (data loading and optimizer).
    outside: Vec<f64>,
    /// Times by replica and stage.
    cells: Vec<Cell>,
    /// By stage and micro-batch: when its forward pass and its backward pass end.
    ends: Vec<[f64; 2]>,
    /// Progress by stage: number of forward passes, number of backward passes, and the time reached.
    done: Vec<(usize, usize, f64)>,
}

/// Times of one stage of one replica, in seconds.
#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    /// Time before the first micro-batch of the stage.
    outside_s: f64,
    /// Time of all micro-batches of the stage.
    work_s: f64,
}

impl Path {
    /// Returns the shape of the steps of `plan`. If micro-batches were not declared, the number of backward passes
    /// (`seen`) is used.
    pub fn new(plan: &Plan, seen: u16, roles: &[RoleLevel]) -> Path {
        let stages = plan.stages.max(1) as usize;
        let micro = plan.micro_batches.unwrap_or(u32::from(seen));
        let micro_batches = micro.clamp(1, MOST_MICRO_BATCHES) as usize;
        let pipeline = if stages > 1 {
            stages * plan.replicas.max(1) as usize
        } else {
            0
        };
        Path {
            stages,
            micro_batches,
            outside: roles.iter().map(|role| role.outside_ratio).collect(),
            cells: vec![Cell::default(); pipeline],
            ends: vec![[0.0; 2]; if stages > 1 { stages * micro_batches } else { 0 }],
            done: Vec::with_capacity(stages),
        }
    }

    /// Returns the step time in seconds if each rank works as long as given, without transfers.
    pub fn step_s(&mut self, ranks: impl Iterator<Item = (Place, f64)>) -> f64 {
        if self.stages == 1 {
            return ranks.map(|(_, own)| own).fold(0.0, f64::max);
        }
        self.cells.fill(Cell::default());
        for (place, own) in ranks {
            let index = place.replica as usize * self.stages + place.stage as usize;
            let outside = self.outside.get(place.role as usize).copied().unwrap_or(0.0);
            if let Some(cell) = self.cells.get_mut(index) {
                cell.outside_s = cell.outside_s.max(own * outside);
                cell.work_s = cell.work_s.max(own * (1.0 - outside));
            }
        }
        let mut longest: f64 = 0.0;
        for replica in self.cells.chunks(self.stages) {
            longest = longest.max(pipeline_s(
                replica,
                self.micro_batches,
                &mut self.ends,
                &mut self.done,
            ));
        }
        longest
    }
}

/// Returns when the last backward pass of a pipeline ends. Each stage first runs as many forward passes as there are
/// stages after it, then alternately one forward and one backward pass, and then the remaining backward passes.
fn pipeline_s(
    cells: &[Cell],
    micro_batches: usize,
    ends: &mut [[f64; 2]],
    done: &mut Vec<(usize, usize, f64)>,
) -> f64 {
    const FORTH: usize = 0;
    const BACK: usize = 1;
    let last = cells.len() - 1;
    ends.fill([f64::NAN; 2]);
    done.clear();
    done.extend(cells.iter().map(|cell| (0, 0, cell.outside_s)));
    let mut left = 2 * cells.len() * micro_batches;
    while left > 0 {
        let before = left;
        for stage in 0..cells.len() {
            let each = cells[stage].work_s / micro_batches as f64;
            loop {
                let (forth, back, until) = done[stage];
                let goes_forth = forth < micro_batches && forth <= back + (last - stage);
                let micro = if goes_forth { forth } else { back };
                if micro == micro_batches {
                    break;
                }
                let fed = match (goes_forth, stage) {
                    (true, 0) => 0.0,
                    (true, _) => ends[(stage - 1) * micro_batches + micro][FORTH],
                    (false, stage) if stage == last => ends[stage * micro_batches + micro][FORTH],
                    (false, _) => ends[(stage + 1) * micro_batches + micro][BACK],
                };
                if fed.is_nan() {
                    break;
                }
                let (pass, share) = if goes_forth {
                    (FORTH, FORWARD)
                } else {
                    (BACK, 1.0 - FORWARD)
                };
                let end = until.max(fed) + each * share;
                ends[stage * micro_batches + micro][pass] = end;
                done[stage] = (
                    forth + usize::from(goes_forth),
                    back + usize::from(!goes_forth),
                    end,
                );
                left -= 1;
            }
        }
        if left == before {
            // The schedule can stop here only if times are NaN.
            return f64::NAN;
        }
    }
    done.iter().map(|(.., until)| *until).fold(0.0, f64::max)
}
