//! Collectives that overlap with compute, and when they begin and end on a GPU. FSDP gathers weights layer by layer,
//! and requests the next layer while the current one computes. DDP reduces gradients bucket by bucket.
//!
//! Collectives of one communicator run one after the other, in the order of enqueueing, and end when all members have
//! begun and the transfer is complete. Times are seconds since the last synchronization of all ranks.

use super::timeline::{FORWARD, Roads, SHARDS, Timeline};
use crate::event::{ALL_GATHER, ALL_REDUCE, FunctionSum, REDUCE_SCATTER};

/// Hidden transfers take at most this share of the compute that they overlap.
const HIDDEN_SHARE: f64 = 0.3;

/// One collective of a cell.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Met {
    pub function: u8,
    pub begin_s: f64,
    pub end_s: f64,
}

impl Timeline {
    /// Simulates a step with sharded weights. Each layer is gathered twice, in the forward and in the backward pass,
    /// and its gradients are scattered.
    pub(super) fn gather_layers(&mut self, roads: &Roads) {
        let layers = self.beside_layers;
        let cells = self.begin.len();
        for met in &mut self.met {
            met.clear();
        }
        let reduce_s = roads.reduce.iter().copied().fold(0.0, f64::max);
        let least_s = self.busy.iter().copied().fold(f64::INFINITY, f64::min);
        let hidden_s = (2.0 * reduce_s / layers as f64).min(HIDDEN_SHARE * least_s * FORWARD / layers as f64);
        let shares: Vec<Vec<f64>> = (0..cells).map(|cell| slots(cell, layers, roads)).collect();
        let mut free_s = 0.0;
        let mut asked = self.begin.clone();
        let mut end = self.begin.clone();
        for slot in 0..2 * layers {
            free_s = self.meet(ALL_GATHER, &asked, free_s, hidden_s);
            if slot > layers {
                free_s = self.meet(REDUCE_SCATTER, &end, free_s, hidden_s);
            }
            let gathered_s = self.met[0].iter().rev().find(|met| met.function == ALL_GATHER);
            let gathered_s = gathered_s.map_or(0.0, |met| met.end_s);
            for (cell, shares) in shares.iter().enumerate() {
                asked[cell] = end[cell].max(gathered_s);
                end[cell] = asked[cell] + self.busy[cell] * shares[slot];
            }
        }
        self.meet(REDUCE_SCATTER, &end, free_s, reduce_s);
        self.end.copy_from_slice(&end);
    }

    /// Runs a collective of all cells, which request it at different times. Returns when it ends.
    fn meet(&mut self, function: u8, asked: &[f64], free_s: f64, transfer_s: f64) -> f64 {
        let end_s = asked.iter().copied().fold(free_s, f64::max) + transfer_s;
        for (met, asked) in self.met.iter_mut().zip(asked) {
            let begin_s = asked.max(free_s);
            met.push(Met {
                function,
                begin_s,
                end_s,
            });
        }
        end_s
    }

    /// Simulates the reduction of gradient buckets, stage by stage. The last bucket ends with the group's reduction.
    pub(super) fn reduce_buckets(&mut self, micro: usize, roads: &Roads) {
        let buckets = self.beside_layers;
        let per_stage = self.met.len() / (roads.reduce.len() / self.tensor_groups()).max(1);
        for met in &mut self.met {
            met.clear();
        }
        for stage in 0..self.met.len() / per_stage {
            let cells = stage * per_stage..(stage + 1) * per_stage;
            let backward = |busy: f64| busy / micro as f64 * (1.0 - FORWARD);
            let least_s = self.busy[cells.clone()]
                .iter()
                .copied()
                .fold(f64::INFINITY, f64::min);
            let reduce_s = roads.reduce[stage * self.tensor_groups()];
            let hidden_s = reduce_s.min(HIDDEN_SHARE * backward(least_s) / buckets as f64);
            let mut free_s = 0.0;
            for bucket in 1..=buckets {
                let left = 1.0 - bucket as f64 / buckets as f64;
                let ready = |cell: usize| self.end[cell] - backward(self.busy[cell]) * left;
                let asked: Vec<f64> = cells.clone().map(ready).collect();
                let transfer_s = if bucket == buckets { reduce_s } else { hidden_s };
                let end_s = asked.iter().copied().fold(free_s, f64::max) + transfer_s;
                for (cell, asked) in cells.clone().zip(asked) {
                    self.met[cell].push(Met {
                        function: ALL_REDUCE,
                        begin_s: asked.max(free_s),
                        end_s,
                    });
                }
                free_s = end_s;
            }
        }
    }

    /// Sums the collectives of a cell's ranks by function. Also returns their total time in nanoseconds and their
    /// number.
    pub(super) fn sums(&self, cell: usize) -> (Vec<FunctionSum>, u64, u32) {
        let met = &self.met[cell];
        let first_s = met.iter().map(|met| met.begin_s).fold(f64::INFINITY, f64::min);
        let ns = |seconds: f64| (seconds * 1e9).round() as u64;
        let mut sums = Vec::new();
        for function in [ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER] {
            let of = met.iter().filter(|met| met.function == function);
            let each: Vec<(u64, u64)> = of
                .map(|met| (ns(met.begin_s - first_s), ns(met.end_s - met.begin_s)))
                .collect();
            if !each.is_empty() {
                sums.push(FunctionSum::of(function, &each));
            }
        }
        let all_s: f64 = met.iter().map(|met| met.end_s - met.begin_s).sum();
        (sums, ns(all_s), met.len() as u32)
    }
}

/// Returns the share of a cell's work in each layer, for the forward pass and then for the backward pass.
fn slots(cell: usize, layers: usize, roads: &Roads) -> Vec<f64> {
    let uneven = |slot: usize| {
        let shard = slot * SHARDS / (2 * layers);
        roads.uneven.get(cell * SHARDS + shard).copied().unwrap_or(0.0)
    };
    let plain = |slot: usize| if slot < layers { FORWARD } else { 1.0 - FORWARD };
    let all = (0..2 * layers).map(|slot| plain(slot) * (1.0 + uneven(slot)));
    let all: Vec<f64> = all.collect();
    let whole: f64 = all.iter().sum();
    all.into_iter().map(|share| share / whole).collect()
}
