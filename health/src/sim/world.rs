//! A whole training job on virtual time: an iterator of frames with bounded memory.
//!
//! Training is synchronous. Every rank computes, then waits in the collective until the slowest has arrived; wait is
//! what is left of the step. Nothing here knows of the detector.

use std::iter::FusedIterator;
use std::time::Duration;

use super::chance::Chance;
use super::fault::Fault;
use super::gpu::GpuScript;
use super::link::Link;
use super::pace::{Drag, Noise};
use super::spec::{SpecError, WorldSpec};
use super::truth::{Places, Truth};
use super::voice::{BEAT, lateness};
use crate::event::{Event, StepKind};
use crate::frame::Frame;
use crate::id::NodeId;
use crate::time::Time;

/// When training begins, after the sidecars and the ranks have come up.
pub(super) const TRAINING_AT: Time = Time(3_000_000_000);
/// Shares of a rank's self-time before and after the collective.
const DATA_SHARE: f64 = 0.04;
pub(super) const OPTIMIZER_SHARE: f64 = 0.08;
/// The collective takes this much more or less from step to step (log standard deviation).
const TRANSFER_SIGMA: f64 = 0.05;
/// What a job that hung exits with: its launcher's SIGTERM.
const KILLED: i32 = 143;

/// A simulated job. Iterate over it for its frames; [`World::truth`] says what was really wrong so far.
#[derive(Debug)]
pub struct World {
    pub(super) spec: WorldSpec,
    pub(super) drag: Drag,
    pub(super) link: Link,
    pub(super) names: Vec<NodeId>,
    pub(super) ranks: Vec<RankState>,
    /// Next beat of each node.
    pub(super) beats: Vec<Time>,
    /// The end of the collective of the last step.
    pub(super) now: Time,
    /// The last step that was made.
    pub(super) step: u64,
    /// When that step began, seconds.
    last_begin_s: f64,
    pub(super) stage: Stage,
    truth: Vec<Truth>,
    chance: Chance,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Steps are made.
    Training,
    /// What was said is still on its way.
    Ending,
    /// The journal is closed.
    Done,
}

/// One rank between two collectives.
#[derive(Clone, Debug)]
pub(super) struct RankState {
    noise: Noise,
    /// When it declared itself, and how late everything comes that it says.
    pub attached: Time,
    pub lateness: Duration,
    /// Self-time of the last step and of this one as it would be with nothing wrong, seconds.
    last_base_s: f64,
    pub base_s: f64,
    /// End of its last step, and the marks within this one.
    pub start: Time,
    pub data_at: Time,
    pub compute_at: Time,
    pub arrival: Time,
}

impl World {
    /// A world that has not begun.
    ///
    /// # Errors
    /// [`SpecError`], which names the value that cannot be simulated.
    pub fn new(spec: WorldSpec) -> Result<World, SpecError> {
        spec.check()?;
        let names: Vec<NodeId> = (0..spec.nodes)
            .map(|node| NodeId(format!("node{node}").into()))
            .collect();
        let mut gpus = GpuScript::healthy(spec.ranks(), spec.seed);
        for fault in &spec.faults {
            match *fault {
                Fault::Heat { gpu, from_s, until_s } => {
                    gpus = gpus.with_heat(gpu, from_s, until_s.unwrap_or(f64::INFINITY));
                }
                Fault::Warm { gpu, from_s, until_s } => {
                    gpus = gpus.with_warmth(gpu, from_s, until_s.unwrap_or(f64::INFINITY));
                }
                _ => {}
            }
        }
        let rank = |rank| RankState {
            noise: Noise::new(spec.seed, rank, &spec.step),
            attached: Time(u64::MAX),
            lateness: lateness(&spec.faults, rank),
            last_base_s: 0.0,
            base_s: 0.0,
            start: TRAINING_AT,
            data_at: TRAINING_AT,
            compute_at: TRAINING_AT,
            arrival: TRAINING_AT,
        };
        // Nodes come up within a second, and beat and poll out of step with each other.
        let up = |node| Time::from_secs_f64(Chance::of(spec.seed, &[0x7570, u64::from(node)]).unit());
        let mut world = World {
            drag: Drag::new(&spec, gpus),
            link: Link::new(&spec, &names),
            ranks: (0..spec.ranks()).map(rank).collect(),
            beats: (0..spec.nodes).map(|node| up(node) + BEAT).collect(),
            truth: Vec::new(),
            chance: Chance::of(spec.seed, &[0x776f_726c]),
            now: TRAINING_AT,
            step: 0,
            last_begin_s: TRAINING_AT.as_secs_f64(),
            stage: Stage::Training,
            names,
            spec,
        };
        let places = Places {
            names: &world.names,
            gpu: &|rank| world.drag.gpus().gpu(rank),
        };
        let untold = |fault: &Fault| Truth::untold(*fault, &world.spec, &places);
        world.truth = world.spec.faults.iter().map(untold).collect();
        world.open();
        Ok(world)
    }

