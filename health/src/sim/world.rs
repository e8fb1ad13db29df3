//! A complete training job in virtual time. It is an iterator of frames that uses bounded memory.
//!
//! Training is synchronous. Every rank works and waits for others according to its position in the layout (see
//! `timeline`). Once per step, all ranks synchronize. Nothing here depends on the detector.

use std::iter::FusedIterator;
use std::time::Duration;

use super::chance::Chance;
use super::fault::Fault;
use super::fault::costs::{Costs, Lived};
use super::fault::drag::{Drag, Occasion, Without};
use super::fault::truth::{OwnCost, Places, Truth};
use super::link::Link;
use super::spec::layout::Layout;
use super::spec::{SpecError, WorldSpec};
use super::step::pace::Pace;
use super::step::timeline::{Own, Roads, Timeline};
use super::telemetry::Telemetry;
use super::telemetry::gpu::GpuScript;
use super::voice::{BEAT, lateness};
use crate::event::{Event, StepKind, Want};
use crate::frame::Frame;
use crate::id::NodeId;
use crate::time::Time;

/// Start of training, after the sidecars and the ranks have started.
pub(super) const TRAINING_AT: Time = Time(3_000_000_000);
/// Exit code of a hung job, which is ended by SIGTERM from its launcher.
const KILLED: i32 = 143;
/// Number of healthy steps whose median is the baseline.
const BASELINE_STEPS: usize = 65;

/// A simulated job. Iterate over it for its frames; [`World::truth`] returns the actual faults so far.
#[derive(Debug)]
pub struct World {
    pub(super) spec: WorldSpec,
    pub(super) layout: Layout,
    pub(super) pace: Pace,
    pub(super) drag: Drag,
    pub(super) timeline: Timeline,
    pub(super) link: Link,
    pub(super) names: Vec<NodeId>,
    pub(super) ranks: Vec<RankState>,
    /// The work of each rank in the current step, and its transfers if a fault changed them.
    pub(super) own: Vec<Own>,
    pub(super) roads: Option<Roads>,
    /// Share of the current step in which each rank works, without faults. A rank that waits for its peers sleeps and
    /// does not count as working.
    pub(super) working: Vec<f64>,
    pub(super) telemetry: Telemetry,
    /// Next beat of each node.
    pub(super) beats: Vec<Time>,
    /// End of the last step's collective.
    pub(super) now: Time,
    /// The last step so far.
    pub(super) step: u64,
    /// Number of restarts, the last step before the latest restart, and the time at which training resumed.
    pub(super) restart: u32,
    epoch_from: u64,
    pub(super) begin_at: Time,
    pub(super) stage: Stage,
    /// Communicators for which single collectives are requested.
    pub(super) wants: Vec<Want>,
    truth: Vec<Truth>,
    costs: Costs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Steps are simulated.
    Training,
    /// Remaining frames are still in transit.
    Ending,
    /// The journal is closed.
    Done,
}

/// The state of one rank between two synchronizations.
#[derive(Clone, Copy, Debug)]
pub(super) struct RankState {
    /// The time at which it attached, and the delay of all its data.
    pub attached: Time,
    pub lateness: Duration,
    /// End of its last step, and its times within the current step.
    pub start: Time,
    pub data_at: Time,
    pub compute_at: Time,
    pub arrival: Time,
}

