//! The sidecar's side of the ring: one reader, which checks everything that it reads.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::encoding::{KIND_ATTACH, KIND_ROLE, kind_of};
use crate::layout::*;
use crate::map::Map;
use crate::protocol;
use crate::record::{PhaseWord, Record};

/// How long to wait for a reserved slot before it is skipped.
const PENDING_NS: u64 = 100_000_000;

/// Why a file is not a ring that can be read.
#[derive(Debug)]
pub enum OpenError {
    /// The file cannot be opened or mapped.
    Io(io::Error),
    /// The file does not begin with the magic bytes.
    NotARing,
    /// The file was written by another version of the layout.
    Version(u32),
    /// The sizes in the header contradict each other or the file's length.
    Sizes,
}

impl std::fmt::Display for OpenError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            OpenError::Io(error) => error.fmt(f),
            OpenError::NotARing => f.write_str("not a ring"),
            OpenError::Version(found) => write!(f, "ring version {found}, this version reads {VERSION}"),
            OpenError::Sizes => f.write_str("the header's sizes do not fit the file"),
        }
    }
}

impl std::error::Error for OpenError {}

impl From<io::Error> for OpenError {
    fn from(error: io::Error) -> OpenError {
        OpenError::Io(error)
    }
}

/// The result of reading the next slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// A record.
    Record(Record),
    /// There is no new record.
    Empty,
    /// A slot is reserved but not published yet. Try again later.
    Pending,
    /// A slot was skipped and counted, because its writer died in it or its content is damaged.
    Torn,
    /// The header contradicts itself, so nothing more can be read.
    Broken,
}

/// How often the NCCL plugin takes GPU times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Duty {
    /// The plugin has not reported it yet.
    Unknown,
    /// It takes times in one of this many windows of steps.
    OneOf(u32),
    /// It never takes times. Collectives are still reported.
    Never,
    /// The plugin switched itself off because it exceeded its budget.
    TookItselfOut,
    /// A reader stopped the plugin.
    Stopped,
}

impl Duty {
    /// Decodes the word in the header.
    pub const fn of(word: u32) -> Duty {
        match word {
            0 => Duty::Unknown,
            u32::MAX => Duty::Never,
            TOOK_ITSELF_OUT => Duty::TookItselfOut,
            windows => Duty::OneOf(windows),
        }
    }
}

/// The trainer's current position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The current step.
    pub step: u64,
    /// The current phase.
    pub phase: PhaseWord,
    /// Time since when the position holds, CLOCK_MONOTONIC ns; zero if it was never reported.
    pub since_ns: u64,
}

/// The reading end of a ring.
#[derive(Debug)]
pub struct Reader {
    map: Map,
    capacity: u64,
    pid: u32,
    /// Next slot to read. The tail in the header follows once the data is safe.
    cursor: u64,
    pending_since_ns: Option<u64>,
    torn: u64,
    attach: Option<Slot>,
    role: Option<Slot>,
}

impl Reader {
    /// Maps a ring and starts at its tail.
    ///
    /// # Errors
    /// [`OpenError`]
    pub fn open(path: &Path) -> Result<Reader, OpenError> {
        Reader::from_file(&File::options().read(true).write(true).open(path)?)
    }