    /// The spec it was made of.
    pub fn spec(&self) -> &WorldSpec {
        &self.spec
    }

    /// The GPUs of all nodes; rank n trains on GPU n.
    pub fn gpus(&self) -> &GpuScript {
        self.drag.gpus()
    }

    /// Steps made so far.
    pub fn steps(&self) -> u64 {
        self.step
    }

    /// What was really wrong so far, one entry per fault of the spec, in its order.
    pub fn truth(&self) -> &[Truth] {
        &self.truth
    }

    pub(super) fn node_of(&self, rank: u32) -> u32 {
        rank / self.spec.gpus_per_node
    }

    pub(super) fn ranks_of(&self, node: u32) -> std::ops::Range<u32> {
        node * self.spec.gpus_per_node..(node + 1) * self.spec.gpus_per_node
    }

    /// Makes the next step. Nothing it makes happens before `self.now` as it was.
    fn train(&mut self) {
        let (step, at_s) = (self.step + 1, self.now.as_secs_f64());
        let checkpoint = self.checkpoint(step);
        let mut slowest: f64 = 0.0;
        let mut without = vec![0.0; self.truth.len()];
        for rank in 0..self.spec.ranks() {
            let state = &mut self.ranks[rank as usize];
            (state.last_base_s, state.base_s) = (state.base_s, state.noise.next(&self.spec.step, step));
            let writes = if checkpoint.writes(rank) {
                checkpoint.seconds
            } else {
                0.0
            };
            let work = self.work(rank, step, None) + writes;
            slowest = slowest.max(work);
            self.mark(rank, step, work, writes);
            for (index, longest) in without.iter_mut().enumerate() {
                let less = if self.spec.faults[index].is_felt() {
                    let less = self.work(rank, step, Some(index)) + writes;
                    self.truth[index].feel(step, rank, work, less);
                    less
                } else {
                    work
                };
                *longest = f64::max(*longest, less);
            }
        }
        let stall = self.drag.collective_stall(step);
        if !(slowest + stall).is_finite() {
            return self.hang(step, &without);
        }
        let transfer = self.spec.step.transfer_s * (TRANSFER_SIGMA * self.chance.normal()).exp();
        let meet = self.now + seconds(slowest + transfer + stall);
        for (index, longest) in without.iter().enumerate() {
            let common =
                matches!(self.spec.faults[index], Fault::Silent { rank: None, from, .. } if from == step);
            let lost = slowest - longest + if common { stall } else { 0.0 };
            self.lose(index, step, lost);
        }
        self.beat_until(meet);
        self.finish(step, at_s, meet, checkpoint.kind);
        (self.last_begin_s, self.now, self.step) = (at_s, meet, step);
    }

