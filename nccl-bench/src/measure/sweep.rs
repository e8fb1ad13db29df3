//! Times plans one after another on all ranks.

use std::time::Duration;

use super::{RankPlace, RankTimes, Report, Row, SCHEMA_VERSION, Timing};
use crate::collective::{Collective, Plan};
use crate::dtype::Dtype;
use crate::transport::{Deadline, Transport, TransportError};

/// Numbers of iterations, and the time limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rounds {
    /// Timed iterations.
    pub iterations: u32,
    /// Number of warm-up iterations, which precede the timed ones and are not timed.
    pub warm_ups: u32,
    /// Number of verified iterations, which follow the timed ones. With 0, no result is verified.
    pub checks: u32,
    /// True if all ranks synchronize before each iteration.
    pub together: bool,
    /// Time limit for all iterations at one size.
    pub limit: Duration,
}

impl Default for Rounds {
    fn default() -> Rounds {
        Rounds {
            iterations: 20,
            warm_ups: 5,
            checks: 1,
            together: false,
            limit: Duration::from_secs(60),
        }
    }
}

/// Times `plan` on all ranks. Only rank 0 gets the result.
pub fn time(
    transport: &mut dyn Transport,
    plan: &Plan,
    rounds: &Rounds,
) -> Result<Option<Timing>, TransportError> {
    let how = if plan.in_place { "in place" } else { "out of place" };
    let phase = format!("{} of {} bytes {how}", plan.collective, plan.bytes());
    let deadline = Deadline::new(phase, rounds.limit);
    transport.prepare(plan, &deadline)?;
    transport.run(rounds.warm_ups, &deadline)?;
    let mut times = Vec::new();
    for _ in 0..if rounds.together { rounds.iterations } else { 1 } {
        transport.barrier(&deadline)?;
        times.extend(transport.run(if rounds.together { 1 } else { rounds.iterations }, &deadline)?);
    }
    let mut nwrong = None;
    for _ in 0..rounds.checks {
        nwrong = Some(nwrong.unwrap_or(0) + transport.verify(&deadline)?);
    }
    let times = times.iter().map(|time| time.as_secs_f64() * 1e6).collect();
    let mine = RankTimes {
        rank: transport.rank(),
        times,
        nwrong,
    };
    let gathered = transport.gather(mine, &deadline)?;
    Ok(gathered.map(|ranks| Timing::new(plan, ranks)))
}

/// What to measure, and at which sizes.
#[derive(Clone, Debug)]
pub struct Sweep {
    /// The operation.
    pub collective: Collective,
    /// The element type.
    pub dtype: Dtype,
    /// Out-of-place plans, in order. Each also runs in place if that is possible and requested.
    pub plans: Vec<Plan>,
    /// True if plans are also measured in place.
    pub in_place: bool,
    /// The iterations of each plan.
    pub rounds: Rounds,
}

/// Progress of a sweep, reported on rank 0.
#[derive(Clone, Copy, Debug)]
pub enum Seen<'a> {
    /// All ranks are connected. The report has no results yet.
    Began(&'a Report),
    /// A timing is complete. Another timing of this size may follow.
    Timed(&'a Row),
    /// A size is complete.
    Done(&'a Row),
}

impl Sweep {
    /// Returns the number of timings.
    pub fn timings(&self) -> usize {
        self.plans.len()
            * if self.in_place && self.collective.in_place() {
                2
            } else {
                1
            }
    }

    /// Runs all plans on all ranks. Rank 0 gets the report, and `Seen` updates during the run.
    pub fn run(
        &self,
        transport: &mut dyn Transport,
        mut seen: impl FnMut(Seen<'_>),
    ) -> Result<Option<Report>, TransportError> {
        let deadline = Deadline::new("roll call", self.rounds.limit);
        let place = RankPlace {
            rank: transport.rank(),
            pid: std::process::id(),
            ..RankPlace::here()
        };
        let mut report = transport.places(place, &deadline)?.map(|ranks| Report {
            schema_version: SCHEMA_VERSION,
            version: concat!("paceline ", env!("CARGO_PKG_VERSION")).to_owned(),
            about: transport.about(),
            collective: self.collective,
            dtype: self.dtype,
            ranks,
            results: Vec::new(),
        });
        if let Some(report) = &report {
            seen(Seen::Began(report));
        }
        for plan in &self.plans {
            let mut row = Row {
                size: plan.bytes(),
                count: plan.count,
                dtype: plan.dtype,
                redop: plan.collective.redop().to_owned(),
                root: plan.root_column(),
                out_of_place: None,
                in_place: None,
            };
            row.out_of_place = time(transport, plan, &self.rounds)?;
            seen(Seen::Timed(&row));
            if self.in_place && self.collective.in_place() {
                row.in_place = time(transport, &plan.in_place(), &self.rounds)?;
                seen(Seen::Timed(&row));
            }
            if let Some(report) = &mut report {
                seen(Seen::Done(&row));
                report.results.push(row);
            }
        }
        // The transport's description may have changed during the run.
        Ok(report.map(|report| Report {
            about: transport.about(),
            ..report
        }))
    }
}