    /// Like [`Reader::open`], for a file whose owner and mode the caller has checked.
    ///
    /// # Errors
    /// [`OpenError`]
    pub fn from_file(file: &File) -> Result<Reader, OpenError> {
        let len = file.metadata()?.len();
        if len < (HEADER_BYTES + SLOT_BYTES) as u64 {
            return Err(OpenError::NotARing);
        }
        let max = (HEADER_BYTES + MAX_CAPACITY as usize * SLOT_BYTES) as u64;
        if len > max {
            return Err(OpenError::Sizes);
        }
        let map = Map::shared(file, len as usize)?;
        let word = |at| u32::from_le(map.u32(at).load(Acquire));
        if map.u64(AT_MAGIC).load(Acquire).to_le_bytes() != MAGIC {
            return Err(OpenError::NotARing);
        }
        if word(AT_VERSION) != VERSION {
            return Err(OpenError::Version(word(AT_VERSION)));
        }
        let capacity = word(AT_CAPACITY);
        let fits = word(AT_HEADER_BYTES) as usize == HEADER_BYTES
            && word(AT_SLOT_BYTES) as usize == SLOT_BYTES
            && capacity.is_power_of_two()
            && u64::from(capacity) * SLOT_BYTES as u64 + HEADER_BYTES as u64 == len;
        if !fits {
            return Err(OpenError::Sizes);
        }
        let (pid, cursor) = (word(AT_PID), map.u64(AT_TAIL).load(Acquire));
        let mut reader = Reader {
            map,
            capacity: u64::from(capacity),
            pid,
            cursor,
            pending_since_ns: None,
            torn: 0,
            attach: None,
            role: None,
        };
        reader.attach = reader.remembered(AT_ATTACH_COPY, KIND_ATTACH);
        reader.role = reader.remembered(AT_ROLE_COPY, KIND_ROLE);
        Ok(reader)
    }

    /// Returns the next record. `now_ns` is CLOCK_MONOTONIC; `writer_alive` is true if the ring's process still exists.
    pub fn next(&mut self, now_ns: u64, writer_alive: bool) -> Next {
        let head = self.map.u64(AT_HEAD).load(Acquire);
        let waiting = head.wrapping_sub(self.cursor);
        if waiting == 0 {
            return Next::Empty;
        }
        if waiting > self.capacity {
            return Next::Broken;
        }
        let at = HEADER_BYTES + (self.cursor & (self.capacity - 1)) as usize * SLOT_BYTES;
        if let Some(slot) = self.slot(at, self.cursor + 1) {
            self.step_over();
            self.remember(slot);
            return Next::Record(Record::decode(&slot));
        }
        let since = *self.pending_since_ns.get_or_insert(now_ns);
        if writer_alive && now_ns.saturating_sub(since) < PENDING_NS {
            return Next::Pending;
        }
        self.step_over();
        self.torn += 1;
        Next::Torn
    }

    fn step_over(&mut self) {
        self.cursor += 1;
        self.pending_since_ns = None;
    }

    /// Returns the slot at a byte offset if it is published with this sequence and complete.
    fn slot(&self, at: usize, sequence: u64) -> Option<Slot> {
        protocol::read(|i| self.map.u64(at + i * 8), sequence)
    }

    /// Returns the number of slots read since the ring began. Pass it to [`Reader::release`] once their data is safe.
    pub fn position(&self) -> u64 {
        self.cursor
    }

    /// Returns the slots before `position` to the writers.
    pub fn release(&mut self, position: u64) {
        let tail = self.map.u64(AT_TAIL);
        if position > self.cursor || position <= tail.load(Relaxed) {
            return;
        }
        self.keep(AT_ATTACH_COPY, self.attach);
        self.keep(AT_ROLE_COPY, self.role);
        tail.store(position, Release);
    }

    /// Returns the rank's identity from its last attach record, even if an earlier reader released that record.
    pub fn attach(&self) -> Option<Record> {
        self.attach.as_ref().map(Record::decode)
    }

    /// Returns the rank's role from its last role record, in the same way as [`Reader::attach`].
    pub fn role(&self) -> Option<Record> {
        self.role.as_ref().map(Record::decode)
    }

    fn remember(&mut self, slot: Slot) {
        match kind_of(&slot) {
            KIND_ATTACH => self.attach = Some(slot),
            KIND_ROLE => self.role = Some(slot),
            _ => {}
        }
    }

    fn remembered(&self, at: usize, kind: u16) -> Option<Slot> {
        let sequence = u64::from_le(self.map.u64(at).load(Acquire));
        self.slot(at, sequence)
            .filter(|slot| sequence > 0 && kind_of(slot) == kind)
    }

