//! An algorithm as data: the sends and receives of one rank, and the dependencies of each piece.
//!
//! Offsets and lengths are in bytes. Pieces to (from) one peer are sent in the order of these lists. A piece can
//! proceed as far as the one that it depends on, so data is pipelined through all steps without dividing it into chunks
//! here. There is no buffer, socket or time: the tests run all ranks' schedules against each other in memory.

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
    /// Input to copy to the output first; unused in place.
    pub copy: Option<Piece>,
    /// The sends.
    pub sends: Vec<Send>,
    /// The receives, always into the output.
    pub receives: Vec<Receive>,
}

/// A part of a buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Piece {
    /// Its start.
    pub at: usize,
    /// Its length.
    pub len: usize,
}

/// A buffer of a rank. In place both are the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// The rank's input.
    Input,
    /// Its result, and intermediate data.
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
    /// Each byte depends on this receive.
    pub after: Option<usize>,
}

/// A receive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receive {
    /// The sender.
    pub peer: usize,
    /// The destination.
    pub piece: Piece,
    /// The output becomes the sum of this buffer and the received data; `None`: the received data.
    pub add: Option<Space>,
    /// Each byte may only arrive after this send has sent the old one.
    pub behind: Option<usize>,
    /// Each byte may only arrive after this receive has stored the value to which it is added.
    pub onto: Option<usize>,
}

impl Piece {
    /// A whole buffer of this length.
    pub fn whole(len: usize) -> Piece {
        Piece { at: 0, len }
    }

    /// The index range.
    pub fn range(self) -> Range<usize> {
        self.at..self.at + self.len
    }
}

/// How many bytes of `piece` are within the first `done` bytes of `other`, which contains it.
fn reach(other: Piece, done: usize, piece: Piece) -> usize {
    if done == other.len {
        piece.len
    } else {
        (other.at + done).saturating_sub(piece.at).min(piece.len)
    }
}

impl Schedule {
    /// How far a send can proceed with this many bytes received.
    pub fn sendable(&self, index: usize, got: &[usize]) -> usize {
        let send = &self.sends[index];
        let after = |after: usize| reach(self.receives[after].piece, got[after], send.piece);
        send.after.map_or(send.piece.len, after)
    }

    /// How far a receive can proceed with this many bytes sent and received.
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

    /// All peers, in order.
    pub fn peers(&self) -> BTreeSet<usize> {
        let sends = self.sends.iter().map(|send| send.peer);
        sends
            .chain(self.receives.iter().map(|receive| receive.peer))
            .collect()
    }
}

/// `rank`'s part of `plan`, with `algorithm`.
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

/// The part of the output that comes from the input and not from a receive.
fn copied(plan: &Plan, rank: usize) -> Option<Piece> {
    let whole = Piece::whole(space(plan));
    let piece = match plan.collective {
        Collective::AllReduce | Collective::ReduceScatter => (plan.ranks == 1).then_some(whole),
        Collective::AllGather | Collective::AllToAll => Some(block(plan, rank)),
        Collective::Broadcast => (rank == plan.root).then_some(whole),
    };
    piece.filter(|_| !plan.in_place)
}

/// Bytes of the output buffer: of the whole operation, even if a rank's result is only a block of it.
pub fn space(plan: &Plan) -> usize {
    plan.send_elements().max(plan.receive_elements()) * plan.dtype.size()
}

/// The part of the output buffer with `rank`'s result.
pub fn result(plan: &Plan, rank: usize) -> Piece {
    match plan.collective {
        Collective::ReduceScatter => block(plan, rank),
        _ => Piece::whole(space(plan)),
    }
}

/// The part of the whole operation with `rank`'s input.
pub fn input(plan: &Plan, rank: usize) -> Piece {
    match plan.collective {
        Collective::AllGather => block(plan, rank),
        _ => Piece::whole(space(plan)),
    }
}

/// The block of rank `index`: of equal size if ranks have blocks, else from an even division into whole elements, with
/// one more element in the first blocks.
fn block(plan: &Plan, index: usize) -> Piece {
    split(space(plan), plan.dtype.size(), plan.ranks, index)
}

/// The `index`th of `parts` parts of a buffer, divided between elements.
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
