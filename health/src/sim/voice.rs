//! What the sidecars and the aggregator of a world say: who is there, each step, each beat, the end.

use std::sync::Arc;
use std::time::Duration;

use super::fault::Fault;
use super::world::{OPTIMIZER_SHARE, Stage, TRAINING_AT, World, seconds};
use crate::event::{
    Agent, Attach, Beat, Bye, Detach, End, Event, Exit, Job, Phase, Phases, Pulse, Signal, Step, StepKind,
};
use crate::id::{JobId, Rank};
use crate::time::Time;

/// How often a sidecar reads its rings.
const POLL: Duration = Duration::from_millis(100);
/// From a node to the journal.
const LATENCY: Duration = Duration::from_millis(1);
/// How often a sidecar beats and reads its GPUs.
pub(super) const BEAT: Duration = Duration::from_secs(1);
/// From the sidecar's start to its ranks' first words.
const ATTACH: Duration = Duration::from_millis(1200);

impl World {
    /// Everything until training begins, and what is known to come: the return of sidecars that will go.
    pub(super) fn open(&mut self) {
        let job = Job {
            job: JobId(Arc::clone(&self.spec.job)),
            paceline: version(),
        };
        self.link.own(Time::ZERO, Event::Job(job));
        for node in 0..self.spec.nodes {
            let up = self.beats[node as usize] - BEAT;
            self.arrive(up, node, up + ATTACH);
        }
        for (at, node) in self.link.returns() {
            self.link.restart(at, node);
            self.arrive(at, node, at + Duration::from_millis(10));
        }
        self.beat_until(TRAINING_AT);
    }

    /// A sidecar comes up and finds its ranks.
    fn arrive(&mut self, up: Time, node: u32, attach: Time) {
        let sources = if self.spec.readings {
            vec!["probe".into(), "sim-gpu".into()]
        } else {
            vec!["probe".into()]
        };
        self.link.seen(
            up,
            node,
            Event::Agent(Agent {
                paceline: version(),
                sources,
                rack: Arc::from(""),
                versions: Default::default(),
                unix_ms: 0,
            }),
        );
        for rank in self.ranks_of(node) {
            let event = Attach {
                rank: Rank(rank),
                local_rank: rank % self.spec.gpus_per_node,
                world_size: self.spec.ranks(),
                restart: 0,
                pid: 1000 + rank,
                gpu: Some(self.gpus().gpu(rank)),
                role: Arc::clone(&self.spec.role),
                framework: Arc::from("simulated"),
            };
            let at = attach + self.ranks[rank as usize].lateness;
            self.link.seen(at, node, Event::Attach(event));
            let attached = &mut self.ranks[rank as usize].attached;
            *attached = at.min(*attached);
        }
    }

    /// The beats and readings of every node up to `until`, while the marks of the step stand.
    pub(super) fn beat_until(&mut self, until: Time) {
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
                if self.spec.readings {
                    for gpu in self.ranks_of(node) {
                        let reading = self.gpus().reading(gpu, at.as_secs_f64());
                        self.link.seen(at + LATENCY, node, Event::Gpu(reading));
                    }
                }
            }
        }
    }

    /// Where a rank is, if it has attached and not ended.
    fn pulse(&self, rank: u32, at: Time) -> Option<Pulse> {
        let state = &self.ranks[rank as usize];
        if self.stage != Stage::Training || at < state.attached {
            return None;
        }
        let in_step = self.step + 1;
        let (step, phase, since) = if at < TRAINING_AT {
            (1, Phase::Other, Time::ZERO)
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
            restart: 0,
            step,
            phase,
            idle_ns,
            alive: true,
        })
    }

    /// When the node's sidecar next reads its rings after `at`.
    fn polled(&self, at: Time, node: u32) -> Time {
        let (phase, period) = (self.beats[node as usize].0, POLL.as_nanos() as u64);
        let missing = (phase % period + period - at.0 % period) % period;
        Time(at.0 + missing) + LATENCY
    }

    /// Every rank leaves the collective, does its optimizer and reports its step.
    pub(super) fn finish(&mut self, step: u64, at_s: f64, meet: Time, kind: StepKind) {
        for rank in 0..self.spec.ranks() {
            let own = self.ranks[rank as usize].base_s * self.drag.factor(rank, step, at_s, None);
            let state = &mut self.ranks[rank as usize];
            let end = meet + seconds(own * OPTIMIZER_SHARE);
            let phases = Phases {
                checkpoint_ns: state.data_at.0 - state.start.0,
                data_ns: state.compute_at.0 - state.data_at.0,
                compute_ns: state.arrival.0.saturating_sub(state.compute_at.0),
                wait_ns: meet.0.saturating_sub(state.arrival.0),
                optimizer_ns: end.0 - meet.0,
                gc_ns: 0,
            };
            let event = Step {
                rank: Rank(rank),
                restart: 0,
                step,
                kind,
                dur_ns: end.0 - state.start.0,
                phases: Some(phases),
                micro_batches: 1,
                tokens: 0,
                signal: Signal::S2,
                sum_sq: 0,
                expert_tokens: 0,
            };
            state.start = end;
            let node = self.node_of(rank);
            let read = self.polled(end, node) + self.ranks[rank as usize].lateness;
            self.link.seen(read, node, Event::Step(event));
        }
    }

    /// The job ends with `code` at `at`: in order if that is zero.
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
                        restart: 0,
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

/// How late everything comes that a rank says.
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
