//! A node: the real [`Uplink`], a trainer whose ring survives its sidecar, and the shell around both.

use std::collections::VecDeque;
use std::sync::Arc;

use paceline_health::Provenance;
use paceline_health::event::{
    Agent, Attach, Beat, Bye, Collectives, Comm, Event, Exit, FaultSource, GpuFault, GpuFaultKind, Phases,
    Signal, Step, StepKind,
};
use paceline_health::frame::SCHEMA_VERSION;
use paceline_health::id::Rank;
use paceline_sidecar::agent::join::backoff;
use paceline_sidecar::uplink::wire::{Down, Hello, Later, decode_down, encode_event};
use paceline_sidecar::uplink::{Heard, Uplink};

use super::chance::Chance;
use super::wire::MS;

/// Ranks per node.
pub const RANKS: u32 = 2;

/// The history of one sidecar incarnation.
#[derive(Debug)]
pub struct Life {
    pub agent: u64,
    /// Events by sequence number, from 1, and whether they are not telemetry.
    pub pushed: Vec<(Vec<u8>, bool)>,
    /// The last frame acknowledged as safe.
    pub acked: u64,
    pub dropped: u64,
}

/// State of its network connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// Looks for the aggregator at this time.
    Away { until_ns: u64 },
    /// Has the connection with this number.
    On(usize),
}

pub struct Node {
    pub name: String,
    number: u32,
    nodes: u32,
    pub spool_bytes: usize,
    step_every_ns: u64,
    pub uplink: Uplink,
    pub link: Link,
    attempt: u32,
    pub lives: Vec<Life>,
    /// Killed; another sidecar starts at this time.
    pub dead_until_ns: Option<u64>,
    /// Stopped until this time.
    pub stopped_until_ns: u64,
    linked_before: bool,
    step: u64,
    step_at_ns: u64,
    beat_at_ns: u64,
    /// The trainer's records that are not reported as safe.
    ring: VecDeque<(u64, Step)>,
    pub steps_made: u64,
    pub faulted: bool,
    pub leaving: bool,
}

fn hello(name: &str, agent: u64) -> Hello {
    Hello {
        v: SCHEMA_VERSION,
        job: "j".into(),
        node: name.into(),
        agent,
    }
}

impl Node {
    pub fn new(number: u32, nodes: u32, agent: u64, spool_bytes: usize, step_every_ns: u64) -> Node {
        let name = format!("n{number}");
        Node {
            uplink: Uplink::new(hello(&name, agent), spool_bytes),
            name,
            number,
            nodes,
            spool_bytes,
            step_every_ns,
            link: Link::Away { until_ns: 0 },
            attempt: 0,
            lives: vec![Life {
                agent,
                pushed: Vec::new(),
                acked: 0,
                dropped: 0,
            }],
            dead_until_ns: None,
            stopped_until_ns: 0,
            linked_before: false,
            step: 0,
            step_at_ns: 0,
            beat_at_ns: 0,
            ring: VecDeque::new(),
            steps_made: 0,
            faulted: false,
            leaving: false,
        }
    }

    pub fn life(&self) -> &Life {
        self.lives.last().unwrap()
    }

    fn push(&mut self, event: &Event, now_ns: u64) -> u64 {
        let seq = self.uplink.push(Provenance::Live, event, now_ns);
        let is_telemetry = matches!(
            event,
            Event::Step(_) | Event::Beat(_) | Event::Comm(_) | Event::Collectives(_)
        );
        let dropped = self.uplink.dropped();
        let life = self.lives.last_mut().unwrap();
        life.pushed
            .push((encode_event(Provenance::Live, event), !is_telemetry));
        life.dropped = dropped;
        assert_eq!(seq, life.pushed.len() as u64, "numbered one by one");
        seq
    }

    fn introduce(&mut self, now_ns: u64) {
        self.push(
            &Event::Agent(Agent {
                paceline: Arc::from("0"),
                sources: vec![Arc::from("probe")],
                unix_ms: 0,
                rack: "".into(),
                versions: Default::default(),
            }),
            now_ns,
        );
        for local_rank in 0..RANKS {
            let attach = Attach {
                rank: self.rank(local_rank),
                local_rank,
                world_size: self.nodes * RANKS,
                restart: 0,
                pid: 100 + local_rank,
                gpu: Some(self.gpu().as_str().into()),
                role: "".into(),
                framework: "test".into(),
            };
            self.push(&Event::Attach(attach), now_ns);
        }
    }

    fn rank(&self, local: u32) -> Rank {
        Rank(self.number * RANKS + local)
    }

    pub fn gpu(&self) -> String {
        format!("GPU-{}", self.name)
    }

    /// Starts a sidecar in place of a killed one: the ring's records are sent again.
    pub fn start_again(&mut self, agent: u64, now_ns: u64) {
        self.uplink = Uplink::new(hello(&self.name, agent), self.spool_bytes);
        self.lives.push(Life {
            agent,
            pushed: Vec::new(),
            acked: 0,
            dropped: 0,
        });
        self.dead_until_ns = None;
        self.linked_before = false;
        self.attempt = 0;
        self.link = Link::Away { until_ns: now_ns };
        self.ring.iter_mut().for_each(|(seq, _)| *seq = u64::MAX);
    }

    /// The link is lost: it reconnects after a while.
    pub fn lose_link(&mut self, now_ns: u64) {
        self.uplink.broken();
        self.stay_away(now_ns);
    }

