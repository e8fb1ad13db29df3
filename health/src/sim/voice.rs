//! Events of a world's sidecars and aggregator, such as attaches, steps, beats and the end of the job.

use std::sync::Arc;
use std::time::Duration;

use super::fault::Fault;
use super::fault::drag::Without;
use super::fault::truth::rack_name;
use super::spec::Framework;
use super::step::comms::{Ran, groups};
use super::world::{Stage, TRAINING_AT, World, seconds};
use crate::event::{
    Agent, Attach, Baseline, BaselineOf, Beat, Bye, Detach, End, Event, Exit, Job, Phase, Phases, Pulse,
    Signal, Step, StepKind,
};
use crate::id::{JobId, Rank};
use crate::time::Time;

/// Versions on every node.
const VERSIONS: [(&str, &str); 4] = [
    ("driver", "570.86.15"),
    ("cuda", "12.8"),
    ("nccl", "2.25.1"),
    ("kernel", "5.15.0-130-generic"),
];
/// The driver of a node that missed an upgrade.
const OLD_DRIVER: (&str, &str) = ("driver", "550.54.15");

/// How often a sidecar reads its rings.
const POLL: Duration = Duration::from_millis(100);
/// Latency from a node to the journal.
const LATENCY: Duration = Duration::from_millis(1);
/// Interval of a sidecar's beats and GPU readings.
pub(super) const BEAT: Duration = Duration::from_secs(1);
/// Time from the sidecar's start until its ranks attach.
const ATTACH: Duration = Duration::from_millis(1200);

impl World {
    /// Emits all events before training begins.
    pub(super) fn open(&mut self) {
        let job = Job {
            job: JobId(Arc::clone(&self.spec.job)),
            paceline: version(),
            listened_to: None,
        };
        self.link.own(Time::ZERO, Event::Job(job));
        for node in 0..self.spec.nodes {
            let up = self.beats[node as usize] - BEAT;
            self.arrive(up, node, up + ATTACH);
        }
        if self.spec.tells_baseline() {
            self.tell_baseline(TRAINING_AT - Duration::from_millis(200));
        }
        self.beat_until(TRAINING_AT);
    }

    /// Emits measurements from before this job, as if from the first node's sidecar.
    fn tell_baseline(&mut self, at: Time) {
        let (step_s, selfs) = self.baseline();
        let of_nodes = self.names.clone().into_iter().zip(selfs);
        let nodes = of_nodes.map(|(node, seconds)| (BaselineOf::SelfTime { node }, seconds, "preflight"));
        let all: Vec<_> = std::iter::once((BaselineOf::Step, step_s, "an earlier run"))
            .chain(nodes)
            .collect();
        for (of, seconds, source) in all {
            let source = Arc::from(source);
            let event = Event::Baseline(Baseline { of, seconds, source });
            self.link.seen(at, 0, event);
        }
    }

    /// Emits the events of a sidecar that starts and discovers its ranks.
    fn arrive(&mut self, up: Time, node: u32, attach: Time) {
        let sources = [
            ("probe", true),
            ("sim-gpu", self.spec.readings),
            ("host", self.spec.reads_hosts()),
        ];
        let skewed = |fault: &Fault| matches!(fault, Fault::Skew { node: whom } if *whom == node);
        let driver = if self.spec.faults.iter().any(skewed) {
            OLD_DRIVER
        } else {
            VERSIONS[0]
        };
        let versions = std::iter::once(driver).chain(VERSIONS[1..].iter().copied());
        let agent = Agent {
            paceline: version(),
            sources: sources
                .iter()
                .filter(|(_, read)| *read)
                .map(|(name, _)| Arc::from(*name))
                .collect(),
            rack: match self.spec.racks {
                0 => Arc::from(""),
                _ => rack_name(self.drag.house().rack_of(node)),
            },
            versions: versions
                .map(|(name, version)| (Arc::from(name), Arc::from(version)))
                .collect(),
            unix_ms: 0,
        };
        self.link.seen(up, node, Event::Agent(agent));
        self.attach(attach, node);
    }

    /// Attaches the ranks of new processes. Returns the time at which they start to train.
    pub(super) fn attach_all(&mut self, at: Time) -> Time {
        for state in &mut self.ranks {
            state.attached = Time(u64::MAX);
        }
        for node in 0..self.spec.nodes {
            self.attach(at, node);
        }
        at + ATTACH
    }

