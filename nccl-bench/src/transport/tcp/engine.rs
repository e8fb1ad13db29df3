//! Runs a schedule over sockets. A single thread sends and receives whatever is possible, and waits when nothing is.

use std::io::{self, ErrorKind, Read, Write};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};

use super::schedule::{Receive, Schedule, Space};
use super::sum::sum;
use crate::dtype::Dtype;
use crate::net::{Wire, is_pause, ready};
use crate::transport::{Deadline, TransportError};

/// Bytes per socket call. The number is small enough that the data stays in a core's cache between the two copies.
const CHUNK: usize = 256 << 10;
/// Number of bytes for which a sleeping rank wakes up. It also wakes up for the last bytes.
const WORTH_WAKING: usize = 128 << 10;
/// Number of rounds between checks of the clock while data flows.
const ROUNDS: u32 = 64;

/// How a rank waits for data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    /// Time to poll before sleeping. Polling comes first because waking up is expensive.
    pub awake: Duration,
}

/// The buffers of one rank.
#[derive(Debug, Default)]
pub struct Buffers {
    /// The element type, if received data is added.
    pub dtype: Option<Dtype>,
    /// The input, or `None` if the operation is in place.
    pub input: Option<Vec<u8>>,
    /// Offset of the input in the whole operation, in bytes.
    pub input_at: usize,
    /// Buffer of the whole operation.
    pub output: Vec<u8>,
}

/// A schedule in progress.
pub struct Engine<'a> {
    schedule: &'a Schedule,
    buffers: &'a mut Buffers,
    lanes: Vec<Lane<'a>>,
    /// Number of bytes sent so far, for each send.
    sent: Vec<usize>,
    /// Number of bytes received so far, for each receive.
    got: Vec<usize>,
}

/// Sends and receives with one peer, in order.
struct Lane<'a> {
    wire: &'a Wire,
    sends: Vec<usize>,
    receives: Vec<usize>,
    /// Indexes of the first unfinished send and of the first unfinished receive.
    sending: usize,
    receiving: usize,
    /// Received bytes that are not added yet. The first `held` bytes are part of an element.
    came: Vec<u8>,
    held: usize,
}

impl Buffers {
    /// Returns a part of a buffer, at an offset in the whole operation.
    fn part(&self, space: Space, at: usize, len: usize) -> &[u8] {
        match (&self.input, space) {
            (Some(input), Space::Input) => &input[at - self.input_at..][..len],
            _ => &self.output[at..at + len],
        }
    }

    /// Computes `output` = `own` + `came`, starting at `at`.
    fn add(&mut self, own: Space, at: usize, came: &[u8]) {
        let Some(dtype) = self.dtype else { return };
        let out = &mut self.output[at..at + came.len()];
        match (&self.input, own) {
            (Some(input), Space::Input) => {
                sum(dtype, out, Some(&input[at - self.input_at..][..came.len()]), came);
            }
            _ => sum(dtype, out, None, came),
        }
    }
}