    fn keep(&self, at: usize, slot: Option<Slot>) {
        let Some(slot) = slot else { return };
        for (i, word) in slot.iter().enumerate().rev() {
            self.map.u64(at + i * 8).store(word.to_le(), Release);
        }
    }

    /// Returns the trainer's current position, as the trainer reports it.
    pub fn progress(&self) -> Progress {
        let word = self.map.u64(AT_PROGRESS).load(Acquire);
        let since_ns = self.map.u64(AT_PROGRESS_SINCE).load(Relaxed);
        Progress {
            step: word >> 8,
            phase: PhaseWord::from_byte(word as u8),
            since_ns,
        }
    }

    /// Stores the time, which shows the writer that there is a reader.
    pub fn heartbeat(&self, now_ns: u64) {
        self.map.u64(AT_HEARTBEAT).store(now_ns, Relaxed);
    }

    /// Sets the kill switch, which stops every writer.
    pub fn stop_writing(&self) {
        self.map.u32(AT_CONTROL).fetch_or(CONTROL_STOP.to_le(), Relaxed);
    }

    /// Requests GPU times from the NCCL plugin in one of this many windows of steps. 0 leaves the rate to the plugin,
    /// and `u32::MAX` means never. The request takes effect with the next collective.
    pub fn sample(&self, one_of: u32) {
        self.map.u32(AT_SAMPLE).store(one_of.to_le(), Relaxed);
    }

    /// Gives the NCCL plugin a communicator and the number of its collectives in a step. In jobs without a hook, the
    /// plugin cuts its windows by them.
    pub fn led(&self, comm: u64, collectives: u32) {
        self.map.u64(AT_LEADER).store(comm.to_le(), Relaxed);
        self.map.u32(AT_LED).store(collectives.to_le(), Relaxed);
    }

    /// Returns the rate requested by [`Reader::sample`] and the plugin's current rate.
    pub fn duty(&self) -> (u32, Duty) {
        let word = |at| u32::from_le(self.map.u32(at).load(Relaxed));
        let is_stopped = word(AT_CONTROL) & CONTROL_STOP != 0;
        let duty = if is_stopped {
            Duty::Stopped
        } else {
            Duty::of(word(AT_DUTY))
        };
        (word(AT_SAMPLE), duty)
    }

    /// Stores six words for a later reader. The last word must not be 0.
    pub fn keep_cadence(&self, words: [u64; CADENCE_WORDS]) {
        // Clears the last word first, so that a reader that opens the ring meanwhile finds nothing instead of
        // incomplete data.
        self.map.u64(AT_CADENCE_LAST).store(0, Release);
        for (i, word) in words.iter().enumerate() {
            self.map.u64(AT_CADENCE + i * 8).store(word.to_le(), Release);
        }
    }

    /// Returns the words stored by an earlier reader, if there are any.
    pub fn cadence(&self) -> Option<[u64; CADENCE_WORDS]> {
        let word = |i: usize| u64::from_le(self.map.u64(AT_CADENCE + i * 8).load(Acquire));
        let words = std::array::from_fn(word);
        (words[CADENCE_WORDS - 1] != 0).then_some(words)
    }

    /// Returns the cost of the NCCL plugin in its process: the number of calls, and the nanoseconds in them. Both are
    /// scaled up from one collective in sixteen.
    pub fn spent(&self) -> (u64, u64) {
        let word = |at| u64::from_le(self.map.u64(at).load(Relaxed));
        (word(AT_CALLS), word(AT_CALLS_NS))
    }

    /// Returns the number of collectives for which the NCCL plugin has incomplete data.
    pub fn given_up(&self) -> u64 {
        u64::from_le(self.map.u64(AT_GIVEN_UP).load(Relaxed))
    }

    /// Returns the process ID of the writer.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns the number of records that the writers dropped because the ring was full.
    pub fn dropped(&self) -> u64 {
        self.map.u64(AT_DROPPED).load(Relaxed)
    }

    /// Returns the number of slots that were skipped.
    pub fn torn(&self) -> u64 {
        self.torn
    }
}