impl World {
    /// Creates a world at its beginning.
    ///
    /// # Errors
    /// [`SpecError`], which names the value that cannot be simulated.
    pub fn new(mut spec: WorldSpec) -> Result<World, SpecError> {
        spec.check()?;
        spec.restarts.sort_unstable();
        spec.restarts.dedup();
        let layout = spec.layout.of(spec.ranks())?;
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
            attached: Time(u64::MAX),
            lateness: lateness(&spec.faults, rank),
            start: TRAINING_AT,
            data_at: TRAINING_AT,
            compute_at: TRAINING_AT,
            arrival: TRAINING_AT,
        };
        // Nodes start within a second, so their beats and polls are not in phase.
        let up = |node| Time::from_secs_f64(Chance::of(spec.seed, &[0x7570, u64::from(node)]).unit());
        let places = Places {
            names: &names,
            gpu: &|rank| gpus.gpu(rank),
        };
        let untold = |fault: &Fault| Truth::untold(*fault, &spec, &places);
        let truth = spec.faults.iter().map(untold).collect();
        let timeline = Timeline::new(layout, spec.framework, spec.beside);
        let mut world = World {
            truth,
            telemetry: Telemetry::new(&spec, &gpus),
            pace: Pace::new(&spec, layout)?,
            drag: Drag::new(&spec, gpus),
            link: Link::new(&spec, &names),
            ranks: (0..spec.ranks()).map(rank).collect(),
            own: vec![Own::default(); spec.ranks() as usize],
            roads: None,
            working: Vec::new(),
            beats: (0..spec.nodes).map(|node| up(node) + BEAT).collect(),
            now: TRAINING_AT,
            step: 0,
            restart: 0,
            epoch_from: 0,
            wants: Vec::new(),
            begin_at: TRAINING_AT,
            stage: Stage::Training,
            costs: Costs::new(&spec, &timeline),
            timeline,
            layout,
            names,
            spec,
        };
        world.open();
        Ok(world)
    }

    /// Returns the spec of the world.
    pub fn spec(&self) -> &WorldSpec {
        &self.spec
    }

    /// Returns the GPUs of all nodes. Rank n trains on GPU n.
    pub fn gpus(&self) -> &GpuScript {
        self.drag.gpus()
    }

    /// Sets the requests of an aggregator to the sidecars, from the next step on.
    pub fn want(&mut self, wants: &[Want]) {
        self.wants.clear();
        self.wants.extend_from_slice(wants);
    }

    /// Returns the number of steps so far.
    pub fn steps(&self) -> u64 {
        self.step
    }

    /// Returns the actual faults so far, one entry per fault of the spec, in its order.
    pub fn truth(&self) -> &[Truth] {
        &self.truth
    }

    /// Returns the GPU-seconds that the job has lost so far to all of its faults together.
    pub fn lost_gpu_s(&self) -> f64 {
        self.costs.lost_s() * f64::from(self.spec.ranks())
    }

    /// Returns the cost of the job's own imbalances so far. These are stages, sequences, experts and garbage
    /// collection, if the spec has them.
    pub fn own_costs(&self) -> Vec<OwnCost> {
        self.costs.own_costs(&self.spec)
    }

    pub(super) fn node_of(&self, rank: u32) -> u32 {
        rank / self.spec.gpus_per_node
    }

    pub(super) fn ranks_of(&self, node: u32) -> std::ops::Range<u32> {
        node * self.spec.gpus_per_node..(node + 1) * self.spec.gpus_per_node
    }

    /// Simulates the next step. All its events are at or after the current `self.now`.
    fn train(&mut self) {
        let step = self.step + 1;
        let (occasion, kind) = self.occasion(step);
        self.pace.draw(occasion.warming, self.evaluates(step));
        self.drag.aim(occasion);
        for (rank, own) in (0..).zip(&mut self.own) {
            let pull = self.drag.pull(rank, Without::Nothing);
            *own = self.pace.own(rank, &pull, own.optimizer, Without::Nothing);
        }
        self.roads = self.drag.roads(&self.pace.roads, &self.layout, Without::Nothing);
        let roads = self.roads.as_ref().unwrap_or(&self.pace.roads);
        let shares = self.pace.shares(Without::Nothing);
        let meet_s =
            self.timeline.run(&self.own, shares, roads) + self.drag.collective_stall(Without::Nothing);
        let lived = Lived {
            step,
            own: &self.own,
            meet_s,
            pace: &self.pace,
            drag: &self.drag,
            layout: &self.layout,
        };
        self.costs.settle(lived, &mut self.truth);
        self.mark();
        self.measure_work(meet_s);
        if !meet_s.is_finite() {
            return self.hang();
        }
        let meet = self.now + seconds(meet_s);
        self.beat_until(meet);
        self.finish(step, meet, meet_s, kind);
        (self.now, self.step) = (meet, step);
    }

    /// Returns the properties of a step.
    fn occasion(&self, step: u64) -> (Occasion, StepKind) {
        let plan = &self.spec.step.checkpoint;
        let due = plan.every > 0 && step.is_multiple_of(plan.every);
        let kind = if due && plan.declared {
            StepKind::Checkpoint
        } else if self.evaluates(step) && self.spec.step.evaluation.declared {
            StepKind::Evaluation
        } else {
            StepKind::Train
        };
        let write_s = if due {
            (plan.factor - 1.0) * self.spec.step.self_s
        } else {
            0.0
        };
        let occasion = Occasion {
            step,
            at_s: self.now.as_secs_f64(),
            warming: step <= self.epoch_from + self.spec.step.warm_up_steps,
            write_s,
            first_rank_only: plan.first_rank_only,
        };
        (occasion, kind)
    }

    fn evaluates(&self, step: u64) -> bool {
        let every = self.spec.step.evaluation.every;
        every > 0 && step.is_multiple_of(every)
    }

    /// Sets the times within each rank's step, for its pulse.
    fn mark(&mut self) {
        let declared = self.spec.step.checkpoint.declared;
        let piped = self.layout.pp > 1;
        for (rank, (state, own)) in (0..).zip(self.ranks.iter_mut().zip(&self.own)) {
            let written = if declared { own.write } else { 0.0 };
            state.data_at = state.start + seconds(written);
            state.compute_at = state.data_at + seconds(own.data);
            let end = self.timeline.end[self.timeline.cell_of(rank)];
            state.arrival = if own.extra.is_infinite() {
                Time(u64::MAX)
            } else if piped && end.is_finite() {
                self.now + seconds(end)
            } else {
                self.now + seconds(own.total())
            };
        }
    }

    /// Sets the share of a step of `meet_s` in which each rank works, if it is needed.
    fn measure_work(&mut self, meet_s: f64) {
        if self.spec.oversubscribed > 0.0 {
            let work = |rank: u32| {
                let pull = self.drag.pull(rank, Without::Faults);
                let own = self.pace.own(rank, &pull, 0.0, Without::Nothing);
                (own.data + own.compute + own.optimizer) / meet_s
            };
            self.working = (0..self.spec.ranks()).map(work).collect();
        }
    }

    /// Simulates a hang. The last step's collective never ends, and finally the job is killed.
    fn hang(&mut self) {
        let killed = self.now + seconds(self.spec.hang_s);
        self.beat_until(killed);
        self.now = killed;
        self.end(KILLED, killed);
    }

    /// Restarts training after the last step. There are new processes and a new warm-up, and the step numbers continue.
    fn start_again(&mut self) {
        let back = self.now + seconds(self.spec.restart_s);
        self.restart += 1;
        self.epoch_from = self.step;
        for own in &mut self.own {
            *own = Own::default();
        }
        self.costs.restart();
        self.begin_at = self.attach_all(back);
        for state in &mut self.ranks {
            state.start = self.begin_at;
        }
        self.beat_until(self.begin_at);
        self.now = self.begin_at;
    }

    /// Returns the duration of an ordinary step of this job without faults, and the self-time of each node's ranks in
    /// it.
    pub(super) fn baseline(&self) -> (f64, Vec<f64>) {
        let (mut pace, mut drag, mut timeline) =
            (self.pace.clone(), self.drag.clone(), self.timeline.clone());
        drag.aim(Occasion {
            at_s: self.now.as_secs_f64(),
            ..Occasion::default()
        });
        let ranks = self.spec.ranks();
        let mut own = vec![Own::default(); ranks as usize];
        let mut steps = Vec::new();
        let mut selfs = vec![Vec::new(); self.spec.nodes as usize];
        for _ in 0..BASELINE_STEPS {
            pace.draw(false, false);
            for rank in 0..ranks {
                let lag = own[rank as usize].optimizer;
                let pull = drag.pull(rank, Without::Faults);
                let done = pace.own(rank, &pull, lag, Without::Nothing);
                selfs[self.node_of(rank) as usize]
                    .push(done.data + done.compute + done.extra + done.optimizer);
                own[rank as usize] = done;
            }
            steps.push(timeline.run(&own, pace.shares(Without::Nothing), &pace.roads));
        }
        (middle(steps), selfs.into_iter().map(middle).collect())
    }
}

fn middle(mut values: Vec<f64>) -> f64 {
    let half = values.len() / 2;
    *values.select_nth_unstable_by(half, f64::total_cmp).1
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
                if self.step >= self.spec.steps {
                    self.end(0, self.now + Duration::from_millis(500));
                } else if self.spec.restarts.get(self.restart as usize) == Some(&self.step) {
                    self.start_again();
                } else {
                    self.train();
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