    pub fn stay_away(&mut self, now_ns: u64) {
        let wait = backoff(self.attempt, self.life().agent);
        self.attempt += 1;
        self.link = Link::Away {
            until_ns: now_ns + wait.as_nanos() as u64,
        };
    }

    /// A connection is established.
    pub fn connected(&mut self, wire: usize, now_ns: u64) {
        self.link = Link::On(wire);
        self.uplink.connected(now_ns);
    }

    /// Handles a message. Returns whether to keep the link.
    pub fn hear(&mut self, bytes: &[u8], now_ns: u64) -> bool {
        if let Ok(Down::Later(Later { .. })) = decode_down(bytes) {
            self.uplink.connected(now_ns);
            return true;
        }
        match self.uplink.received(bytes, now_ns) {
            Heard::Welcome { new_journal } => {
                self.attempt = 0;
                if !self.linked_before || new_journal {
                    self.linked_before = true;
                    self.introduce(now_ns);
                }
                self.note_acked(bytes);
            }
            Heard::Acked => self.note_acked(bytes),
            Heard::Refused(why) => panic!("refused: {why}"),
            Heard::Wanted(_) | Heard::Order(_) | Heard::Noise => {}
        }
        true
    }

    fn note_acked(&mut self, bytes: &[u8]) {
        let upto = match decode_down(bytes) {
            Ok(Down::Ack(ack)) => ack.upto,
            Ok(Down::Welcome(welcome)) => welcome.upto,
            _ => 0,
        };
        let life = self.lives.last_mut().unwrap();
        life.acked = life.acked.max(upto.min(life.pushed.len() as u64));
        let settled = self.uplink.settled();
        while self.ring.front().is_some_and(|(seq, _)| *seq <= settled) {
            self.ring.pop_front();
        }
    }

    /// The trainer continues in any case; the sidecar sends its observations.
    pub fn work(&mut self, now_ns: u64, chance: &mut Chance) {
        if now_ns >= self.step_at_ns && !self.leaving {
            self.step_at_ns = now_ns + self.step_every_ns;
            self.step += 1;
            for local in 0..RANKS {
                self.steps_made += 1;
                let step = self.step_of(local, chance);
                self.ring.push_back((u64::MAX, step));
            }
        }
        if self.leaving || !self.can_speak(now_ns) {
            return;
        }
        let mut ring = std::mem::take(&mut self.ring);
        for (seq, step) in ring.iter_mut().filter(|(seq, _)| *seq == u64::MAX) {
            let comm = comm(step);
            *seq = self.push(&Event::Step(*step), now_ns);
            self.push(&comm, now_ns);
        }
        self.ring = ring;
        if now_ns >= self.beat_at_ns {
            self.beat_at_ns = now_ns + 1_000 * MS;
            self.beat(now_ns);
        }
    }

    fn beat(&mut self, now_ns: u64) {
        let beat = Beat {
            spool_dropped: self.uplink.dropped(),
            ..Beat::default()
        };
        self.push(&Event::Beat(beat), now_ns);
    }

    fn step_of(&self, local: u32, chance: &mut Chance) -> Step {
        let compute_ns = 40 * MS + chance.between(0, MS);
        Step {
            rank: self.rank(local),
            restart: 0,
            step: self.step,
            kind: StepKind::Train,
            dur_ns: 45 * MS,
            phases: Some(Phases {
                compute_ns,
                wait_ns: 45 * MS - compute_ns,
                ..Phases::default()
            }),
            micro_batches: 1,
            tokens: 0,
            signal: Signal::S2,
            sum_sq: 0,
            expert_tokens: 0,
        }
    }

    /// An event that must not be missed.
    pub fn fault(&mut self, now_ns: u64) {
        self.faulted = true;
        let fault = GpuFault {
            gpu: Some(self.gpu().as_str().into()),
            pci: Arc::from("0000:b3:00.0"),
            kind: GpuFaultKind::Xid,
            xid: 79,
            count: 1,
            seen_by: FaultSource::Kernel,
            text: Arc::from("GPU has fallen off the bus."),
        };
        self.push(&Event::GpuFault(fault), now_ns);
    }

    /// Many events at once.
    pub fn burst(&mut self, count: u64, now_ns: u64) {
        for n in 0..count {
            let each = Collectives {
                rank: self.rank(0),
                restart: 0,
                step: self.step,
                comm: n,
                each: Vec::new(),
                left_out: 7,
            };
            self.push(&Event::Collectives(each), now_ns);
        }
    }

    pub fn can_speak(&self, now_ns: u64) -> bool {
        self.dead_until_ns.is_none() && now_ns >= self.stopped_until_ns && self.linked_before
    }

    /// The command has ended.
    pub fn leave(&mut self, now_ns: u64) {
        self.leaving = true;
        self.push(&Event::Exit(Exit { code: 0 }), now_ns);
        self.beat(now_ns);
        let reason = Arc::from("exit");
        self.push(&Event::Bye(Bye { reason }), now_ns);
    }

    pub fn has_settled(&self, goal: u64) -> bool {
        let all_told = self.leaving || self.ring.iter().all(|(seq, _)| *seq != u64::MAX);
        self.uplink.is_up() && all_told && self.uplink.settled() >= goal
    }
}

fn comm(step: &Step) -> Event {
    Event::Comm(Comm {
        rank: step.rank,
        restart: 0,
        step: step.step,
        comm: 7,
        collectives: 1,
        bytes: 1 << 20,
        dur_ns: 3 * MS,
        exposed_ns: None,
        unfit: 0,
        gpu: false,
        functions: Vec::new(),
    })
}
