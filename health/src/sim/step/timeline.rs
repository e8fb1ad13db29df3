//! Timing of one step of all ranks, from the last synchronization of the job to the next.
//!
//! Ranks of a cell (tensor, context and expert parallel) synchronize in every micro-batch. Cells of one pipeline pass
//! micro-batches on in the order of one-forward-one-backward (Narayanan et al., "Efficient large-scale language model
//! training on GPU clusters using Megatron-LM", SC 2021, <https://arxiv.org/abs/2104.04473>), interleaved if a stage
//! has several parts of the model (section 2.2 there). Replicas reduce their gradients at the end, or synchronize at
//! every layer if their weights are sharded (<https://docs.pytorch.org/docs/stable/fsdp.html>, with the next layer
//! prefetched). Finally all ranks synchronize, because the norm of the gradient is computed over all of them. Times are
//! seconds since the last such synchronization.

use super::beside::Met;
use crate::sim::spec::Framework;
use crate::sim::spec::layout::Layout;

/// A backward pass takes twice as long as a forward pass.
pub(super) const FORWARD: f64 = 1.0 / 3.0;
/// Groups of layers whose weights are gathered together.
pub(super) const SHARDS: usize = 4;

/// A rank's own work in a step, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Own {
    /// Its optimizer time of the last step, which it spends after the synchronization.
    pub lag: f64,
    /// Time writing a checkpoint.
    pub write: f64,
    pub data: f64,
    /// Compute time over all micro-batches.
    pub compute: f64,
    /// Additional time in one micro-batch, by default the first one: stalls and garbage collection.
    pub extra: f64,
    pub extra_at: u32,
    /// Time in garbage collection.
    pub gc: f64,
    pub optimizer: f64,
}

impl Own {
    /// Returns the time from the last synchronization to the end of the rank's work before the next one, without any
    /// wait.
    pub fn total(&self) -> f64 {
        self.lag + self.write + self.data + self.compute + self.extra
    }

    /// Returns its work in a micro-batch that has `share` of the step's work.
    pub fn in_micro(&self, index: usize, share: f64) -> f64 {
        let extra = if index == self.extra_at as usize {
            self.extra
        } else {
            0.0
        };
        self.compute * share + extra
    }
}

/// Durations of the transfers in a step, seconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Roads {
    /// Exposed part of the reduction of each data-parallel group.
    pub reduce: Vec<f64>,
    /// Time of the exchanges inside the layers, by cell.
    pub exchange: Vec<f64>,
    /// Time of the transfer from each cell to the next one in its pipeline.
    pub hop: Vec<f64>,
    /// Variation of the layers of a cell, [`SHARDS`] for each, zero on average. Empty if there is none.
    pub uneven: Vec<f64>,
}

#[derive(Clone, Copy, Debug)]
struct Op {
    stage: usize,
    chunk: usize,
    micro: usize,
    forward: bool,
}

/// Simulates steps, and keeps the times of the latest one.
#[derive(Clone, Debug)]
pub(crate) struct Timeline {
    layout: Layout,
    sharded: bool,
    /// Number of layers or buckets whose overlapping collectives are simulated one by one. 0 if they are not.
    pub beside_layers: usize,
    order: Vec<Op>,
    /// For each cell, when all its ranks have begun, the end of its work, and the duration of its work.
    pub begin: Vec<f64>,
    pub end: Vec<f64>,
    pub busy: Vec<f64>,
    /// For each data-parallel group, the end of its reduction.
    pub reduced: Vec<f64>,
    /// For each cell, its collectives between replicas, if they are simulated one by one.
    pub met: Vec<Vec<Met>>,
    /// For each stage, chunk and micro-batch, its duration, the end of its forward pass and the end of its backward
    /// pass.
    marks: Vec<[f64; 3]>,
}

impl Timeline {
    pub fn new(layout: Layout, framework: Framework, beside_layers: u32) -> Timeline {
        let cells = (layout.pp * layout.pipelines()) as usize;
        Timeline {
            sharded: framework == Framework::Fsdp,
            beside_layers: beside_layers as usize,
            met: vec![Vec::new(); cells],
            order: order(layout.pp as usize, layout.chunks as usize, layout.micro as usize),
            begin: vec![0.0; cells],
            end: vec![0.0; cells],
            busy: vec![0.0; cells],
            reduced: vec![0.0; (layout.pp * layout.tp) as usize],
            marks: vec![[0.0; 3]; (layout.pp * layout.chunks * layout.micro) as usize],
            layout,
        }
    }

