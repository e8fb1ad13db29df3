//! The NCCL plugin's records. It writes one when a collective is enqueued, and another when the GPU's times are
//! available. Both are converted between words and structs without a byte array in between, so that the plugin contains
//! no panic and no allocation.

/// Record kind of [`Collective`].
pub const KIND_COLLECTIVE: u16 = 11;
/// Record kind of [`Timed`].
pub const KIND_TIMED: u16 = 12;
/// Smallest size in bytes that is used. Shorter messages measure latency, not transfer.
const MIN_BYTES: u64 = 8 << 10;

/// The function of a collective.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Function {
    /// Any other function.
    #[default]
    Other = 0,
    /// All-reduce.
    AllReduce = 1,
    /// Reduce-scatter.
    ReduceScatter = 2,
    /// All-gather.
    AllGather = 3,
    /// Broadcast from a root.
    Broadcast = 4,
    /// Reduce to a root.
    Reduce = 5,
    /// A message to another rank.
    Send = 6,
    /// A message from another rank.
    Receive = 7,
}

impl Function {
    /// Returns the function with this number in a record.
    pub const fn of(number: u8) -> Function {
        match number {
            1 => Function::AllReduce,
            2 => Function::ReduceScatter,
            3 => Function::AllGather,
            4 => Function::Broadcast,
            5 => Function::Reduce,
            6 => Function::Send,
            7 => Function::Receive,
            _ => Function::Other,
        }
    }

    /// Returns true if no member can leave the function before the last one has arrived. The shortest duration among
    /// the members is then the transfer time.
    pub const fn all_meet(self) -> bool {
        matches!(
            self,
            Function::AllReduce | Function::ReduceScatter | Function::AllGather
        )
    }

    /// Returns true for a message between two ranks, and false for a collective.
    pub const fn is_message(self) -> bool {
        matches!(self, Function::Send | Function::Receive)
    }
}

/// A collective or message that was enqueued.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Collective {
    /// The communicator.
    pub comm: u64,
    /// NCCL's number of the call among those of the same function in the communicator, the same on all members. For a
    /// message, the peer's rank in the communicator.
    pub sequence: u64,
    /// Size of the largest buffer, that of all ranks together, as nccl-tests count it.
    pub bytes: u64,
    /// Time when it was enqueued, CLOCK_MONOTONIC ns.
    pub enqueued_ns: u64,
    /// Number of the call in this process, modulo 2³². [`Timed`] refers to it.
    pub ticket: u32,
    /// The current step according to the hook, modulo 2³²; 0 if there is no hook or no step yet.
    pub step: u32,
    /// The function.
    pub function: Function,
    /// Number of the algorithm: 0 unknown, 1 ring, 2 tree, 3 and 4 CollNet direct and chain, 5 and 6 NVLS and NVLS
    /// tree, 7 PAT.
    pub algorithm: u8,
    /// Number of the protocol: 0 unknown, 1 LL, 2 LL128, 3 Simple.
    pub protocol: u8,
    /// Number of channels that carry it; 0 if NCCL does not report it.
    pub channels: u8,
    /// True if a [`Timed`] record of this collective follows.
    pub is_timed: bool,
}

impl Collective {
    /// Returns true if its GPU time can show which rank was late. That requires that all members meet in it, that it is
    /// large enough not to be mere latency, and that NCCL reports its channels.
    pub const fn is_fit(&self) -> bool {
        self.function.all_meet() && self.bytes >= MIN_BYTES && self.channels > 0
    }

    /// Returns true if it is a message whose wait matters. There is no minimum size, because a message may contain the
    /// shape of another one.
    pub const fn is_message(&self) -> bool {
        self.function.is_message() && self.bytes > 0 && self.channels > 0
    }

    /// Returns the number of channels that its time is derived from, or `None` if it is not timed. A message is over
    /// when any of its channels ends, because NCCL up to 2.30 does not report all of them
    /// (<https://github.com/NVIDIA/nccl/issues/2056>).
    pub const fn awaited_channels(&self) -> Option<u8> {
        match () {
            () if self.is_fit() => Some(self.channels),
            () if self.is_message() => Some(1),
            () => None,
        }
    }

    /// Encodes the payload.
    pub const fn words(&self) -> [u64; 6] {
        let last = self.function as u64
            | (self.algorithm as u64) << 8
            | (self.protocol as u64) << 16
            | (self.channels as u64) << 24
            | (self.is_timed as u64) << 32;
        let ids = self.ticket as u64 | (self.step as u64) << 32;
        [self.comm, self.sequence, self.bytes, self.enqueued_ns, ids, last]
    }

    /// Decodes the payload.
    pub const fn of(words: [u64; 6]) -> Collective {
        let [comm, sequence, bytes, enqueued_ns, ids, last] = words;
        Collective {
            comm,
            sequence,
            bytes,
            enqueued_ns,
            ticket: ids as u32,
            step: (ids >> 32) as u32,
            function: Function::of(last as u8),
            algorithm: (last >> 8) as u8,
            protocol: (last >> 16) as u8,
            channels: (last >> 24) as u8,
            is_timed: (last >> 32) & 1 != 0,
        }
    }
}

/// A collective's times on the GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timed {
    /// The communicator.
    pub comm: u64,
    /// Start of the first channel, in ns of the GPU's own clock (globaltimer). Only durations may be compared between
    /// GPUs, never instants.
    pub start_ns: u64,
    /// Time from `start_ns` to the end of the last channel; 0 if the collective was abandoned because some channels
    /// were not reported.
    pub duration_ns: u64,
    /// The ticket of the [`Collective`].
    pub ticket: u32,
    /// Number of channels whose end was reported.
    pub channels: u8,
}

impl Timed {
    /// Encodes the payload.
    pub const fn words(&self) -> [u64; 6] {
        let ids = self.ticket as u64 | (self.channels as u64) << 32;
        [self.comm, self.start_ns, self.duration_ns, ids, 0, 0]
    }

    /// Decodes the payload.
    pub const fn of(words: [u64; 6]) -> Timed {
        let [comm, start_ns, duration_ns, ids, _, _] = words;
        Timed {
            comm,
            start_ns,
            duration_ns,
            ticket: ids as u32,
            channels: (ids >> 32) as u8,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_timed() {
        let of = |function, bytes, channels| Collective {
            function,
            bytes,
            channels,
            ..Collective::of([0; 6])
        };
        assert!(of(Function::AllReduce, 8192, 1).is_fit());
        assert!(!of(Function::AllReduce, 8191, 1).is_fit(), "mere latency");
        assert!(
            !of(Function::AllReduce, 8192, 0).is_fit(),
            "NCCL says no channels"
        );
        assert!(!of(Function::Other, 8192, 1).is_fit() && !of(Function::Broadcast, 8192, 1).is_fit());
    }
}