    fn attach(&mut self, at: Time, node: u32) {
        for rank in self.ranks_of(node) {
            let event = Attach {
                rank: Rank(rank),
                local_rank: rank % self.spec.gpus_per_node,
                world_size: self.spec.ranks(),
                restart: self.restart,
                pid: 1000 + rank + self.restart * self.spec.ranks(),
                gpu: Some(self.gpus().gpu(rank)),
                role: Arc::clone(&self.spec.role),
                framework: Arc::from("simulated"),
            };
            let at = at + self.ranks[rank as usize].lateness;
            self.link.seen(at, node, Event::Attach(event));
            if self.layout.declared {
                let declared = self.layout.declared(rank, self.restart);
                self.link.seen(at, node, Event::Layout(declared));
            }
            if self.spec.comms {
                for group in groups(&self.layout, rank, self.restart) {
                    self.link.seen(at, node, Event::Group(group));
                }
            }
            let attached = &mut self.ranks[rank as usize].attached;
            *attached = at.min(*attached);
        }
    }

    /// Emits the beats and readings of every node up to `until`, with the current step's times.
    pub(super) fn beat_until(&mut self, until: Time) {
        for (at, node) in self.link.returns(until) {
            self.link.restart(at, node);
            self.arrive(at, node, at + Duration::from_millis(10));
        }
        for node in 0..self.spec.nodes {
            while self.beats[node as usize] < until {
                let at = self.beats[node as usize];
                self.beats[node as usize] = at + BEAT;
                let beat = Beat {
                    ranks: self
                        .ranks_of(node)
                        .filter_map(|rank| self.pulse(rank, at))
                        .collect(),
                    cpu_ns: at.0 / 1000,
                    rss_bytes: 12 << 20,
                    ..Beat::default()
                };
                self.link.seen(at + LATENCY, node, Event::Beat(beat));
                self.read(at, node);
            }
        }
    }

    /// Emits the readings of a node and of its GPUs and ranks.
    fn read(&mut self, at: Time, node: u32) {
        let idle = self.stage != Stage::Training || at < self.begin_at;
        if self.spec.readings {
            for gpu in self.ranks_of(node) {
                if let Some(reading) = self.telemetry.gpu(at, gpu, idle, &self.drag) {
                    self.link.seen(at + LATENCY, node, Event::Gpu(reading));
                }
            }
        }
        let wanting = |rank: u32| {
            let working = self.working.get(rank as usize).copied().unwrap_or(0.0);
            if idle {
                0.0
            } else {
                self.spec.oversubscribed * working
            }
        };
        let ranks = self.ranks_of(node);
        let wanting: Vec<f64> = ranks.map(wanting).collect();
        if let Some(reading) = self.telemetry.node(at, node, &self.drag, wanting.iter().sum()) {
            self.link.seen(at + LATENCY, node, Event::Host(reading));
            for (rank, wanting) in self.ranks_of(node).zip(wanting) {
                if let Some(reading) = self.telemetry.rank(at, rank, &self.drag, wanting) {
                    self.link.seen(at + LATENCY, node, Event::Host(reading));
                }
            }
        }
    }

    /// Returns a rank's pulse, if the rank has attached and has not ended.
    fn pulse(&self, rank: u32, at: Time) -> Option<Pulse> {
        let state = &self.ranks[rank as usize];
        if self.stage != Stage::Training || at < state.attached {
            return None;
        }
        let in_step = self.step + 1;
        let (step, phase, since) = if at < self.begin_at {
            (in_step, Phase::Other, state.attached)
        } else if at < state.start {
            (self.step, Phase::Optimizer, self.now)
        } else if at < state.data_at {
            (in_step, Phase::Checkpoint, state.start)
        } else if at < state.compute_at {
            (in_step, Phase::Data, state.data_at)
        } else if at < state.arrival {
            (in_step, Phase::Compute, state.compute_at)
        } else {
            (in_step, Phase::Wait, state.arrival)
        };
        let idle_ns = at.0.saturating_sub(since.0);
        Some(Pulse {
            rank: Rank(rank),
            restart: self.restart,
            step,
            phase,
            idle_ns,
            alive: true,
        })
    }

    /// Returns when the node's sidecar next reads its rings after `at`.
    fn polled(&self, at: Time, node: u32) -> Time {
        let (phase, period) = (self.beats[node as usize].0, POLL.as_nanos() as u64);
        let missing = (phase % period + period - at.0 % period) % period;
        Time(at.0 + missing) + LATENCY
    }

