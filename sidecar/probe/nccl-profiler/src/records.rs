//! Encodes ring records about this process and its communicators as words (see the ring's `layout.md`). A test decodes
//! them again.

use paceline_ring::{Collective, Function};

use crate::abi::{Coll, Message};
use crate::comms::{Member, NAME};
use crate::rank::Identity;
use crate::text::{self, Word};

/// Record kind: identifies the writing process.
pub const ATTACH: u16 = 2;
/// Record kind: a line of text for users.
pub const NOTE: u16 = 5;
/// Record kind: a communicator.
pub const GROUP: u16 = 9;

/// Framework code of this plugin in the attach record.
const NCCL: u64 = 4;
/// Stands for an unknown CUDA device index, because NCCL does not provide it.
const NO_DEVICE: u64 = 0xffff_ffff;

/// Encodes the record that identifies the writing process.
pub fn attach(identity: Identity) -> [u64; 6] {
    let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    [
        pair(identity.rank, identity.local_rank),
        pair(identity.world_size, identity.restart),
        NO_DEVICE,
        0,
        NCCL << 56,
        0,
    ]
}

/// Encodes a communicator that this rank is a member of.
pub fn group(member: Member) -> [u64; 6] {
    let [a, b, c] = member.name;
    [member.id, u64::from(member.ranks), a, b, c, 0]
}

/// Builds the record of an enqueued collective of a communicator.
#[inline]
pub fn collective(coll: &Coll, member: Member, ticket: u64, now_ns: u64, step: Option<u64>) -> Collective {
    // SAFETY: NCCL's names are string literals, or null.
    let [func, datatype, algo, proto] =
        [coll.func, coll.datatype, coll.algo, coll.proto].map(|name| unsafe { Word::new(name) });
    let function = text::function(func);
    let of_rank = (coll.count as u64).saturating_mul(text::element_bytes(datatype));
    // Counts bytes like nccl-tests, which use the size of the buffer that holds the parts of all ranks.
    let parts = match function {
        Function::AllGather | Function::ReduceScatter => u64::from(member.ranks),
        _ => 1,
    };
    Collective {
        comm: member.id,
        sequence: coll.sequence,
        bytes: of_rank.saturating_mul(parts),
        enqueued_ns: now_ns,
        ticket: ticket as u32,
        step: step.unwrap_or(0) as u32,
        function,
        algorithm: text::algorithm(algo),
        protocol: text::protocol(proto),
        channels: coll.channels,
        is_timed: false,
    }
}

/// Builds the record of an enqueued send or receive.
#[inline]
pub fn message(message: &Message, member: Member, ticket: u64, now_ns: u64, step: Option<u64>) -> Collective {
    // SAFETY: NCCL's names are string literals, or null.
    let [func, datatype] = [message.func, message.datatype].map(|name| unsafe { Word::new(name) });
    Collective {
        comm: member.id,
        sequence: u64::from(message.peer.unsigned_abs()),
        bytes: (message.count as u64).saturating_mul(text::element_bytes(datatype)),
        enqueued_ns: now_ns,
        ticket: ticket as u32,
        step: step.unwrap_or(0) as u32,
        function: text::function(func),
        channels: message.channels,
        ..Collective::default()
    }
}

/// Encodes up to 48 bytes of text.
pub fn note(text: &[u8]) -> [u64; 6] {
    words(text)
}

/// Encodes a name of up to 24 bytes, cut at a UTF-8 character boundary.
pub fn name(text: &[u8]) -> [u64; NAME] {
    let mut end = text.len().min(NAME * 8);
    while end > 0 && text.get(end).is_some_and(|byte| byte & 0xc0 == 0x80) {
        end -= 1;
    }
    words(text.get(..end).unwrap_or_default())
}

fn words<const N: usize>(text: &[u8]) -> [u64; N] {
    let mut words = [0; N];
    for (i, byte) in text.iter().enumerate() {
        if let Some(word) = words.get_mut(i / 8) {
            *word |= u64::from(*byte) << (i % 8 * 8);
        }
    }
    words
}