    /// Simulates a step and returns the time of the synchronization. `shares` contains the share of each micro-batch,
    /// for one replica after another.
    pub fn run(&mut self, own: &[Own], shares: &[f64], roads: &Roads) -> f64 {
        for pipeline in 0..self.layout.pipelines() as usize {
            for stage in 0..self.layout.pp as usize {
                self.fill(stage, pipeline, own, shares, roads);
            }
            if self.layout.pp > 1 {
                self.pass(pipeline, roads);
            }
        }
        match (self.sharded, self.beside_layers) {
            (true, 0) => self.gather(roads),
            (true, _) => self.gather_layers(roads),
            (false, 0) => {}
            (false, _) => self.reduce_buckets(self.layout.micro as usize, roads),
        }
        self.reduce(roads)
    }

    /// Returns the number of data-parallel groups of a stage.
    pub fn tensor_groups(&self) -> usize {
        self.layout.tp as usize
    }

    /// Returns a cell's index.
    pub fn cell(&self, stage: usize, pipeline: usize) -> usize {
        stage * self.layout.pipelines() as usize + pipeline
    }

    /// Returns the cell of a rank. Ranks of a cell are consecutive.
    pub fn cell_of(&self, rank: u32) -> usize {
        (rank / self.layout.cell()) as usize
    }

    /// Returns the data-parallel group of a rank.
    pub fn group_of(&self, rank: u32) -> usize {
        (rank / self.layout.stage() * self.layout.tp + rank % self.layout.tp) as usize
    }

    /// Computes the duration of each micro-batch of a cell, which is that of its slowest rank.
    fn fill(&mut self, stage: usize, pipeline: usize, own: &[Own], shares: &[f64], roads: &Roads) {
        let cell = self.cell(stage, pipeline);
        let (size, block) = (self.layout.cell() as usize, self.layout.block() as usize);
        let (micro, chunks) = (self.layout.micro as usize, self.layout.chunks as usize);
        let ranks = &own[cell * size..(cell + 1) * size];
        let first = pipeline * self.layout.ep as usize;
        let began = |own: &Own| own.lag + own.write + own.data;
        self.begin[cell] = ranks.iter().map(began).fold(0.0, f64::max);
        let exchange = roads.exchange[cell] / micro as f64;
        let mut busy = 0.0;
        for index in 0..micro {
            let mut longest: f64 = 0.0;
            for (coordinates, own) in ranks.iter().enumerate() {
                longest =
                    longest.max(own.in_micro(index, shares[(first + coordinates / block) * micro + index]));
            }
            for chunk in 0..chunks {
                let mark = (stage * chunks + chunk) * micro + index;
                self.marks[mark][0] = (longest + exchange) / chunks as f64;
            }
            busy += longest + exchange;
        }
        self.busy[cell] = busy;
        self.end[cell] = self.begin[cell] + busy;
    }

    /// Passes micro-batches forward and backward through the pipeline.
    fn pass(&mut self, pipeline: usize, roads: &Roads) {
        let (pp, micro) = (self.layout.pp as usize, self.layout.micro as usize);
        let chunks = self.layout.chunks as usize;
        let mark = |(stage, chunk): Part, index: usize| (stage * chunks + chunk) * micro + index;
        for stage in 0..pp {
            let cell = self.cell(stage, pipeline);
            self.end[cell] = self.begin[cell];
        }
        for &Op {
            stage,
            chunk,
            micro: index,
            forward,
        } in &self.order
        {
            let cell = self.cell(stage, pipeline);
            let [before, after] = neighbors((stage, chunk), pp, chunks);
            let fed = match (forward, before, after) {
                (true, None, _) => 0.0,
                (true, Some(before), _) => {
                    self.marks[mark(before, index)][1] + roads.hop[self.cell(before.0, pipeline)]
                }
                (false, _, None) => self.marks[mark((stage, chunk), index)][1],
                (false, _, Some(after)) => self.marks[mark(after, index)][2] + roads.hop[cell],
            };
            let mark = &mut self.marks[mark((stage, chunk), index)];
            let share = if forward { FORWARD } else { 1.0 - FORWARD };
            let done = self.end[cell].max(fed) + mark[0] * share;
            mark[if forward { 1 } else { 2 }] = done;
            self.end[cell] = done;
        }
    }

