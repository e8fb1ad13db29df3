//! The NCCL plugin's records: a collective when it is enqueued, and once more when the GPU's times are available. Both
//! are converted between words and structs without a byte array in between, so that the plugin contains no panic and no
//! allocation.

/// Kind of [`Collective`].
pub const KIND_COLLECTIVE: u16 = 11;
/// Kind of [`Timed`].
pub const KIND_TIMED: u16 = 12;
/// Shorter messages measure latency, not transfer.
const MIN_BYTES: u64 = 8 << 10;

/// The function of a collective.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Function {
    /// None of the following.
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
    /// The function with this number in a record.
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

    /// Whether no member can leave before the last one has arrived: then the shortest duration is the transfer.
    pub const fn all_meet(self) -> bool {
        matches!(
            self,
            Function::AllReduce | Function::ReduceScatter | Function::AllGather
        )
    }

    /// Whether it is a message between two ranks, not a collective.
    pub const fn is_message(self) -> bool {
        matches!(self, Function::Send | Function::Receive)
    }
}

/// A collective was enqueued.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Collective {
    /// The communicator.
    pub comm: u64,
    /// Its number among those of its function in the communicator, as counted by NCCL: the same on all members. For a
    /// message, the peer's rank in the communicator.
    pub sequence: u64,
    /// The largest buffer of all ranks together, as nccl-tests counts.
    pub bytes: u64,
    /// When it was enqueued, CLOCK_MONOTONIC ns.
    pub enqueued_ns: u64,
    /// Its number in this process, modulo 2³²: [`Timed`] refers to it.
    pub ticket: u32,
    /// The current step according to the hook, modulo 2³²; 0: no hook, or none yet.
    pub step: u32,
    /// The function.
    pub function: Function,
    /// 0 unknown, 1 ring, 2 tree, 3 and 4 CollNet direct and chain, 5 and 6 NVLS and NVLS tree, 7 PAT.
    pub algorithm: u8,
    /// 0 unknown, 1 LL, 2 LL128, 3 Simple.
    pub protocol: u8,
    /// Channels that carry it; 0: not reported by NCCL.
    pub channels: u8,
    /// A [`Timed`] record of it follows.
    pub is_timed: bool,
}

impl Collective {
    /// Whether its GPU time can show which rank was late: all members meet in it, it is not just latency, and NCCL
    /// reports its channels.
    pub const fn is_fit(&self) -> bool {
        self.function.all_meet() && self.bytes >= MIN_BYTES && self.channels > 0
    }

    /// Whether it is a message whose wait matters, however short: it may contain the shape of another.
    pub const fn is_message(&self) -> bool {
        self.function.is_message() && self.bytes > 0 && self.channels > 0
    }

    /// The number of channels that its time is derived from; `None`: it is not timed. A message is over when any of
    /// them ends: NCCL up to 2.30 does not report all (<https://github.com/NVIDIA/nccl/issues/2056>).
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
    /// Start of the first channel, ns of the GPU's own clock (globaltimer): compare durations, never instants.
    pub start_ns: u64,
    /// Time from there to the end of the last channel; 0: abandoned, because some channels were not reported.
    pub duration_ns: u64,
    /// See [`Collective::ticket`].
    pub ticket: u32,
    /// Channels whose end was reported.
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
