//! The star around rank 0: agreement, gathering, and who is to blame when something goes wrong.
//!
//! When a rank fails, its neighbours see it first and give up, and theirs see those give up. So that the error names
//! the first and not the nearest, every rank tells rank 0 what it saw, rank 0 concludes, and all report the same.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Purpose, Seat, Wire};
use crate::transport::{Deadline, TransportError};

/// Nothing longer is taken in.
const LONGEST: usize = 16 << 20;
/// After a failure, how long the others are given to say what they saw.
const INQUEST: Duration = Duration::from_millis(1500);

const TELL: u8 = 1;
const ABORT: u8 = 2;

/// One rank's end of the star.
pub struct Control {
    rank: usize,
    ranks: usize,
    /// To rank 0; at rank 0, to all others in their order.
    wires: Vec<Wire>,
    /// The end, once there was one.
    over: bool,
    /// At rank 0, what others said when they gave up.
    heard: Vec<Words>,
}

/// Whom a rank that gave up blames, and why.
type Notice = (Option<usize>, String);
/// A rank that gave up, whom it blames, and why.
type Words = (usize, Option<usize>, String);

impl Control {
    /// Opens the star.
    pub fn open(seat: &mut Seat, deadline: &Deadline) -> Result<Control, TransportError> {
        let deadline = deadline.part(format!("{}: connecting", deadline.phase()));
        let others = if seat.rank == 0 { 1..seat.ranks } else { 0..1 };
        let wires: Result<Vec<Wire>, _> = others
            .map(|peer| seat.connect(peer, Purpose::Control, &deadline))
            .collect();
        Ok(Control {
            rank: seat.rank,
            ranks: seat.ranks,
            wires: wires?,
            over: false,
            heard: Vec::new(),
        })
    }

    /// Which rank this is.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many there are.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// Brings every rank's bytes to rank 0, in the order of ranks; elsewhere `None`.
    pub fn collect(
        &mut self,
        mine: Vec<u8>,
        deadline: &Deadline,
    ) -> Result<Option<Vec<Vec<u8>>>, TransportError> {
        let done = self.try_collect(mine, deadline);
        done.map_err(|error| self.settle(error, deadline))
    }

    /// [`Control::collect`] for something that is written as JSON.
    pub fn gather_json<T: Serialize + DeserializeOwned>(
        &mut self,
        mine: &T,
        deadline: &Deadline,
    ) -> Result<Option<Vec<T>>, TransportError> {
        let broken = |peer, error: serde_json::Error| TransportError::Garbage {
            phase: deadline.phase().to_owned(),
            peer,
            what: format!("JSON that cannot be read: {error}"),
        };
        let bytes = serde_json::to_vec(mine).map_err(|error| broken(self.rank, error))?;
        let Some(all) = self.collect(bytes, deadline)? else {
            return Ok(None);
        };
        let parse = |(peer, bytes): (usize, Vec<u8>)| {
            serde_json::from_slice(&bytes).map_err(|error| broken(peer, error))
        };
        all.into_iter()
            .enumerate()
            .map(parse)
            .collect::<Result<_, _>>()
            .map(Some)
    }

    /// Rank 0's bytes, on every rank. What the others hand in does not matter.
    pub fn share(&mut self, bytes: Vec<u8>, deadline: &Deadline) -> Result<Vec<u8>, TransportError> {
        let done = self.try_share(bytes, deadline);
        done.map_err(|error| self.settle(error, deadline))
    }

    /// The largest value that any rank hands in.
    pub fn agree(&mut self, value: u64, deadline: &Deadline) -> Result<u64, TransportError> {
        let all = self.collect(value.to_le_bytes().to_vec(), deadline)?;
        let number = |bytes: &Vec<u8>| bytes.as_slice().try_into().map(u64::from_le_bytes).unwrap_or(0);
        let largest = all.map_or(0, |all| all.iter().map(number).max().unwrap_or(0));
        Ok(number(&self.share(largest.to_le_bytes().to_vec(), deadline)?))
    }

