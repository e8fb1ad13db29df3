//! How soon a hang of 16,384 ranks is explained once they have answered, and what that costs. `cargo bench --workspace
//! --bench hang` prints the table: 2,048 nodes of eight ranks, each in three communicators.

#![allow(
    clippy::print_stdout,
    clippy::disallowed_types,
    clippy::disallowed_methods,
    missing_docs
)]

use std::time::{Duration, Instant};

use paceline_health::event::{
    Activity, Agent, Attach, Beat, CommEntered, Entered, Event, Group, LastCollective, Phase, Pulse,
    StackFrame, Stacks, ThreadState, WaitFor,
};
use paceline_health::frame::Frame;
use paceline_health::id::Rank;
use paceline_health::verdict::{Cause, Finding, Verdict};
use paceline_health::{Detector, Policy, Provenance, Time};

const NODES: u32 = 2048;
const OF_NODE: u32 = 8;
const RANKS: u32 = NODES * OF_NODE;
/// So long nothing has moved: a hang is suspected after three times the longest of a step that is not known.
const STILL_S: u64 = 185;
/// Who is missing, or differs.
const SUSPECT: u32 = 9_001;

/// What goes wrong.
#[derive(Clone, Copy)]
enum Hang {
    Missing,
    Size,
    AllEntered,
}

struct Job {
    detector: Detector,
    at: Time,
    seq: Vec<u64>,
    verdicts: Vec<Verdict>,
    bytes: u64,
}

impl Job {
    fn send(&mut self, node: u32, event: Event) {
        let seq = &mut self.seq[node as usize];
        *seq += 1;
        let frame = Frame {
            v: 1,
            node: format!("n{node}").as_str().into(),
            agent: 7,
            seq: *seq,
            provenance: Provenance::Live,
            event,
        };
        self.bytes += rmp_serde::to_vec(&frame).expect("a frame").len() as u64;
        self.detector.observe(self.at, &frame);
        self.verdicts.extend(std::iter::from_fn(|| self.detector.poll()));
    }

    fn beats(&mut self, hang: Hang, idle_s: u64) {
        for node in 0..NODES {
            let pulse = |local| {
                let rank = node * OF_NODE + local;
                let is_out = matches!(hang, Hang::Missing) && rank == SUSPECT;
                Pulse {
                    rank: Rank(rank),
                    restart: 0,
                    step: 31,
                    phase: if is_out { Phase::Compute } else { Phase::Wait },
                    idle_ns: idle_s * 1_000_000_000,
                    alive: true,
                }
            };
            let ranks = (0..OF_NODE).map(pulse).collect();
            self.send(
                node,
                Event::Beat(Beat {
                    ranks,
                    ..Beat::default()
                }),
            );
        }
    }

    /// All ranks say what they do: stacks of a node in one event where they are alike.
    fn answer(&mut self, hang: Hang) {
        for node in 0..NODES {
            let ranks: Vec<u32> = (node * OF_NODE..(node + 1) * OF_NODE).collect();
            let is_out = |rank: &u32| matches!(hang, Hang::Missing) && *rank == SUSPECT;
            let (out, waiting): (Vec<u32>, Vec<u32>) = ranks.iter().partition(|rank| is_out(rank));
            for (ranks, line) in [(waiting, 41), (out, 88)] {
                if !ranks.is_empty() {
                    self.send(node, Event::Stacks(stacks(&ranks, line)));
                }
            }
            for rank in ranks {
                let (mut sequence, mut bytes) = (8812, 64 << 20);
                match hang {
                    Hang::Missing if rank == SUSPECT => sequence -= 1,
                    Hang::Size if rank == SUSPECT => bytes = 4,
                    _ => {}
                }
                let answer = Entered {
                    rank: Rank(rank),
                    restart: 0,
                    comms: comms(rank)
                        .map(|(comm, ..)| CommEntered {
                            comm,
                            ago_ns: STILL_S * 1_000_000_000,
                            each: vec![
                                LastCollective {
                                    function: 1,
                                    sequence: if comm < 100 { sequence } else { 512 },
                                    bytes: if comm < 100 { bytes } else { 4096 },
                                },
                                LastCollective {
                                    function: 3,
                                    sequence: 51,
                                    bytes: 4096,
                                },
                            ],
                        })
                        .to_vec(),
                    whole: true,
                };
                self.send(node, Event::Entered(answer));
            }
        }
    }
}

