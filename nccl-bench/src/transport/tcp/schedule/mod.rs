//! An algorithm as data, which consists of the sends and receives of one rank and of the dependencies of each piece.
//!
//! Offsets and lengths are in bytes. Pieces to (from) one peer are sent (received) in the order of these lists. A piece
//! can proceed as far as the piece that it depends on. Data is therefore pipelined through all steps without dividing
//! it into chunks here. This module has no buffers, sockets or times, so the tests can run all ranks' schedules against
//! each other in memory.

mod choose;
mod direct;
mod doubling;
mod halving;
mod ring;
#[cfg(test)]
mod tests;
mod tree;

use std::collections::BTreeSet;
use std::ops::Range;

pub use choose::{Algorithm, choose};

use crate::collective::{Collective, Plan};

/// One rank's part of a collective.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    /// Part of the input that is copied to the output first. It is not used in place.
    pub copy: Option<Piece>,
    /// The sends.
    pub sends: Vec<Send>,
    /// The receives. They always write to the output.
    pub receives: Vec<Receive>,
}

/// A part of a buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Piece {
    /// Start of the part.
    pub at: usize,
    /// Length of the part.
    pub len: usize,
}

/// A buffer of a rank. In place, both variants are the same buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// The rank's input.
    Input,
    /// The rank's result, including intermediate data.
    Output,
}

/// A send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Send {
    /// The receiver.
    pub peer: usize,
    /// The source buffer.
    pub from: Space,
    /// The part to send.
    pub piece: Piece,
    /// Index of the receive that each byte depends on, if any.
    pub after: Option<usize>,
}

/// A receive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receive {
    /// The sender.
    pub peer: usize,
    /// The destination.
    pub piece: Piece,
    /// With a value, the output becomes the sum of this buffer and the received data. With `None`, it becomes the
    /// received data.
    pub add: Option<Space>,
    /// Index of a send, if any. Each byte may arrive only after that send has sent the old byte.
    pub behind: Option<usize>,
    /// Index of a receive, if any. Each byte may arrive only after that receive has stored the value to which it is
    /// added.
    pub onto: Option<usize>,
}

impl Piece {
    /// Returns the part that is a whole buffer of this length.
    pub fn whole(len: usize) -> Piece {
        Piece { at: 0, len }
    }

    /// Returns the range of indexes of the part.
    pub fn range(self) -> Range<usize> {
        self.at..self.at + self.len
    }
}

/// Returns how many bytes of `piece` are within the first `done` bytes of `other`, which contains `piece`.
fn reach(other: Piece, done: usize, piece: Piece) -> usize {
    if done == other.len {
        piece.len
    } else {
        (other.at + done).saturating_sub(piece.at).min(piece.len)
    }
}

impl Schedule {
    /// Returns how far a send can proceed with this many bytes received.
    pub fn sendable(&self, index: usize, got: &[usize]) -> usize {
        let send = &self.sends[index];
        let after = |after: usize| reach(self.receives[after].piece, got[after], send.piece);
        send.after.map_or(send.piece.len, after)
    }

    /// Returns how far a receive can proceed with this many bytes sent and received.
    pub fn receivable(&self, index: usize, sent: &[usize], got: &[usize]) -> usize {
        let receive = &self.receives[index];
        let behind = |behind: usize| reach(self.sends[behind].piece, sent[behind], receive.piece);
        let onto = |onto: usize| reach(self.receives[onto].piece, got[onto], receive.piece);
        let len = receive.piece.len;
        receive
            .behind
            .map_or(len, behind)
            .min(receive.onto.map_or(len, onto))
    }

    fn send(&mut self, peer: usize, from: Space, piece: Piece, after: Option<usize>) -> usize {
        self.sends.push(Send {
            peer,
            from,
            piece,
            after,
        });
        self.sends.len() - 1
    }

    fn receive(&mut self, peer: usize, piece: Piece, add: Option<Space>) -> usize {
        self.receives.push(Receive {
            peer,
            piece,
            add,
            behind: None,
            onto: None,
        });
        self.receives.len() - 1
    }

    /// Returns all peers, in order.
    pub fn peers(&self) -> BTreeSet<usize> {
        let sends = self.sends.iter().map(|send| send.peer);
        sends
            .chain(self.receives.iter().map(|receive| receive.peer))
            .collect()
    }
}

/// Returns `rank`'s part of `plan`, with `algorithm`.
pub fn schedule(plan: &Plan, rank: usize, algorithm: Algorithm) -> Schedule {
    let mut schedule = match (plan.collective, algorithm) {
        (Collective::AllReduce, Algorithm::Ring) => ring::all_reduce(plan, rank),
        (Collective::AllReduce, Algorithm::Halving) if plan.ranks.is_power_of_two() => {
            halving::all_reduce(plan, rank)
        }
        (Collective::AllReduce, _) => doubling::all_reduce(plan, rank),
        (Collective::ReduceScatter, _) => ring::reduce_scatter(plan, rank),
        (Collective::AllGather, Algorithm::Ring) => ring::all_gather(plan, rank),
        (Collective::AllGather, _) => direct::all_gather(plan, rank),
        (Collective::Broadcast, Algorithm::Ring) => tree::chain(plan, rank),
        (Collective::Broadcast, _) => tree::binomial(plan, rank),
        (Collective::AllToAll, _) => direct::all_to_all(plan, rank),
    };
    schedule.copy = copied(plan, rank);
    schedule
}

/// Returns the part of the output that comes from the input and not from a receive.
fn copied(plan: &Plan, rank: usize) -> Option<Piece> {
    let whole = Piece::whole(space(plan));
    let piece = match plan.collective {
        Collective::AllReduce | Collective::ReduceScatter => (plan.ranks == 1).then_some(whole),
        Collective::AllGather | Collective::AllToAll => Some(block(plan, rank)),
        Collective::Broadcast => (rank == plan.root).then_some(whole),
    };
    piece.filter(|_| !plan.in_place)
}

/// Returns the size of the output buffer. It holds the whole operation, even if a rank's result is only a block of it.
pub fn space(plan: &Plan) -> usize {
    plan.send_elements().max(plan.receive_elements()) * plan.dtype.size()
}

/// Returns the part of the output buffer with `rank`'s result.
pub fn result(plan: &Plan, rank: usize) -> Piece {
    match plan.collective {
        Collective::ReduceScatter => block(plan, rank),
        _ => Piece::whole(space(plan)),
    }
}

/// Returns the part of the whole operation with `rank`'s input.
pub fn input(plan: &Plan, rank: usize) -> Piece {
    match plan.collective {
        Collective::AllGather => block(plan, rank),
        _ => Piece::whole(space(plan)),
    }
}

/// Returns the block of rank `index`. Blocks have equal size if ranks have blocks. Otherwise the buffer is divided
/// evenly into whole elements, with one more element in the first blocks.
fn block(plan: &Plan, index: usize) -> Piece {
    split(space(plan), plan.dtype.size(), plan.ranks, index)
}

/// Returns the `index`th of `parts` parts of a buffer, divided between elements.
pub fn split(bytes: usize, element: usize, parts: usize, index: usize) -> Piece {
    let elements = bytes / element;
    let (each, longer) = (elements / parts, elements % parts);
    let at = index * each + index.min(longer);
    let len = each + usize::from(index < longer);
    Piece {
        at: at * element,
        len: len * element,
    }
}
