//! An all-reduce in several passes, with a size that fits the link's speed; and its result.

use std::time::Duration;

use paceline_health::preflight::{Metric, Place, Sample};
use serde::{Deserialize, Serialize};

use crate::collective::{Collective, Plan};
use crate::dtype::Dtype;
use crate::measure::{RankTimes, Timing};
use crate::transport::{Deadline, Transport, TransportError};

/// Passes: their spread shows the uncertainty of the result.
const PASSES: u32 = 5;
/// The first size: fast enough even on a slow link.
const FIRST_BYTES: u64 = 256 << 10;
/// Largest verified size: verifying more would take a host longer than the measurement.
const CHECKED_BYTES: u64 = 4 << 20;
/// The element type.
const DTYPE: Dtype = Dtype::F32;

/// Size of the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Effort {
    /// Largest message, bytes.
    pub(super) bytes: u64,
    /// Approximate total duration of all passes.
    pub(super) pass: Duration,
}

/// Bus bandwidth on rank 0.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Busbw {
    conditions: String,
    value: f64,
    spread: f64,
    passes: u32,
    bytes: u64,
    /// The rail, if it is about one.
    pub(super) rail: Option<u32>,
}

impl Busbw {
    pub(super) fn sample(self, place: Place, metric: Metric, round: u32) -> Sample {
        Sample {
            place,
            metric,
            conditions: self.conditions.into(),
            rail: self.rail,
            round,
            value: self.value,
            spread: self.spread,
            passes: self.passes,
            bytes: self.bytes,
        }
    }
}

/// The conditions under which results are comparable.
pub(in crate::preflight) fn conditions(transport: &str, ranks: usize, nccl: Option<&str>) -> String {
    let nccl = nccl.map_or(String::new(), |version| format!(", nccl {version}"));
    format!("{transport} {DTYPE} {ranks} ranks{nccl}")
}

/// The data of an all-reduce on rank 0: every rank's times, pass by pass.
pub(super) struct Gathered {
    plan: Plan,
    /// Number of iterations of each pass.
    passes: Vec<usize>,
    ranks: Vec<RankTimes>,
    transport: String,
    nccl: Option<String>,
}

/// All-reduce among `ranks`: all ranks of the transport, or several subsets at once.
pub(super) fn all_reduce(
    transport: &mut dyn Transport,
    ranks: usize,
    effort: Effort,
    deadline: &Deadline,
) -> Result<Option<Gathered>, TransportError> {
    let plan = |bytes: u64| {
        let planned = Plan::new(Collective::AllReduce, DTYPE, bytes, ranks);
        planned.map_err(|error| TransportError::Unsupported {
            transport: "all-reduce",
            what: error.to_string(),
        })
    };
    let (first, checked, large) = (
        plan(FIRST_BYTES.min(effort.bytes))?,
        plan(CHECKED_BYTES.min(effort.bytes))?,
        plan(effort.bytes)?,
    );
    transport.prepare(&first, deadline)?;
    transport.run(1, deadline)?;
    let taken = slowest(transport, deadline)?;
    // A pass has several messages, and none is longer than its share.
    let pass = effort.pass / PASSES;
    let room = pass.as_secs_f64() / 2.0 / taken.as_secs_f64().max(1e-9);
    let mut plan = first;
    while plan.count < large.count && (plan.count as f64) * 2.0 <= first.count as f64 * room {
        plan.count = (plan.count * 2).min(large.count);
    }
    let checked = if checked.count < plan.count { checked } else { plan };
    transport.prepare(&checked, deadline)?;
    let wrong = transport.verify(deadline)?;
    let wrong = transport.agree(wrong, deadline)?;
    if wrong > 0 {
        return Err(TransportError::Garbage {
            phase: deadline.phase().to_owned(),
            peer: transport.rank(),
            what: format!("sums of which {wrong} are wrong"),
        });
    }
    if checked != plan {
        transport.prepare(&plan, deadline)?;
        transport.run(1, deadline)?;
    }
    let taken = slowest(transport, deadline)?;
    let iterations = (pass.as_secs_f64() / taken.as_secs_f64().max(1e-6)).clamp(1.0, 2000.0) as u32;
    let mut passes: Vec<Vec<f64>> = Vec::new();
    let share = deadline.remaining().unwrap_or_default() / 2;
    for pass in 0..PASSES {
        // A machine that becomes busier makes fewer passes; all ranks agree on it.
        let is_late = deadline.remaining().is_none_or(|left| left < share);
        if transport.agree(u64::from(is_late && pass > 0), deadline)? > 0 {
            break;
        }
        let times = transport.run(iterations, deadline)?;
        passes.push(times.iter().map(|time| time.as_secs_f64() * 1e6).collect());
    }
    let mine = RankTimes {
        rank: transport.rank(),
        times: passes.concat(),
        nwrong: Some(0),
    };
    let gathered = transport.gather(mine, deadline)?;
    Ok(gathered.map(|ranks| {
        let mut about = transport.about();
        Gathered {
            plan,
            passes: passes.iter().map(Vec::len).collect(),
            ranks,
            transport: about.transport,
            nccl: about.details.remove("nccl"),
        }
    }))
}

/// Duration of one iteration on the slowest rank.
fn slowest(transport: &mut dyn Transport, deadline: &Deadline) -> Result<Duration, TransportError> {
    transport.barrier(deadline)?;
    let mine = transport.run(2, deadline)?.into_iter().max().unwrap_or_default();
    let nanoseconds = u64::try_from(mine.as_nanos()).unwrap_or(u64::MAX);
    Ok(Duration::from_nanos(transport.agree(nanoseconds, deadline)?))
}

impl Gathered {
    /// The result of the ranks selected by `is_of`, which made one all-reduce.
    pub(super) fn busbw(&self, is_of: impl Fn(usize) -> bool, rail: Option<u32>) -> Busbw {
        let ranks: Vec<&RankTimes> = self.ranks.iter().filter(|rank| is_of(rank.rank)).collect();
        // Computed for each pass separately: the spread of the passes is the uncertainty of the result.
        let of_pass = |pass: usize| {
            let from: usize = self.passes[..pass].iter().sum();
            let to = from + self.passes[pass];
            let part = |rank: &&RankTimes| RankTimes {
                times: rank.times.get(from..to).unwrap_or_default().to_vec(),
                ..(*rank).clone()
            };
            Timing::new(&self.plan, ranks.iter().map(part).collect()).bus_bw
        };
        let mut values: Vec<f64> = (0..self.passes.len()).map(of_pass).collect();
        let value = paceline_health::stats::median(&mut values).unwrap_or(0.0);
        let sigma = paceline_health::stats::robust_sigma(&mut values).unwrap_or(0.0);
        let of_rail = rail.map_or(String::new(), |rail| format!(", rail {rail}"));
        Busbw {
            conditions: conditions(&self.transport, self.plan.ranks, self.nccl.as_deref()) + &of_rail,
            value,
            spread: if value > 0.0 { sigma / value } else { 0.0 },
            passes: u32::try_from(self.passes.len()).unwrap_or(PASSES),
            bytes: self.plan.bytes(),
            rail,
        }
    }

    /// The result of all ranks.
    pub(super) fn of_all(&self) -> Busbw {
        self.busbw(|_| true, None)
    }
}