/// Data-parallel, tensor-parallel and all: number, size and name.
fn comms(rank: u32) -> [(u64, u32, &'static str); 3] {
    let (node, local) = (u64::from(rank / OF_NODE), u64::from(rank % OF_NODE));
    [
        (local, NODES, "dp"),
        (100 + node, OF_NODE, "tp"),
        (99, RANKS, "world"),
    ]
}

fn stacks(ranks: &[u32], line: u32) -> Stacks {
    let frame = |function: &str, file: &str, line| StackFrame {
        function: function.into(),
        file: file.into(),
        line,
    };
    Stacks {
        ranks: ranks.iter().copied().map(Rank).collect(),
        restart: 0,
        main: Activity {
            state: ThreadState::Sleeping,
            frames: vec![
                frame("acquire", "/home/u/data.py", 7),
                frame("step", "/home/u/train.py", line),
            ],
            own: Some(1),
            waits_in: "lock (futex)".into(),
            waits_for: WaitFor::Lock,
            ..Activity::default()
        },
        workers: Vec::new(),
    }
}

fn job() -> Job {
    let mut job = Job {
        detector: Detector::new(Policy::default()),
        at: Time(1_000_000_000),
        seq: vec![0; NODES as usize],
        verdicts: Vec::new(),
        bytes: 0,
    };
    for node in 0..NODES {
        let agent = Agent {
            paceline: "0.1.0".into(),
            sources: vec!["probe".into()],
            unix_ms: 0,
            rack: "".into(),
            versions: Default::default(),
        };
        job.send(node, Event::Agent(agent));
        for local in 0..OF_NODE {
            let rank = node * OF_NODE + local;
            let attach = Attach {
                rank: Rank(rank),
                local_rank: local,
                world_size: RANKS,
                restart: 0,
                pid: 100 + local,
                gpu: None,
                role: "".into(),
                framework: "torch 2.15.0".into(),
            };
            job.send(node, Event::Attach(attach));
            for (comm, size, name) in comms(rank) {
                let group = Group {
                    rank: Rank(rank),
                    restart: 0,
                    comm,
                    size,
                    name: name.into(),
                };
                job.send(node, Event::Group(group));
            }
        }
    }
    job
}

fn main() {
    println!("| hang | finding | explained after the answers | received | what is said |");
    println!("|---|---|---|---|---|");
    for (name, hang, finding, cause) in [
        (
            "one rank is missing",
            Hang::Missing,
            Finding::RankSilent,
            Cause::LockWait,
        ),
        (
            "one rank has another size",
            Hang::Size,
            Finding::JobHang,
            Cause::CollectiveMismatch,
        ),
        (
            "all have entered, none leaves",
            Hang::AllEntered,
            Finding::JobHang,
            Cause::Unknown,
        ),
    ] {
        let mut job = job();
        for second in 1..=STILL_S {
            job.at = job.at + Duration::from_secs(1);
            job.beats(hang, second);
        }
        (job.bytes, job.at) = (0, job.at + Duration::from_millis(200));
        let begun = Instant::now();
        job.answer(hang);
        let bytes = job.bytes;
        job.at = job.at + Duration::from_millis(800);
        job.beats(hang, STILL_S + 1);
        let took_s = begun.elapsed().as_secs_f64();
        let found = job
            .verdicts
            .iter()
            .rev()
            .find(|verdict| verdict.finding == finding);
        let says = found.map_or("nothing", |verdict| verdict.says.as_deref().unwrap_or("no words"));
        let is_right = found.is_some_and(|verdict| verdict.cause == cause);
        println!(
            "| {name} | {finding}{} | {took_s:.2} s | {:.1} MB | {says} |",
            if is_right { "" } else { ", **another cause**" },
            bytes as f64 / 1e6,
        );
    }
}
