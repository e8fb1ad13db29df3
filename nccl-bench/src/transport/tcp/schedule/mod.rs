//! An algorithm as data: what one rank sends and receives, and what each piece waits for.
//!
//! Offsets and lengths are bytes. Pieces to (from) one peer travel in the order in which they stand here. A piece may
//! go as far as the one it waits for has come, so chunks are pipelined through all steps without being cut here. There
//! is no buffer, socket or time in it: the tests run all ranks' schedules against each other in memory.

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
    /// Input that is output too; nothing to do in place.
    pub copy: Option<Piece>,
    /// What goes out.
    pub sends: Vec<Send>,
    /// What comes in, always into the output.
    pub receives: Vec<Receive>,
}

/// A part of a buffer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Piece {
    /// Where it begins.
    pub at: usize,
    /// How long it is.
    pub len: usize,
}

/// A buffer of a rank. In place they are one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// What the rank was given.
    Input,
    /// Its result, and whatever is on its way there.
    Output,
}

/// Something that goes out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Send {
    /// To whom.
    pub peer: usize,
    /// From which buffer.
    pub from: Space,
    /// What.
    pub piece: Piece,
    /// Each byte only after this receive has put it there.
    pub after: Option<usize>,
}

/// Something that comes in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receive {
    /// From whom.
    pub peer: usize,
    /// Where to.
    pub piece: Piece,
    /// The output becomes the sum of this buffer and what came; `None`: just what came.
    pub add: Option<Space>,
    /// Each byte only after this send has taken the old one away.
    pub behind: Option<usize>,
    /// Each byte only after this receive has put there what it is added to.
    pub onto: Option<usize>,
}

impl Piece {
    /// The whole of so many bytes.
    pub fn whole(len: usize) -> Piece {
        Piece { at: 0, len }
    }

    /// As indices.
    pub fn range(self) -> Range<usize> {
        self.at..self.at + self.len
    }
}

/// How many of the bytes of `piece` are among the first `done` of `other`, of which it is a part.
fn reach(other: Piece, done: usize, piece: Piece) -> usize {
    if done == other.len {
        piece.len
    } else {
        (other.at + done).saturating_sub(piece.at).min(piece.len)
    }
}

impl Schedule {
    /// How far a send may go when so much of each receive is in place.
    pub fn sendable(&self, index: usize, got: &[usize]) -> usize {
        let send = &self.sends[index];
        let after = |after: usize| reach(self.receives[after].piece, got[after], send.piece);
        send.after.map_or(send.piece.len, after)
    }

    /// How far a receive may go when so much of each send is gone, and of each receive in place.
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

    /// Everyone it talks to, in order.
    pub fn peers(&self) -> BTreeSet<usize> {
        let sends = self.sends.iter().map(|send| send.peer);
        sends
            .chain(self.receives.iter().map(|receive| receive.peer))
            .collect()
    }
}

/// `rank`'s part of `plan` by `algorithm`.
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

/// What of the input no receive brings.
fn copied(plan: &Plan, rank: usize) -> Option<Piece> {
    let whole = Piece::whole(space(plan));
    let piece = match plan.collective {
        Collective::AllReduce | Collective::ReduceScatter => (plan.ranks == 1).then_some(whole),
        Collective::AllGather | Collective::AllToAll => Some(block(plan, rank)),
        Collective::Broadcast => (rank == plan.root).then_some(whole),
    };
    piece.filter(|_| !plan.in_place)
}

/// Bytes of the output buffer: of the whole operation, even where a rank's result is only a block of it.
pub fn space(plan: &Plan) -> usize {
    plan.send_elements().max(plan.receive_elements()) * plan.dtype.size()
}

/// Where in the output buffer `rank`'s result is.
pub fn result(plan: &Plan, rank: usize) -> Piece {
    match plan.collective {
        Collective::ReduceScatter => block(plan, rank),
        _ => Piece::whole(space(plan)),
    }
}

/// Where in the operation's whole `rank`'s input is.
pub fn input(plan: &Plan, rank: usize) -> Piece {
    match plan.collective {
        Collective::AllGather => block(plan, rank),
        _ => Piece::whole(space(plan)),
    }
}

/// The block of rank `index`: of equal ones where ranks have blocks, else of an even split in whole elements, of which
/// the first ones are longer by one.
fn block(plan: &Plan, index: usize) -> Piece {
    split(space(plan), plan.dtype.size(), plan.ranks, index)
}

/// The `index`th of `parts` of so many bytes, cut between elements.
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
