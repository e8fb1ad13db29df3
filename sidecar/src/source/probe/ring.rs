//! One trainer process. Its records become events, and its progress words become a pulse.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use paceline_health::Provenance;
use paceline_health::event::{self, Event, Pulse, Want};
use paceline_health::id::Rank;
use paceline_ring::{Collective, Next, Reader, Record, Work};

use super::super::{Cost, Losses, Send};
use super::collectives::Collectives;
use super::events;
use super::exact::Budget;
use super::life::Life;
use super::steps::Steps;
use crate::warn;

/// Maximum number of communicators stored for one rank. Any later ones are ignored.
const MOST_GROUPS: usize = 256;

/// File name suffix of the NCCL plugin's ring.
const PLUGIN: &str = "-nccl.ring";

/// One ring of this node, written by one process.
#[derive(Debug)]
pub(super) struct Ring {
    pub(super) reader: Reader,
    path: PathBuf,
    life: Life,
    pub(super) alive: bool,
    /// Set if the process has exited since the last call of `has_died`.
    died: bool,
    /// Set if nothing more can be read from the ring.
    broken: bool,
    pub(super) attach: Option<event::Attach>,
    role: Arc<str>,
    layout: Option<event::Layout>,
    /// Groups by communicator.
    groups: BTreeMap<u64, event::Group>,
    /// The work record whose step record has not arrived yet, and the ring's position before the work record.
    work: Option<(Work, u64)>,
    detached: bool,
    /// Set for a ring of the NCCL plugin, which records neither steps nor its end.
    is_plugin: bool,
    /// Set if the same process also has a hook's ring, which has more data on the rank.
    pub(super) has_hook: bool,
    pub(super) collectives: Collectives,
    budget: Budget,
    /// Steps found from a plugin's collectives if there is no hook.
    steps: Steps,
    /// Frames that are not acknowledged yet: their number, and the ring's position after their record.
    on_the_way: VecDeque<(u64, u64)>,
    /// Number of records that had no declared rank.
    nameless: u64,
    /// Set if no earlier sidecar has read from the ring.
    pub(super) is_from_begin: bool,
    /// Number of records dropped before this sidecar started, which an earlier sidecar reported.
    dropped_before: u64,
    /// Set once this sidecar has sent the ring's introduction. An earlier sidecar may have read its records already.
    introduced: bool,
}

impl Ring {
    pub(super) fn new(reader: Reader, path: PathBuf, life: Life) -> Ring {
        let mut ring = Ring {
            alive: life.is_alive(),
            life,
            died: false,
            broken: false,
            attach: None,
            role: Arc::from(""),
            layout: None,
            groups: BTreeMap::new(),
            work: None,
            detached: false,
            is_plugin: path.to_string_lossy().ends_with(PLUGIN),
            has_hook: false,
            collectives: Collectives::default(),
            budget: Budget::new(),
            steps: Steps::of(&reader),
            on_the_way: VecDeque::new(),
            nameless: 0,
            is_from_begin: reader.position() == 0,
            dropped_before: match reader.position() {
                0 => 0,
                _ => reader.dropped(),
            },
            introduced: false,
            path,
            reader,
        };
        // Restore the writer's identity, because an earlier sidecar may have read and released those records.
        if let Some(Record::Role(role)) = ring.reader.role() {
            ring.role = Arc::from(role.text.as_str());
        }
        if let Some(Record::Attach(attach)) = ring.reader.attach() {
            ring.attach = Some(events::attach(&attach, ring.reader.pid(), ring.role.clone()));
        }
        ring
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn check_process(&mut self) {
        let lived = self.alive;
        self.alive = lived && self.life.is_alive();
        self.died |= lived && !self.alive;
    }

    /// Returns true if the process has died without a goodbye since the last call. The ring was read to its end before.
    pub(super) fn has_died(&mut self) -> bool {
        std::mem::take(&mut self.died) && self.attach.is_some() && !self.detached && !self.is_plugin
    }

    /// Sets the requests for single collectives of communicators.
    pub(super) fn want(&mut self, wants: &[Want]) {
        let restart = self.attach.as_ref().map_or(0, |attach| attach.restart);
        self.collectives.want(wants, restart);
    }

    /// Sends all available records.
    pub(super) fn read(&mut self, now_ns: u64, send: &mut Send<'_>) {
        if !self.introduced {
            self.introduced = true;
            self.introduce(send);
        }
        self.budget.refill(now_ns);
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
        match record {
            Record::Collective(did) => return self.collective(&did, send),
            Record::Timed(timed) => {
                self.collectives.timed(&timed);
                return self.tell_collectives(send);
            }
            _ => {}
        }
        let event = match record {
            Record::Attach(attach) => {
                let attach = events::attach(&attach, self.reader.pid(), self.role.clone());
                self.attach = Some(attach.clone());
                self.detached = false;
                (!self.is_plugin || !self.has_hook).then_some(Event::Attach(attach))
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
            self.release(self.reader.position());
        }
    }

    fn collective(&mut self, did: &Collective, send: &mut Send<'_>) {
        let step = match did.step {
            0 if !self.has_hook && did.function.is_message() => self.steps.of_message(did),
            0 if !self.has_hook => {
                let ranks = self.groups.get(&did.comm).map_or(0, |group| group.size);
                self.steps.of_collective(did, ranks, &self.reader)
            }
            step => u64::from(step),
        };
        self.collectives.enqueued(did, step);
        self.tell_collectives(send);
    }

    /// Sends the sums of completed steps. The sums of an open step are lost if the sidecar dies.
    fn tell_collectives(&mut self, send: &mut Send<'_>) {
        let Some(attach) = &self.attach else { return };
        let (rank, restart) = (attach.rank, attach.restart);
        while let Some(done) = self.collectives.next(rank, restart) {
            let step = self.steps.told(rank, restart, &done).filter(|_| !self.has_hook);
            let sums = done.sums.into_iter().map(Event::Comm);
            // Send single collectives first, because the sums close a communicator's step.
            let exact: Vec<Event> = done
                .exact
                .into_iter()
                .map(|did| Event::Collectives(self.budget.take(did)))
                .collect();
            for event in exact.into_iter().chain(sums).chain(step.map(Event::Step)) {
                let seq = send(Provenance::Live, event);
                self.on_the_way.push_back((seq, self.reader.position()));
            }
        }
        if self.on_the_way.is_empty() {
            self.release(self.reader.position());
        }
    }

    /// Releases records up to `position`, but keeps a work record that the following step record still needs.
    fn release(&mut self, position: u64) {
        let kept = self.work.map_or(position, |(_, before)| before);
        self.reader.release(position.min(kept));
    }

    /// Returns the event of a record that needs a declared rank.
    fn of_rank(&mut self, record: Record) -> Option<Event> {
        let Some(attach) = &self.attach else {
            self.nameless += 1;
            return None;
        };
        let (rank, restart) = (attach.rank, attach.restart);
        match record {
            Record::Work(work) => {
                self.work = Some((work, self.reader.position() - 1));
                None
            }
            Record::Step(step) => {
                let work = self.work.take().map(|(work, _)| work);
                let work = work.filter(|work| work.step == step.step);
                Some(Event::Step(events::step(rank, restart, &step, work.as_ref())))
            }
            Record::Comm(comm) => Some(Event::Comm(events::comm(rank, restart, &comm))),
            Record::Group(group) => self.group(events::group(rank, restart, &group)),
            Record::Layout(layout) => self.layout(events::layout(rank, restart, &layout)?),
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
            Record::Attach(_)
            | Record::Role(_)
            | Record::Collective(_)
            | Record::Timed(_)
            | Record::Unknown(_) => None,
        }
    }

    /// Returns a changed layout as an event. A writer repeats it for sidecars that start later.
    fn layout(&mut self, layout: event::Layout) -> Option<Event> {
        let new = self.layout.replace(layout) != Some(layout);
        new.then_some(Event::Layout(layout))
    }

    fn group(&mut self, group: event::Group) -> Option<Event> {
        let known = self.groups.get(&group.comm) == Some(&group);
        let full = self.groups.len() >= MOST_GROUPS && !self.groups.contains_key(&group.comm);
        if known || full {
            return None;
        }
        self.groups.insert(group.comm, group.clone());
        Some(Event::Group(group))
    }

    /// Releases the slots whose frames are acknowledged or dropped.
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
            self.release(position);
        }
    }