    /// Seconds from the last collective to the rank's arrival at this one: what the optimizer overhangs from the
    /// last step, and everything before the collective in this one; `skip` leaves out one fault.
    fn work(&self, rank: u32, step: u64, skip: Option<usize>) -> f64 {
        let state = &self.ranks[rank as usize];
        let overhang =
            state.last_base_s * OPTIMIZER_SHARE * self.drag.factor(rank, step - 1, self.last_begin_s, skip);
        let own = state.base_s * self.drag.factor(rank, step, self.now.as_secs_f64(), skip);
        overhang + own * (1.0 - OPTIMIZER_SHARE) + self.drag.stall(rank, step, skip)
    }

    /// Sets the marks within the rank's step, for its pulse.
    fn mark(&mut self, rank: u32, step: u64, work: f64, writes: f64) {
        let data = DATA_SHARE * self.ranks[rank as usize].base_s;
        let declared = if self.spec.step.checkpoint.declared {
            writes
        } else {
            0.0
        };
        let (now, stalls) = (self.now, self.drag.stall(rank, step, None).is_infinite());
        let state = &mut self.ranks[rank as usize];
        state.data_at = state.start + seconds(declared);
        state.compute_at = state.data_at + seconds(data);
        state.arrival = if stalls {
            Time(u64::MAX)
        } else {
            now + seconds(work)
        };
    }

    /// The last step's collective never ends; somebody kills the job at last.
    fn hang(&mut self, step: u64, without: &[f64]) {
        let killed = self.now + seconds(self.spec.hang_s);
        for (index, longest) in without.iter().enumerate() {
            if matches!(self.spec.faults[index], Fault::Silent { from, for_s: None, .. } if from == step) {
                self.truth[index].since_step.get_or_insert(step);
                self.truth[index].last_step = Some(step);
                self.lose(index, step, (self.spec.hang_s - longest).max(0.0));
            }
        }
        self.beat_until(killed);
        self.now = killed;
        self.end(KILLED, killed);
    }

    fn lose(&mut self, index: usize, step: u64, seconds: f64) {
        let truth = &mut self.truth[index];
        if seconds > 0.0 {
            if matches!(truth.fault, Fault::Silent { rank: None, .. }) {
                truth.since_step.get_or_insert(step);
                truth.last_step = Some(step);
            }
            truth.lost_gpu_s += seconds * f64::from(self.spec.ranks());
        }
    }

    fn checkpoint(&self, step: u64) -> CheckpointStep {
        let plan = &self.spec.step.checkpoint;
        let due = plan.every > 0 && step.is_multiple_of(plan.every);
        CheckpointStep {
            kind: if due && plan.declared {
                StepKind::Checkpoint
            } else {
                StepKind::Train
            },
            seconds: if due {
                (plan.factor - 1.0) * self.spec.step.self_s
            } else {
                0.0
            },
            first_rank_only: plan.first_rank_only,
        }
    }
}

/// What a step has to do with checkpoints.
struct CheckpointStep {
    kind: StepKind,
    seconds: f64,
    first_rank_only: bool,
}

impl CheckpointStep {
    fn writes(&self, rank: u32) -> bool {
        self.seconds > 0.0 && (rank == 0 || !self.first_rank_only)
    }
}

pub(super) fn seconds(span: f64) -> Duration {
    Duration::from_nanos((span * 1e9).round() as u64)
}

impl Iterator for World {
    type Item = (Time, Frame);

    fn next(&mut self) -> Option<(Time, Frame)> {
        loop {
            let due = self.link.next_at();
            if self.stage == Stage::Training && due.is_none_or(|at| at >= self.now) {
                if self.step < self.spec.steps {
                    self.train();
                } else {
                    self.end(0, self.now + Duration::from_millis(500));
                }
                continue;
            }
            if self.stage == Stage::Done || due.is_none() {
                return None;
            }
            if let Some((at, frame)) = self.link.turn() {
                if matches!(frame.event, Event::End(_)) {
                    self.stage = Stage::Done;
                }
                return Some((at, frame));
            }
        }
    }
}

impl FusedIterator for World {}

#[cfg(test)]
#[path = "world_tests.rs"]
mod tests;
