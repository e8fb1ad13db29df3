//! Single collectives. They are sent for a communicator only on request, up to the requested step.

use serde::{Deserialize, Serialize};

use crate::id::Rank;

/// See [`super::Event::Collectives`]. Lists each collective of one rank in one communicator in one step. The sums
/// ([`super::Comm`]) of the same step are sent after this event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Collectives {
    /// Global rank.
    pub rank: Rank,
    /// Restart count of the rank's epoch.
    pub restart: u32,
    /// The step in which they ran.
    pub step: u64,
    /// The communicator.
    pub comm: u64,
    /// The collectives in which all members take part, in order.
    pub each: Vec<Collective>,
    /// Number of collectives of the step that are missing in `each` because their times were lost or because there were
    /// too many.
    pub left_out: u32,
}

/// Most collectives of one communicator and step that are sent individually.
pub const MOST_OF_STEP: usize = 1 << 10;

/// One collective; written as `[function, sequence, bytes, dur_ns]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(u8, u64, u64, u64)", into = "(u8, u64, u64, u64)")]
pub struct Collective {
    /// The function: [`ALL_REDUCE`], [`REDUCE_SCATTER`], [`ALL_GATHER`].
    pub function: u8,
    /// Its sequence number among the collectives of this function in the communicator: the same on all members.
    pub sequence: u64,
    /// Bytes of payload.
    pub bytes: u64,
    /// Time in it: waiting for peers plus transfer.
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

/// All-reduce, in [`Collective::function`] and [`FunctionSum::function`].
pub const ALL_REDUCE: u8 = 1;
/// Reduce-scatter.
pub const REDUCE_SCATTER: u8 = 2;
/// All-gather.
pub const ALL_GATHER: u8 = 3;

/// One function's collectives of one rank, communicator and step; written as `[function, collectives, parts]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(u8, u32, Vec<OrderPart>)", into = "(u8, u32, Vec<OrderPart>)")]
pub struct FunctionSum {
    /// The function, numbered as in [`Collective::function`].
    pub function: u8,
    /// Number of collectives.
    pub collectives: u32,
    /// All of them in order, divided as in [`part_sizes`]. They show how lateness grows within the step.
    pub parts: Vec<OrderPart>,
}

/// Consecutive collectives of one function; written as `[begin_us, dur_us]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(u64, u64)", into = "(u64, u64)")]
pub struct OrderPart {
    /// Mean start time, relative to the start of the communicator's first collective in the step.
    pub begin_us: u64,
    /// Total time in them.
    pub dur_us: u64,
}

impl OrderPart {
    /// Returns the end time that the part would have if it were one collective.
    pub fn end_us(&self) -> u64 {
        self.begin_us.saturating_add(self.dur_us)
    }
}

/// Returns the sizes of the parts into which this many collectives are divided. The parts are the first collective;
/// those up to a sixteenth, an eighth, a quarter and half of the collectives; the others except the last; and the last
/// one. With each collective, a slow rank falls further behind, until the ranks that wait for it also start late. Short
/// parts at the beginning show the delay before that happens.
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
    /// Sums collectives in order, from the start and duration of each, nanoseconds.
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

/// A request from the detector to sidecars to send each collective of a communicator up to a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Want {
    /// The communicator.
    pub comm: u64,
    /// Restart count of the job's epoch.
    pub restart: u32,
    /// The last step to send.
    pub until: u64,
}