    /// Finishes a step. Every rank leaves the synchronization, runs its optimizer and reports its step.
    pub(super) fn finish(&mut self, step: u64, meet: Time, meet_s: f64, kind: StepKind) {
        for rank in 0..self.spec.ranks() {
            let event = self.ended(rank, step, meet, kind);
            let node = self.node_of(rank);
            let end = self.ranks[rank as usize].start;
            let read = self.polled(end, node) + self.ranks[rank as usize].lateness;
            self.link.seen(read, node, Event::Step(event));
            if self.spec.comms {
                let ran = Ran {
                    layout: &self.layout,
                    timeline: &self.timeline,
                    own: &self.own,
                    roads: self.roads.as_ref().unwrap_or(&self.pace.roads),
                    sharded: self.spec.framework == Framework::Fsdp,
                    by_gpu: self.spec.comms_by_gpu,
                    shares: self.pace.shares(Without::Nothing),
                    meet_s,
                };
                if let Some(did) = ran.alone(rank, self.restart, step, &self.wants) {
                    self.link.seen(read, node, Event::Collectives(did));
                }
                for comm in ran.comms(rank, self.restart, step) {
                    self.link.seen(read, node, Event::Comm(comm));
                }
            }
        }
    }

    /// Returns a rank's step, from the end of the previous one to the end of its optimizer.
    fn ended(&mut self, rank: u32, step: u64, meet: Time, kind: StepKind) -> Step {
        let own = &self.own[rank as usize];
        let (tokens, sum_sq, expert_tokens) = self.pace.loads.declared(self.layout.coordinates(rank).dp);
        let state = &mut self.ranks[rank as usize];
        let end = meet + seconds(own.optimizer);
        let written = if self.spec.step.checkpoint.declared {
            0.0
        } else {
            own.write
        };
        let span = |seconds: f64| (seconds * 1e9).round() as u64;
        let mut phases = Phases {
            checkpoint_ns: state.data_at.0 - state.start.0,
            data_ns: state.compute_at.0 - state.data_at.0,
            compute_ns: span(own.compute + own.extra + written),
            wait_ns: 0,
            optimizer_ns: end.0 - meet.0,
            gc_ns: span(own.gc),
        };
        let busy = phases.checkpoint_ns + phases.data_ns + phases.compute_ns;
        phases.wait_ns = (meet.0 - state.start.0).saturating_sub(busy);
        let dur_ns = end.0 - state.start.0;
        state.start = end;
        Step {
            rank: Rank(rank),
            restart: self.restart,
            step,
            kind,
            dur_ns,
            phases: self.spec.phases.then_some(phases),
            micro_batches: u16::try_from(self.layout.micro).unwrap_or(u16::MAX),
            tokens,
            signal: if self.spec.phases { Signal::S2 } else { Signal::S0 },
            sum_sq,
            expert_tokens,
        }
    }

    /// Ends the job with `code` at `at`. The end is normal if the code is zero.
    pub(super) fn end(&mut self, code: i32, at: Time) {
        let at = self.ranks.iter().map(|state| state.start).fold(at, Time::max);
        self.stage = Stage::Ending;
        let bye = at + Duration::from_secs(1);
        for node in 0..self.spec.nodes {
            if code == 0 {
                for rank in self.ranks_of(node) {
                    let gone = at + self.ranks[rank as usize].lateness;
                    let event = Detach {
                        rank: Rank(rank),
                        restart: self.restart,
                        step: self.step,
                    };
                    self.link.seen(gone, node, Event::Detach(event));
                }
            }
            let latest = self
                .ranks_of(node)
                .map(|rank| self.ranks[rank as usize].lateness)
                .max()
                .unwrap_or_default();
            self.link.seen(
                at + Duration::from_millis(500) + latest,
                node,
                Event::Exit(Exit { code }),
            );
            self.link.seen(
                bye + latest,
                node,
                Event::Bye(Bye {
                    reason: Arc::from("the command ended"),
                }),
            );
        }
        let latest = self
            .ranks
            .iter()
            .map(|state| state.lateness)
            .max()
            .unwrap_or_default();
        let close = bye + latest + Duration::from_secs(5);
        let silent = (0..self.spec.nodes).filter(|node| self.link.is_cut(bye, *node));
        let missing = silent.map(|node| self.names[node as usize].clone()).collect();
        self.link.own(close, Event::End(End { missing }));
        self.beat_until(bye + latest);
        self.now = close;
    }
}

/// Returns the delay of all data from a rank.
pub(super) fn lateness(faults: &[Fault], rank: u32) -> Duration {
    let late = faults.iter().map(|fault| match *fault {
        Fault::Late { rank: whom, by_s } if whom == rank => seconds(by_s),
        _ => Duration::ZERO,
    });
    late.sum()
}

fn version() -> Arc<str> {
    Arc::from(env!("CARGO_PKG_VERSION"))
}