impl<'a> Engine<'a> {
    /// Creates an engine. `wires` must contain every peer of the schedule.
    pub fn new(
        schedule: &'a Schedule,
        buffers: &'a mut Buffers,
        wires: impl IntoIterator<Item = &'a Wire>,
    ) -> Engine<'a> {
        let peers = schedule.peers();
        let lane = |wire: &'a Wire| {
            let sends = (0..schedule.sends.len()).filter(|i| schedule.sends[*i].peer == wire.peer);
            let receives = (0..schedule.receives.len()).filter(|i| schedule.receives[*i].peer == wire.peer);
            let receives: Vec<usize> = receives.collect();
            let adds = receives.iter().any(|i| schedule.receives[*i].add.is_some());
            Lane {
                wire,
                sends: sends.collect(),
                receives,
                sending: 0,
                receiving: 0,
                came: vec![0; if adds { CHUNK } else { 0 }],
                held: 0,
            }
        };
        let lanes = wires
            .into_iter()
            .filter(|wire| peers.contains(&wire.peer))
            .map(lane)
            .collect();
        let (sends, receives) = (schedule.sends.len(), schedule.receives.len());
        Engine {
            schedule,
            buffers,
            lanes,
            sent: vec![0; sends],
            got: vec![0; receives],
        }
    }

    /// Runs the collective once.
    pub fn run(&mut self, patience: Patience, deadline: &Deadline) -> Result<(), TransportError> {
        self.begin();
        let mut rounds = 0;
        let mut idle_since = None;
        while !self.done() {
            rounds += 1;
            let moved = self.round(deadline)?;
            if moved && rounds % ROUNDS != 0 {
                idle_since = None;
                continue;
            }
            let now = Instant::now();
            if deadline.remaining().is_none() {
                return Err(deadline.passed(self.waits_for()));
            }
            if moved {
                continue;
            }
            if now.duration_since(*idle_since.get_or_insert(now)) >= patience.awake {
                self.sleep(deadline)?;
            } else {
                // Yield, because the awaited rank may need this core.
                std::thread::yield_now();
            }
        }
        Ok(())
    }

    fn begin(&mut self) {
        self.sent.fill(0);
        self.got.fill(0);
        for lane in &mut self.lanes {
            (lane.sending, lane.receiving, lane.held) = (0, 0, 0);
        }
        if let (Some(piece), Some(input)) = (self.schedule.copy, &self.buffers.input) {
            let from = piece.at - self.buffers.input_at;
            self.buffers.output[piece.range()].copy_from_slice(&input[from..from + piece.len]);
        }
    }

    fn done(&self) -> bool {
        self.lanes
            .iter()
            .all(|lane| lane.sending == lane.sends.len() && lane.receiving == lane.receives.len())
    }

    /// Advances all sends and receives as far as possible. Returns true if any of them made progress.
    fn round(&mut self, deadline: &Deadline) -> Result<bool, TransportError> {
        let mut moved = false;
        for lane in 0..self.lanes.len() {
            moved |= self.send(lane, deadline)?;
            moved |= self.receive(lane, deadline)?;
        }
        Ok(moved)
    }

    fn send(&mut self, lane: usize, deadline: &Deadline) -> Result<bool, TransportError> {
        let mut moved = false;
        while let Some(&index) = self.lanes[lane].sends.get(self.lanes[lane].sending) {
            let (limit, gone) = (self.schedule.sendable(index, &self.got), self.sent[index]);
            let send = &self.schedule.sends[index];
            if gone < limit {
                let bytes = self
                    .buffers
                    .part(send.from, send.piece.at + gone, (limit - gone).min(CHUNK));
                match self.lanes[lane].wire.stream().write(bytes) {
                    Ok(count) => self.sent[index] += count,
                    Err(error) if is_pause(&error) => return Ok(moved),
                    Err(error) => return Err(self.lanes[lane].wire.lost(error, deadline)),
                }
                moved = true;
            }
            if self.sent[index] < send.piece.len {
                return Ok(moved);
            }
            self.lanes[lane].sending += 1;
            moved = true;
        }
        Ok(moved)
    }

    fn receive(&mut self, lane: usize, deadline: &Deadline) -> Result<bool, TransportError> {
        let mut moved = false;
        while let Some(&index) = self.lanes[lane].receives.get(self.lanes[lane].receiving) {
            let receive = &self.schedule.receives[index];
            let room = self.schedule.receivable(index, &self.sent, &self.got) - self.got[index];
            if room > 0 {
                match self.take(lane, receive, self.got[index], room) {
                    Ok(0) => return Ok(true),
                    Ok(count) => self.got[index] += count,
                    Err(error) if is_pause(&error) => return Ok(moved),
                    Err(error) => return Err(self.lanes[lane].wire.lost(error, deadline)),
                }
                moved = true;
            }
            if self.got[index] < receive.piece.len {
                return Ok(moved);
            }
            self.lanes[lane].receiving += 1;
            moved = true;
        }
        Ok(moved)
    }

    /// Receives up to `room` bytes. Returns how many of them are complete, which may be zero if only part of an element
    /// arrived.
    fn take(&mut self, lane: usize, receive: &Receive, got: usize, room: usize) -> io::Result<usize> {
        let lane = &mut self.lanes[lane];
        let mut stream = lane.wire.stream();
        let at = receive.piece.at + got;
        let Some(own) = receive.add else {
            return open(stream.read(&mut self.buffers.output[at..at + room.min(CHUNK)])?);
        };
        let room = room.min(lane.came.len());
        let count = lane.held + open(stream.read(&mut lane.came[lane.held..room])?)?;
        let element = self.buffers.dtype.map_or(1, Dtype::size);
        let whole = count - count % element;
        self.buffers.add(own, at, &lane.came[..whole]);
        lane.came.copy_within(whole..count, 0);
        lane.held = count - whole;
        Ok(whole)
    }

    /// Returns a peer with pending receives, or if there is none, a peer with pending sends.
    fn waits_for(&self) -> Option<usize> {
        let receives = |lane: &&Lane<'_>| lane.receiving < lane.receives.len();
        let sends = |lane: &&Lane<'_>| lane.sending < lane.sends.len();
        let lane = self
            .lanes
            .iter()
            .find(receives)
            .or_else(|| self.lanes.iter().find(sends));
        lane.map(|lane| lane.wire.peer)
    }

    fn sleep(&self, deadline: &Deadline) -> Result<(), TransportError> {
        let wanted = |lane: &Lane<'a>| {
            let next = lane.sends.get(lane.sending);
            let sends =
                next.is_some_and(|index| self.sent[*index] < self.schedule.sendable(*index, &self.got));
            let next = lane.receives.get(lane.receiving);
            let coming = next.map_or(0, |index| {
                self.schedule.receivable(*index, &self.sent, &self.got) - self.got[*index] - lane.held
            });
            let receives = coming > 0;
            if receives {
                // These bytes arrive without further action by this rank, because the pieces depend only on earlier
                // ones.
                lane.wire.wake_at(coming.min(WORTH_WAKING));
            }
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::OUT, sends);
            flags.set(PollFlags::IN, receives);
            (!flags.is_empty()).then(|| PollFd::new(lane.wire.stream(), flags))
        };
        let mut fds: Vec<PollFd<'_>> = self.lanes.iter().filter_map(wanted).collect();
        ready(&mut fds, deadline, self.waits_for()).map(|_| ())
    }
}

/// Converts a read of zero bytes to an error, because it means that the connection has ended.
fn open(count: usize) -> io::Result<usize> {
    if count == 0 {
        Err(ErrorKind::UnexpectedEof.into())
    } else {
        Ok(count)
    }
}
