//! One trainer process: its records become events, its progress words a pulse.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use paceline_health::Provenance;
use paceline_health::event::{self, Event, Phase, Phases, Pulse, Signal, StepKind};
use paceline_health::id::{GpuId, Rank};
use paceline_ring::{Framework, Next, PhaseWord, Reader, Record, StepWord};

use super::super::{Losses, Send};
use crate::host::Process;
use crate::warn;

/// One ring of this node.
#[derive(Debug)]
pub(super) struct Ring {
    reader: Reader,
    path: PathBuf,
    process: Process,
    alive: bool,
    /// Nothing more can be read from it.
    broken: bool,
    attach: Option<event::Attach>,
    role: Arc<str>,
    detached: bool,
    /// Frames on their way: their number, and the ring's position behind the record that they were made from.
    on_the_way: VecDeque<(u64, u64)>,
    /// Records of a rank that never declared itself.
    nameless: u64,
    /// What the writers had dropped before this sidecar came: an earlier one told of it.
    dropped_before: u64,
    /// This incarnation has said whose ring it is, should an earlier one have read that already.
    introduced: bool,
}

impl Ring {
    pub(super) fn new(reader: Reader, path: PathBuf) -> Ring {
        let process = Process::of(reader.pid());
        let mut ring = Ring {
            process,
            alive: process.is_alive(),
            broken: false,
            attach: None,
            role: Arc::from(""),
            detached: false,
            on_the_way: VecDeque::new(),
            nameless: 0,
            dropped_before: if reader.position() > 0 {
                reader.dropped()
            } else {
                0
            },
            introduced: false,
            path,
            reader,
        };
        // What a sidecar before this one read and let go: who writes here.
        if let Some(Record::Role(role)) = ring.reader.role() {
            ring.role = Arc::from(role.text.as_str());
        }
        if let Some(Record::Attach(attach)) = ring.reader.attach() {
            ring.attach = Some(ring.attach_event(&attach));
        }
        ring
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn check_process(&mut self) {
        self.alive = self.alive && self.process.is_alive();
    }

    /// Sends every record that is there.
    pub(super) fn read(&mut self, now_ns: u64, send: &mut Send<'_>) {
        if !self.introduced {
            self.introduced = true;
            self.introduce(send);
        }
        self.reader.heartbeat(now_ns);
        while !self.broken {
            match self.reader.next(now_ns, self.alive) {
                Next::Record(record) => self.take(record, send),
                Next::Torn => {}
                Next::Broken => {
                    self.broken = true;
                    self.nameless += 1;
                    warn::once(
                        "ring broken",
                        format_args!("{}: header is damaged", self.path.display()),
                    );
                }
                Next::Empty | Next::Pending => break,
            }
        }
    }

    fn take(&mut self, record: Record, send: &mut Send<'_>) {
        let event = match record {
            Record::Attach(attach) => {
                let attach = self.attach_event(&attach);
                self.attach = Some(attach.clone());
                self.detached = false;
                Some(Event::Attach(attach))
            }
            Record::Role(role) => {
                self.role = Arc::from(role.text.as_str());
                self.attach.as_mut().map(|attach| {
                    attach.role = self.role.clone();
                    Event::Attach(attach.clone())
                })
            }
            Record::Unknown(_) => None,
            other => self.of_rank(other),
        };
        if let Some(event) = event {
            let seq = send(Provenance::Live, event);
            self.on_the_way.push_back((seq, self.reader.position()));
        } else if self.on_the_way.is_empty() {
            self.reader.release(self.reader.position());
        }
    }

    /// The event of a record that needs to know whose it is.
    fn of_rank(&mut self, record: Record) -> Option<Event> {
        let Some(attach) = &self.attach else {
            self.nameless += 1;
            return None;
        };
        let (rank, restart) = (attach.rank, attach.restart);
        match record {
            Record::Step(step) => Some(Event::Step(step_event(rank, restart, &step))),
            Record::Mark(mark) => {
                let kind = Arc::from(mark.kind.as_str());
                Some(Event::Mark(event::Mark {
                    rank,
                    step: mark.step,
                    kind,
                    value: mark.value,
                }))
            }
            Record::Detach(detach) => {
                self.detached = true;
                Some(Event::Detach(event::Detach {
                    rank,
                    restart,
                    step: detach.step,
                }))
            }
            Record::Note(note) => {
                warn::once("hook note", format_args!("rank {rank}: {}", note.text));
                let kind = Arc::from(format!("note: {}", note.text));
                Some(Event::Mark(event::Mark {
                    rank,
                    step: self.reader.progress().step,
                    kind,
                    value: 0,
                }))
            }
            Record::Attach(_) | Record::Role(_) | Record::Unknown(_) => None,
        }
    }

    fn attach_event(&self, attach: &paceline_ring::Attach) -> event::Attach {
        let [major, minor, patch] = attach.version;
        let framework = match attach.framework {
            Framework::Torch => format!("torch {major}.{minor}.{patch}"),
            Framework::Demo => "demo".to_owned(),
            Framework::Other => "other".to_owned(),
        };
        event::Attach {
            rank: Rank(attach.rank),
            local_rank: attach.local_rank,
            world_size: attach.world_size,
            restart: attach.restart,
            pid: self.reader.pid(),
            gpu: (attach.gpu_uuid != [0; 16]).then(|| GpuId::from_uuid_bytes(attach.gpu_uuid)),
            role: self.role.clone(),
            framework: Arc::from(framework),
        }
    }

    /// Lets go of the slots whose frames are safe.
    pub(super) fn settled(&mut self, seq: u64) {
        let mut position = None;
        while let Some(front) = self.on_the_way.front().copied().filter(|front| front.0 <= seq) {
            position = Some(front.1);
            self.on_the_way.pop_front();
        }
        if self.on_the_way.is_empty() {
            position = Some(self.reader.position());
        }
        if let Some(position) = position {
            self.reader.release(position);
        }
    }

    pub(super) fn introduce(&self, send: &mut Send<'_>) {
        if let Some(attach) = self.attach.as_ref().filter(|_| !self.detached) {
            send(Provenance::Live, Event::Attach(attach.clone()));
        }
    }

    /// Where the rank is; `None` when it never said who it is, or has ended in order.
    pub(super) fn pulse(&self, now_ns: u64) -> Option<Pulse> {
        let attach = self.attach.as_ref().filter(|_| !self.detached)?;
        let progress = self.reader.progress();
        let idle_ns = if progress.since_ns == 0 {
            0
        } else {
            now_ns.saturating_sub(progress.since_ns)
        };
        let phase = phase(progress.phase);
        let alive = self.alive;
        Some(Pulse {
            rank: attach.rank,
            restart: attach.restart,
            step: progress.step,
            phase,
            idle_ns,
            alive,
        })
    }

    /// The rank and epoch that ended in order here.
    pub(super) fn ended(&self) -> Option<(Rank, u32)> {
        self.attach
            .as_ref()
            .filter(|_| self.detached)
            .map(|attach| (attach.rank, attach.restart))
    }

    pub(super) fn losses(&self) -> Losses {
        Losses {
            dropped: self.reader.dropped().saturating_sub(self.dropped_before),
            torn: self.reader.torn() + self.nameless,
        }
    }

    /// Its process is gone and all that it wrote was read.
    pub(super) fn is_over(&self) -> bool {
        !self.alive
    }

    /// Over, and everything read is safe.
    pub(super) fn is_finished(&self) -> bool {
        self.is_over() && self.on_the_way.is_empty()
    }
}

fn step_event(rank: Rank, restart: u32, step: &paceline_ring::Step) -> event::Step {
    let ns = |us: u32| u64::from(us) * 1_000;
    let phases = step.phases_known.then(|| Phases {
        data_ns: ns(step.data_us),
        compute_ns: ns(step.compute_us),
        wait_ns: ns(step.wait_us),
        optimizer_ns: ns(step.optimizer_us),
        checkpoint_ns: ns(step.checkpoint_us),
        gc_ns: 0,
    });
    event::Step {
        rank,
        restart,
        step: step.step,
        kind: match step.kind {
            StepWord::Train => StepKind::Train,
            StepWord::Checkpoint => StepKind::Checkpoint,
            StepWord::Evaluation => StepKind::Evaluation,
            StepWord::WarmUp => StepKind::WarmUp,
        },
        dur_ns: step.duration_ns,
        phases,
        micro_batches: step.micro_batches,
        tokens: step.tokens,
        signal: if phases.is_some() { Signal::S2 } else { Signal::S0 },
        sum_sq: 0,
        expert_tokens: 0,
    }
}

fn phase(word: PhaseWord) -> Phase {
    match word {
        PhaseWord::Other => Phase::Other,
        PhaseWord::Data => Phase::Data,
        PhaseWord::Compute => Phase::Compute,
        PhaseWord::Wait => Phase::Wait,
        PhaseWord::Optimizer => Phase::Optimizer,
        PhaseWord::Checkpoint => Phase::Checkpoint,
        PhaseWord::Evaluation => Phase::Evaluation,
    }
}
