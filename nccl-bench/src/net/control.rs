//! A star of connections around rank 0, used for agreement, gathering, and attribution of failures.
//!
//! When a rank fails, its neighbors notice first and abort, and then their neighbors notice. The error must name the
//! first failed rank, not the nearest one. Every rank therefore reports its error to rank 0, rank 0 determines the
//! cause, and all ranks return the same error.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Purpose, Seat, Wire};
use crate::transport::{Deadline, TransportError};

/// Size limit of a message.
const LONGEST: usize = 16 << 20;
/// Time after a failure in which the other ranks can report their errors.
const INQUEST: Duration = Duration::from_millis(1500);

const TELL: u8 = 1;
const ABORT: u8 = 2;

/// One rank's side of the star.
pub struct Control {
    rank: usize,
    ranks: usize,
    /// The connection to rank 0. On rank 0, these are the connections to all others, in rank order.
    wires: Vec<Wire>,
    /// True if the star has ended.
    over: bool,
    /// On rank 0, the reports of ranks that aborted.
    heard: Vec<Words>,
}

/// The rank that an aborting rank blames, and the reason.
type Notice = (Option<usize>, String);
/// An aborting rank, the rank that it blames, and the reason.
type Words = (usize, Option<usize>, String);

impl Control {
    /// Connects the star.
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

    /// Returns this rank.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Returns the number of ranks.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// Gathers every rank's bytes on rank 0, in rank order. Other ranks get `None`.
    pub fn collect(
        &mut self,
        mine: Vec<u8>,
        deadline: &Deadline,
    ) -> Result<Option<Vec<Vec<u8>>>, TransportError> {
        let done = self.try_collect(mine, deadline);
        done.map_err(|error| self.settle(error, deadline))
    }

    /// Gathers values like [`Control::collect`], serialized as JSON.
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

    /// Broadcasts rank 0's bytes. The bytes of other ranks are ignored.
    pub fn share(&mut self, bytes: Vec<u8>, deadline: &Deadline) -> Result<Vec<u8>, TransportError> {
        let done = self.try_share(bytes, deadline);
        done.map_err(|error| self.settle(error, deadline))
    }

    /// Returns the maximum of all ranks' values.
    pub fn agree(&mut self, value: u64, deadline: &Deadline) -> Result<u64, TransportError> {
        let all = self.collect(value.to_le_bytes().to_vec(), deadline)?;
        let number = |bytes: &Vec<u8>| bytes.as_slice().try_into().map(u64::from_le_bytes).unwrap_or(0);
        let largest = all.map_or(0, |all| all.iter().map(number).max().unwrap_or(0));
        Ok(number(&self.share(largest.to_le_bytes().to_vec(), deadline)?))
    }

    /// Returns the number of ranks on this rank's host, including itself.
    pub fn ranks_here(&mut self, deadline: &Deadline) -> Result<usize, TransportError> {
        // The boot id is the same in all containers and network namespaces of a host (random(4)). If it is unreadable,
        // all ranks count as being on one host.
        let here = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let all = self.collect(here.clone(), deadline)?.unwrap_or_default();
        let all = self.share(all.join(&b'/'), deadline)?;
        Ok(all
            .split(|byte| *byte == b'/')
            .filter(|host| **host == here)
            .count())
    }

    /// Returns when every rank has called this function.
    pub fn barrier(&mut self, deadline: &Deadline) -> Result<(), TransportError> {
        self.agree(0, deadline).map(|_| ())
    }

    /// Returns the error of the rank that failed first, if known, otherwise `error`. This ends the star. All live ranks
    /// call this function within seconds of each other, because each one notices that others end.
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

    /// Notifies the others that this rank aborts.
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

    /// Collects the others' reports on rank 0, and sends them the culprit. The culprit is a rank that others blame and
    /// that sent no report of its own.
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
        // A silent rank that is not blamed is no suspect, because it may only be waiting for us.
        let mut suspects = blamed
            .intersection(&gone)
            .chain(blamed.intersection(&mute))
            .chain(&gone);
        let culprit = suspects.next().copied();
        let verdict = match culprit {
            Some(rank) if error.peer() != Some(rank) || matches!(error, TransportError::Aborted { .. }) => {
                // Use the reason from a rank that observed the failure.
                let seen = heard.iter().find(|(_, blames, _)| *blames == Some(rank));
                let reason = seen.map_or("it stopped answering", |(_, _, reason)| reason.as_str());
                TransportError::Aborted {
                    phase: inquest.phase().to_owned(),
                    peer: rank,
                    reason: reason.to_owned(),
                }
            }
            // A rank that aborted because of a local problem blames no other rank, so it is the culprit itself.
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

    /// Reports the error to rank 0, and returns rank 0's conclusion. This is done on all other ranks.
    fn report(&self, error: TransportError, inquest: &Deadline) -> TransportError {
        let wire = &self.wires[0];
        let _ = send(wire, ABORT, &notice(error.peer(), &error.reason()), inquest);
        // Rank 0 may have waited for other ranks as long as this rank waited for rank 0, so wait longer.
        let patience = Deadline::new(inquest.phase(), 2 * INQUEST);
        match last_words(wire, &patience) {
            Ok((Some(peer), reason)) if peer != self.rank => TransportError::Aborted {
                phase: inquest.phase().to_owned(),
                peer,
                reason,
            },
            // Rank 0 itself has ended.
            Err(lost @ TransportError::Lost { .. }) => lost,
            _ => error,
        }
    }
}

/// Returns the content of an abort. It consists of the blamed rank as a u32 (all ones if there is none) and the reason.
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

/// Returns the content of a message, or the notice if its sender has aborted.
fn tell_of(wire: &Wire, deadline: &Deadline) -> Result<Result<Vec<u8>, Notice>, TransportError> {
    Ok(match frame(wire, deadline)? {
        (TELL, bytes) => Ok(bytes),
        (_, bytes) => Err(parse_notice(&bytes)),
    })
}

/// Waits for the abort on a wire. Returns the blamed rank and the reason.
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