    pub(super) fn introduce(&self, send: &mut Send<'_>) {
        if let Some(attach) = self.attach.as_ref().filter(|_| !self.detached) {
            if !self.is_plugin || !self.has_hook {
                send(Provenance::Live, Event::Attach(attach.clone()));
            }
            if let Some(layout) = self.layout {
                send(Provenance::Live, Event::Layout(layout));
            }
            for group in self.groups.values() {
                send(Provenance::Live, Event::Group(group.clone()));
            }
        }
    }

    /// Returns the rank's progress; `None` if it never declared itself or has ended cleanly.
    pub(super) fn pulse(&self, now_ns: u64) -> Option<Pulse> {
        let attach = self.attach.as_ref().filter(|_| !self.detached)?;
        // A process with only the plugin usually ends without a goodbye, so its end does not count as a death.
        if self.is_plugin && (!self.alive || self.has_hook) {
            return None;
        }
        let progress = self.reader.progress();
        let idle_ns = if progress.since_ns == 0 {
            0
        } else {
            now_ns.saturating_sub(progress.since_ns)
        };
        let phase = events::phase(progress.phase);
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

    /// Returns the rank that trains here and its process ID, if the process is visible from here.
    pub(super) fn trainer(&self) -> Option<(Rank, u32)> {
        let attach = self.attach.as_ref().filter(|_| self.alive && !self.detached)?;
        Some((attach.rank, self.life.number(attach.pid)?))
    }

    /// Returns the rank and restart number of a process that ended cleanly.
    pub(super) fn ended(&self) -> Option<(Rank, u32)> {
        self.attach
            .as_ref()
            .filter(|_| self.detached)
            .map(|attach| (attach.rank, attach.restart))
    }

    /// Returns the process ID of a hook that has declared its rank.
    pub(super) fn hooked(&self) -> Option<u32> {
        (!self.is_plugin && self.attach.is_some()).then(|| self.reader.pid())
    }

    /// Returns the process ID of the writer.
    pub(super) fn pid(&self) -> u32 {
        self.reader.pid()
    }

    /// Returns what the plugin cost in this process.
    pub(super) fn cost(&self) -> Cost {
        let (plugin_calls, plugin_ns) = self.reader.spent();
        Cost {
            plugin_ns,
            plugin_calls,
        }
    }

    pub(super) fn losses(&self) -> Losses {
        Losses {
            dropped: self.reader.dropped().saturating_sub(self.dropped_before),
            torn: self.reader.torn() + self.nameless + self.collectives.in_part,
        }
    }

    /// Returns true if the process has exited and everything it wrote was read.
    pub(super) fn is_over(&self) -> bool {
        !self.alive
    }

    /// Returns true if the ring is over and all frames of its records are acknowledged.
    pub(super) fn is_finished(&self) -> bool {
        self.is_over() && self.on_the_way.is_empty()
    }
}
