//! Single collectives: told of a communicator only when, and for as long as, that is asked for.

use serde::{Deserialize, Serialize};

use crate::id::Rank;

/// See [`super::Event::Collectives`]: what one rank did in one communicator in one step, collective by collective. The
/// sums ([`super::Comm`]) of the same step follow it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Collectives {
    /// Global rank.
    pub rank: Rank,
    /// Its epoch.
    pub restart: u32,
    /// The step in which they ran.
    pub step: u64,
    /// The communicator.
    pub comm: u64,
    /// Those that all members meet in, in their order.
    pub each: Vec<Collective>,
    /// Those of the step that are not in `each`: their times were lost, or they were too many.
    pub left_out: u32,
}

/// Collectives of one communicator and step that are told one by one, at most.
pub const MOST_OF_STEP: usize = 1 << 10;

/// One collective; written as `[function, sequence, bytes, dur_ns]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(u8, u64, u64, u64)", into = "(u8, u64, u64, u64)")]
pub struct Collective {
    /// What it does: [`ALL_REDUCE`], [`REDUCE_SCATTER`], [`ALL_GATHER`].
    pub function: u8,
    /// Its number among those of its function in the communicator: the same on all members.
    pub sequence: u64,
    /// Bytes of payload.
    pub bytes: u64,
    /// Time in it, waiting for others and transfer together.
    pub dur_ns: u64,
}

impl From<(u8, u64, u64, u64)> for Collective {
    fn from((function, sequence, bytes, dur_ns): (u8, u64, u64, u64)) -> Collective {
        Collective {
            function,
            sequence,
            bytes,
            dur_ns,
        }
    }
}

impl From<Collective> for (u8, u64, u64, u64) {
    fn from(did: Collective) -> (u8, u64, u64, u64) {
        (did.function, did.sequence, did.bytes, did.dur_ns)
    }
}

/// All-reduce, as [`Collective::function`] and [`FunctionSum::function`] have it.
pub const ALL_REDUCE: u8 = 1;
/// Reduce-scatter.
pub const REDUCE_SCATTER: u8 = 2;
/// All-gather.
pub const ALL_GATHER: u8 = 3;

/// What one rank did by one function in one communicator and step; written as `[function, collectives, parts]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(u8, u32, Vec<OrderPart>)", into = "(u8, u32, Vec<OrderPart>)")]
pub struct FunctionSum {
    /// As [`Collective::function`].
    pub function: u8,
    /// How many.
    pub collectives: u32,
    /// All of them in their order, cut as [`part_sizes`] says: how lateness grows within the step.
    pub parts: Vec<OrderPart>,
}

/// Consecutive collectives of one function; written as `[begin_us, dur_us]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(u64, u64)", into = "(u64, u64)")]
pub struct OrderPart {
    /// When they began, a mean, counted from the begin of the first collective of the step in the communicator.
    pub begin_us: u64,
    /// Time in them, a sum.
    pub dur_us: u64,
}

impl OrderPart {
    /// When the last of them ended, were it one collective.
    pub fn end_us(&self) -> u64 {
        self.begin_us.saturating_add(self.dur_us)
    }
}

/// How many collectives each part of so many holds: the first one, up to a sixteenth, an eighth, a quarter and half of
/// them, the rest but one, and the last one. A rank that is behind is so by more with each collective until those that
/// wait for it begin late themselves: short parts at the beginning show by how much before that.
pub fn part_sizes(collectives: u32) -> impl Iterator<Item = u32> {
    let n = collectives;
    let ends = [
        1,
        n.div_ceil(16),
        n.div_ceil(8),
        n.div_ceil(4),
        n.div_ceil(2),
        n.saturating_sub(1),
        n,
    ];
    let mut before = 0;
    ends.into_iter().filter_map(move |end| {
        let size = end.min(n).saturating_sub(before);
        before += size;
        (size > 0).then_some(size)
    })
}

impl FunctionSum {
    /// Of collectives in their order: begin and duration of each, nanoseconds.
    pub fn of(function: u8, each: &[(u64, u64)]) -> FunctionSum {
        let collectives = u32::try_from(each.len()).unwrap_or(u32::MAX);
        let mut rest = each;
        let part = |size: u32| {
            let (these, others) = rest.split_at(rest.len().min(size as usize));
            rest = others;
            let sum = |of: fn(&(u64, u64)) -> u64| these.iter().map(of).fold(0, u64::saturating_add);
            OrderPart {
                begin_us: sum(|one| one.0) / u64::from(size) / 1000,
                dur_us: sum(|one| one.1) / 1000,
            }
        };
        FunctionSum {
            function,
            collectives,
            parts: part_sizes(collectives).map(part).collect(),
        }
    }
}

impl From<(u8, u32, Vec<OrderPart>)> for FunctionSum {
    fn from((function, collectives, parts): (u8, u32, Vec<OrderPart>)) -> FunctionSum {
        FunctionSum {
            function,
            collectives,
            parts,
        }
    }
}

impl From<FunctionSum> for (u8, u32, Vec<OrderPart>) {
    fn from(sum: FunctionSum) -> (u8, u32, Vec<OrderPart>) {
        (sum.function, sum.collectives, sum.parts)
    }
}

impl From<(u64, u64)> for OrderPart {
    fn from((begin_us, dur_us): (u64, u64)) -> OrderPart {
        OrderPart { begin_us, dur_us }
    }
}

impl From<OrderPart> for (u64, u64) {
    fn from(part: OrderPart) -> (u64, u64) {
        (part.begin_us, part.dur_us)
    }
}

/// That each collective of a communicator should be told, and for how long: what the detector asks of the sidecars.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Want {
    /// The communicator.
    pub comm: u64,
    /// The epoch.
    pub restart: u32,
    /// The last step of which they are told.
    pub until: u64,
}