    /// Simulates sharded weights. A layer's weights arrive when all cells have begun the previous layer, because each
    /// cell requests them then.
    fn gather(&mut self, roads: &Roads) {
        let mut gate = self.begin.iter().copied().fold(0.0, f64::max);
        let mut starts = self.begin.clone();
        self.end.copy_from_slice(&self.begin);
        for layer in 0..SHARDS {
            let mut latest: f64 = 0.0;
            for (cell, start) in starts.iter_mut().enumerate() {
                *start = self.end[cell].max(gate);
                latest = latest.max(*start);
                let uneven = roads.uneven.get(cell * SHARDS + layer).copied().unwrap_or(0.0);
                self.end[cell] = *start + self.busy[cell] / SHARDS as f64 * (1.0 + uneven);
            }
            gate = latest;
        }
    }

    /// Simulates the end of a step. Each data-parallel group reduces its gradients. Then all ranks synchronize.
    fn reduce(&mut self, roads: &Roads) -> f64 {
        let cells = self.layout.pipelines() as usize;
        let mut meet: f64 = 0.0;
        for stage in 0..self.layout.pp as usize {
            let ends = &self.end[stage * cells..(stage + 1) * cells];
            let last = ends.iter().copied().fold(0.0, f64::max);
            for tensor in 0..self.layout.tp as usize {
                let group = stage * self.layout.tp as usize + tensor;
                self.reduced[group] = last + roads.reduce[group];
                meet = meet.max(self.reduced[group]);
            }
        }
        meet
    }
}

/// A stage and one of its chunks.
type Part = (usize, usize);

/// Returns the previous and next part that a micro-batch passes. It passes one chunk after another, each through all
/// stages.
fn neighbors((stage, chunk): Part, pp: usize, chunks: usize) -> [Option<Part>; 2] {
    let place = chunk * pp + stage;
    let at = |place: usize| (place % pp, place / pp);
    let after = (place + 1 < pp * chunks).then(|| at(place + 1));
    [place.checked_sub(1).map(at), after]
}

/// Returns the operations of one pipeline, ordered by their dependencies.
fn order(pp: usize, chunks: usize, micro: usize) -> Vec<Op> {
    let total = chunks * micro;
    // A stage processes as many micro-batches as there are stages in one chunk, and then in the next chunk.
    let turn = |count: usize, forward: bool| {
        let (group, within) = (count / (pp * chunks), count % (pp * chunks));
        let chunk = within / pp;
        let chunk = if forward { chunk } else { chunks - 1 - chunk };
        (chunk, group * pp + within % pp)
    };
    let plan = |stage: usize| {
        let ahead = match chunks {
            1 => pp - 1 - stage,
            _ => 2 * (pp - 1 - stage) + (chunks - 1) * pp,
        };
        let ahead = ahead.min(total);
        let mut ops: Vec<(usize, bool)> = (0..ahead).map(|count| (count, true)).collect();
        for count in 0..total {
            if ahead + count < total {
                ops.push((ahead + count, true));
            }
            ops.push((count, false));
        }
        ops
    };
    let plans: Vec<Vec<(usize, bool)>> = (0..pp).map(plan).collect();
    let mut next = vec![0; pp];
    let mut done = vec![[false; 2]; pp * total];
    let mark = |(stage, chunk): Part, micro_batch: usize| (stage * chunks + chunk) * micro + micro_batch;
    let mut order = Vec::with_capacity(2 * pp * total);
    while order.len() < 2 * pp * total {
        for stage in 0..pp {
            while let Some(&(count, forward)) = plans[stage].get(next[stage]) {
                let (chunk, micro) = turn(count, forward);
                let [before, after] = neighbors((stage, chunk), pp, chunks);
                let fed = match (forward, before, after) {
                    (true, None, _) => true,
                    (true, Some(before), _) => done[mark(before, micro)][0],
                    (false, _, None) => done[mark((stage, chunk), micro)][0],
                    (false, _, Some(after)) => done[mark(after, micro)][1],
                };
                if !fed {
                    break;
                }
                done[mark((stage, chunk), micro)][usize::from(!forward)] = true;
                next[stage] += 1;
                order.push(Op {
                    stage,
                    chunk,
                    micro,
                    forward,
                });
            }
        }
    }
    order
}

#[cfg(test)]
#[path = "timeline_tests.rs"]
mod tests;
