//! Measures an all-reduce in several passes, with a size that fits the link's speed.

use std::time::Duration;

use paceline_health::preflight::{Metric, Place, Sample};
use serde::{Deserialize, Serialize};

use crate::collective::{Collective, Plan};
use crate::dtype::Dtype;
use crate::measure::{RankTimes, Timing};
use crate::transport::{Deadline, Transport, TransportError};

/// Number of passes. The spread of the passes shows the uncertainty of the result.
const PASSES: u32 = 5;
/// Size of the first message. Even a slow link transfers it quickly.
const FIRST_BYTES: u64 = 256 << 10;
/// Limit of the verified size. Verifying more would take a host longer than the measurement.
const CHECKED_BYTES: u64 = 4 << 20;
/// The element type.
const DTYPE: Dtype = Dtype::F32;

/// The size of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Effort {
    /// Largest message, in bytes.
    pub(super) bytes: u64,
    /// Approximate total duration of all passes.
    pub(super) pass: Duration,
}

/// The bus bandwidth, as measured on rank 0.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Busbw {
    conditions: String,
    value: f64,
    spread: f64,
    passes: u32,
    bytes: u64,
    /// The rail, if the bandwidth is that of a single rail.
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

/// Returns the conditions. Only results with the same conditions are compared.
pub(in crate::preflight) fn conditions(transport: &str, ranks: usize, nccl: Option<&str>) -> String {
    let nccl = nccl.map_or(String::new(), |version| format!(", nccl {version}"));
    format!("{transport} {DTYPE} {ranks} ranks{nccl}")
}

/// The data of an all-reduce on rank 0, which has every rank's times, pass by pass.
pub(super) struct Gathered {
    plan: Plan,
    /// Number of iterations of each pass.
    passes: Vec<usize>,
    ranks: Vec<RankTimes>,
    transport: String,
    nccl: Option<String>,
}

/// Runs an all-reduce among `ranks`. They are all ranks of the transport, or those of each of several subsets that run
/// at the same time.
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
    // Choose the size so that a pass has several messages and no message takes longer than its share of the time.
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
        // On a machine that has become busier, fewer passes are made. All ranks agree on this.
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

/// Returns the duration of one iteration on the slowest rank.
fn slowest(transport: &mut dyn Transport, deadline: &Deadline) -> Result<Duration, TransportError> {
    transport.barrier(deadline)?;
    let mine = transport.run(2, deadline)?.into_iter().max().unwrap_or_default();
    let nanoseconds = u64::try_from(mine.as_nanos()).unwrap_or(u64::MAX);
    Ok(Duration::from_nanos(transport.agree(nanoseconds, deadline)?))
}

impl Gathered {
    /// Returns the result of the ranks selected by `is_of`, which took part in one all-reduce.
    pub(super) fn busbw(&self, is_of: impl Fn(usize) -> bool, rail: Option<u32>) -> Busbw {
        let ranks: Vec<&RankTimes> = self.ranks.iter().filter(|rank| is_of(rank.rank)).collect();
        // The value is computed for each pass separately, because the spread of the passes is the uncertainty of the
        // result.
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

    /// Returns the result of all ranks.
    pub(super) fn of_all(&self) -> Busbw {
        self.busbw(|_| true, None)
    }
}