    /// How many ranks run on this rank's host, itself among them.
    pub fn ranks_here(&mut self, deadline: &Deadline) -> Result<usize, TransportError> {
        // The same in all containers and network namespaces of a host (random(4)). Where it cannot be read all count as one.
        let here = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let all = self.collect(here.clone(), deadline)?.unwrap_or_default();
        let all = self.share(all.join(&b'/'), deadline)?;
        Ok(all
            .split(|byte| *byte == b'/')
            .filter(|host| **host == here)
            .count())
    }

    /// Returns when every rank has called it.
    pub fn barrier(&mut self, deadline: &Deadline) -> Result<(), TransportError> {
        self.agree(0, deadline).map(|_| ())
    }

    /// The error of the rank that failed first, if that can be told; else `error`. Ends the star: all ranks that are
    /// alive call this within seconds of each other, because each sees the others end.
    pub fn settle(&mut self, error: TransportError, deadline: &Deadline) -> TransportError {
        if std::mem::replace(&mut self.over, true) {
            return error;
        }
        if self.rank != 0 && matches!(error, TransportError::Aborted { .. }) {
            return error; // Rank 0 has concluded already.
        }
        let inquest = Deadline::new(deadline.phase(), INQUEST);
        if self.rank == 0 {
            self.conclude(error, &inquest)
        } else {
            self.report(error, &inquest)
        }
    }

    /// Tells the others that this rank gives up.
    pub fn abort(&mut self, reason: &str) {
        if std::mem::replace(&mut self.over, true) {
            return;
        }
        self.tell(None, reason);
    }

    fn tell(&self, blames: Option<usize>, reason: &str) {
        let soon = Deadline::new("giving up", Duration::from_millis(200));
        for wire in &self.wires {
            let _ = send(wire, ABORT, &notice(blames, reason), &soon);
        }
    }

    fn try_collect(
        &mut self,
        mine: Vec<u8>,
        deadline: &Deadline,
    ) -> Result<Option<Vec<Vec<u8>>>, TransportError> {
        if self.rank != 0 {
            send(&self.wires[0], TELL, &mine, deadline)?;
            return Ok(None);
        }
        let mut all = vec![mine];
        for wire in &self.wires {
            match tell_of(wire, deadline)? {
                Ok(bytes) => all.push(bytes),
                Err((blames, reason)) => {
                    self.heard.push((wire.peer, blames, reason.clone()));
                    return Err(aborted(wire, blames, reason, deadline));
                }
            }
        }
        Ok(Some(all))
    }

    fn try_share(&self, bytes: Vec<u8>, deadline: &Deadline) -> Result<Vec<u8>, TransportError> {
        if self.rank != 0 {
            return receive(&self.wires[0], deadline);
        }
        for wire in &self.wires {
            send(wire, TELL, &bytes, deadline)?;
        }
        Ok(bytes)
    }

    /// Rank 0 hears what the others saw, and tells them all who is to blame: who was blamed and has nothing to say.
    fn conclude(&mut self, error: TransportError, inquest: &Deadline) -> TransportError {
        let mut blamed: BTreeSet<usize> = error.peer().into_iter().collect();
        let (mut gone, mut mute) = (BTreeSet::new(), BTreeSet::new());
        let mut heard = std::mem::take(&mut self.heard);
        blamed.extend(heard.iter().filter_map(|(_, blames, _)| *blames));
        for wire in &self.wires {
            if heard.iter().any(|(peer, ..)| *peer == wire.peer) {
                continue;
            }
            match last_words(wire, inquest) {
                Ok((blames, reason)) => {
                    blamed.extend(blames);
                    heard.push((wire.peer, blames, reason));
                }
                Err(TransportError::Deadline { .. }) => drop(mute.insert(wire.peer)),
                Err(_) => drop(gone.insert(wire.peer)),
            }
        }
        // A rank that is mute and that nobody blames may just be waiting for us.
        let mut suspects = blamed
            .intersection(&gone)
            .chain(blamed.intersection(&mute))
            .chain(&gone);
        let culprit = suspects.next().copied();
        let verdict = match culprit {
            Some(rank) if error.peer() != Some(rank) || matches!(error, TransportError::Aborted { .. }) => {
                // In the words of one who saw it.
                let seen = heard.iter().find(|(_, blames, _)| *blames == Some(rank));
                let reason = seen.map_or("it stopped answering", |(_, _, reason)| reason.as_str());
                TransportError::Aborted {
                    phase: inquest.phase().to_owned(),
                    peer: rank,
                    reason: reason.to_owned(),
                }
            }
            // A rank that gave up for a reason of its own blames nobody.
            None => match heard.into_iter().find(|(_, blames, _)| blames.is_none()) {
                Some((peer, _, reason)) => TransportError::Aborted {
                    phase: inquest.phase().to_owned(),
                    peer,
                    reason,
                },
                None => error,
            },
            _ => error,
        };
        self.tell(verdict.peer(), &verdict.reason());
        verdict
    }

