//! Result types. Fields with the names of nccl-tests' `-J` file have the same meaning.

use serde::{Deserialize, Serialize};

use crate::collective::{Collective, Plan};
use crate::dtype::Dtype;
use crate::transport::About;

/// Schema version of the JSON of [`Report`].
pub const SCHEMA_VERSION: u32 = 1;

/// A complete run of the bench.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The version of the schema, [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// Version of this program. For an imported file, it is the program that wrote the file.
    pub version: String,
    /// The transport.
    #[serde(flatten)]
    pub about: About,
    /// The operation.
    pub collective: Collective,
    /// The element type.
    #[serde(rename = "type")]
    pub dtype: Dtype,
    /// The ranks, in order.
    pub ranks: Vec<RankPlace>,
    /// One row per size, in order.
    pub results: Vec<Row>,
}

/// The location of a rank.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankPlace {
    /// The rank.
    pub rank: usize,
    /// The name of the rank's host.
    pub host: String,
    /// The rank's process ID. It is informational only.
    #[serde(default)]
    pub pid: u32,
    /// The rank's GPU, as the transport names it. It is empty if there is no GPU.
    #[serde(default)]
    pub device: String,
}

/// Results for one size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Bytes of the larger buffer of a rank.
    pub size: u64,
    /// Elements passed to the call.
    pub count: usize,
    /// The element type.
    #[serde(rename = "type")]
    pub dtype: Dtype,
    /// The reduction, which is `sum` or `none`.
    pub redop: String,
    /// The root, or -1 if there is none.
    pub root: i64,
    /// The timing out of place, if measured.
    pub out_of_place: Option<Timing>,
    /// The timing in place, if measured.
    pub in_place: Option<Timing>,
}

/// Timing of one size. Times are in microseconds, bandwidths in GB/s (1e9), as in nccl-tests.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Timing {
    /// Mean over iterations of the slowest rank's time.
    pub time: f64,
    /// `size` / `time`.
    pub alg_bw: f64,
    /// `alg_bw` × the collective's factor.
    pub bus_bw: f64,
    /// Number of wrong elements on all ranks, or `None` if the results were not verified.
    pub nwrong: Option<u64>,
    /// Median over iterations of the slowest rank's time. In an imported file, 0 means that it is not known.
    #[serde(default)]
    pub p50: f64,
    /// 99th percentile over iterations of the slowest rank's time.
    #[serde(default)]
    pub p99: f64,
    /// The rank with the largest median.
    #[serde(default)]
    pub slowest_rank: Option<usize>,
    /// Every rank's times, in rank order.
    #[serde(default)]
    pub ranks: Vec<RankTimes>,
}

/// One rank's times.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RankTimes {
    /// The rank.
    pub rank: usize,
    /// Time of each iteration, in microseconds.
    pub times: Vec<f64>,
    /// Number of wrong elements in this rank's output, or `None` if the output was not verified.
    #[serde(default)]
    pub nwrong: Option<u64>,
}

impl RankPlace {
    /// Returns the location of a rank on this host. The rank's number and the other fields are left at their defaults.
    pub fn here() -> RankPlace {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        RankPlace {
            host,
            ..RankPlace::default()
        }
    }
}

impl RankTimes {
    /// Returns the rank's median, in microseconds.
    pub fn median(&self) -> f64 {
        quantile(&sorted(&self.times), 0.5)
    }
}

impl Timing {
    /// Summarizes the measurements of all ranks for `plan`.
    pub fn new(plan: &Plan, ranks: Vec<RankTimes>) -> Timing {
        let iterations = ranks.iter().map(|rank| rank.times.len()).min().unwrap_or(0);
        let slowest = |i: usize| ranks.iter().map(|rank| rank.times[i]).fold(0.0, f64::max);
        let of_slowest: Vec<f64> = (0..iterations).map(slowest).collect();
        let time = of_slowest.iter().sum::<f64>() / iterations.max(1) as f64;
        let ordered = sorted(&of_slowest);
        let alg_bw = bandwidth(plan.bytes(), time);
        let wrong: Vec<u64> = ranks.iter().filter_map(|rank| rank.nwrong).collect();
        let slowest_rank = ranks
            .iter()
            .max_by(|a, b| a.median().total_cmp(&b.median()))
            .map(|rank| rank.rank);
        Timing {
            time,
            alg_bw,
            bus_bw: alg_bw * plan.collective.bus_factor(plan.ranks),
            nwrong: (wrong.len() == ranks.len()).then(|| wrong.iter().sum()),
            p50: quantile(&ordered, 0.5),
            p99: quantile(&ordered, 0.99),
            slowest_rank,
            ranks,
        }
    }

    /// Returns the bus bandwidth of the median iteration, in GB/s. Judgments use it because one late iteration does not
    /// affect it.
    pub fn median_bus_bw(&self, plan: &Plan) -> f64 {
        bandwidth(plan.bytes(), self.p50) * plan.collective.bus_factor(plan.ranks)
    }
}

/// Returns the bandwidth in GB/s for this many bytes in this many microseconds, or 0 if the time is 0.
fn bandwidth(bytes: u64, time: f64) -> f64 {
    if time > 0.0 {
        bytes as f64 / time / 1e3
    } else {
        0.0
    }
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values
}

/// Returns the nearest-rank quantile of sorted values, or 0 if there are none.
fn quantile(ordered: &[f64], q: f64) -> f64 {
    let at = (q * ordered.len() as f64).ceil() as usize;
    ordered.get(at.max(1) - 1).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(rank: usize, times: &[f64], nwrong: Option<u64>) -> RankTimes {
        RankTimes {
            rank,
            times: times.to_vec(),
            nwrong,
        }
    }

    #[test]
    fn the_slowest_rank_of_each_iteration_counts() {
        let plan = Plan::new(Collective::AllReduce, Dtype::F32, 8_000, 2).unwrap();
        let ranks = vec![
            times(0, &[1.0, 5.0, 2.0], Some(0)),
            times(1, &[3.0, 4.0, 3.0], Some(2)),
        ];
        let timing = Timing::new(&plan, ranks);
        assert!((timing.time - 11.0 / 3.0).abs() < 1e-9);
        assert_eq!((timing.p50, timing.p99), (3.0, 5.0));
        assert_eq!((timing.slowest_rank, timing.nwrong), (Some(1), Some(2)));
        assert!((timing.alg_bw - 8.0 / (11.0 / 3.0)).abs() < 1e-9);
        assert_eq!(timing.alg_bw, timing.bus_bw, "the factor of two ranks is one");
    }

    #[test]
    fn a_rank_that_did_not_verify_leaves_all_unverified() {
        let plan = Plan::new(Collective::AllReduce, Dtype::F32, 8, 2).unwrap();
        let timing = Timing::new(&plan, vec![times(0, &[1.0], Some(0)), times(1, &[1.0], None)]);
        assert_eq!(timing.nwrong, None);
    }
}