    /// Another rank says what it saw, and takes rank 0's conclusion for its own.
    fn report(&self, error: TransportError, inquest: &Deadline) -> TransportError {
        let wire = &self.wires[0];
        let _ = send(wire, ABORT, &notice(error.peer(), &error.reason()), inquest);
        // Rank 0 may have waited for others as long as we for it.
        let patience = Deadline::new(inquest.phase(), 2 * INQUEST);
        match last_words(wire, &patience) {
            Ok((Some(peer), reason)) if peer != self.rank => TransportError::Aborted {
                phase: inquest.phase().to_owned(),
                peer,
                reason,
            },
            // Rank 0 itself ended.
            Err(lost @ TransportError::Lost { .. }) => lost,
            _ => error,
        }
    }
}

/// What an abort says: who is blamed (u32, all ones: nobody) and why.
fn notice(blames: Option<usize>, reason: &str) -> Vec<u8> {
    let mut bytes = blames.map_or(u32::MAX, |rank| rank as u32).to_le_bytes().to_vec();
    bytes.extend_from_slice(reason.as_bytes());
    bytes
}

fn parse_notice(bytes: &[u8]) -> Notice {
    let (blames, reason) = bytes.split_at(bytes.len().min(4));
    let blames = blames.try_into().map_or(u32::MAX, u32::from_le_bytes);
    let reason = String::from_utf8_lossy(reason).into_owned();
    ((blames != u32::MAX).then_some(blames as usize), reason)
}

fn send(wire: &Wire, tag: u8, bytes: &[u8], deadline: &Deadline) -> Result<(), TransportError> {
    let mut frame = Vec::with_capacity(5 + bytes.len());
    frame.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    frame.push(tag);
    frame.extend_from_slice(bytes);
    wire.write(&frame, deadline)
}

fn receive(wire: &Wire, deadline: &Deadline) -> Result<Vec<u8>, TransportError> {
    tell_of(wire, deadline)?.map_err(|(blames, reason)| aborted(wire, blames, reason, deadline))
}

fn aborted(wire: &Wire, blames: Option<usize>, reason: String, deadline: &Deadline) -> TransportError {
    let (phase, peer) = (deadline.phase().to_owned(), blames.unwrap_or(wire.peer));
    TransportError::Aborted { phase, peer, reason }
}

/// What a message tells; or that its sender gave up.
fn tell_of(wire: &Wire, deadline: &Deadline) -> Result<Result<Vec<u8>, Notice>, TransportError> {
    Ok(match frame(wire, deadline)? {
        (TELL, bytes) => Ok(bytes),
        (_, bytes) => Err(parse_notice(&bytes)),
    })
}

/// The abort that comes last on a wire: who is blamed, and why.
fn last_words(wire: &Wire, deadline: &Deadline) -> Result<Notice, TransportError> {
    loop {
        if let (ABORT, bytes) = frame(wire, deadline)? {
            return Ok(parse_notice(&bytes));
        }
    }
}

fn frame(wire: &Wire, deadline: &Deadline) -> Result<(u8, Vec<u8>), TransportError> {
    let mut head = [0; 5];
    wire.read(&mut head, deadline)?;
    let length = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
    let garbage = |what| TransportError::Garbage {
        phase: deadline.phase().to_owned(),
        peer: wire.peer,
        what,
    };
    if !matches!(head[4], TELL | ABORT) {
        return Err(garbage(format!("a message of unknown kind {}", head[4])));
    }
    if length > LONGEST {
        return Err(garbage(format!(
            "a message of {length} bytes, more than {LONGEST}"
        )));
    }
    let mut bytes = vec![0; length];
    wire.read(&mut bytes, deadline)?;
    Ok((head[4], bytes))
}
