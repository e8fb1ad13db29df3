//! Durations of steps and of their parts. The job has one histogram for each part; every rank has a compact tally.

mod histogram;
mod lately;
mod tally;

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use self::lately::Lately;
use self::tally::{Buckets, Tally};
use crate::detect::step::matrix::StepMatrix;
use crate::detect::step::rows::{Row, Sample};
use crate::event::StepKind;
use crate::id::Rank;
use crate::report::history::{History, Record};
use crate::report::{Part, PartTimes, RankTimes, Times as Told, Usual};

/// Maximum plausible time: an hour, in microseconds. Longer times are reduced to it.
const MOST: u64 = 3_600_000_000;
/// With more ranks than this, the report contains only the step time and self-time of each.
const ALL_PARTS: usize = 512;

/// Times of ordinary steps. Times of checkpoints are included wherever one was written.
#[derive(Debug, Serialize, Deserialize)]
pub struct Times {
    /// The job's times, by [`Part`]. They are kept across restarts; those of the ranks are not, because rank numbers
    /// change.
    job: Vec<Spread>,
    /// Tallies by rank number.
    ranks: Vec<Option<Box<Tally>>>,
    /// All steps, condensed.
    record: Record,
    #[serde(skip)]
    desk: Buckets,
    /// The latest steps for display. They are not part of the state.
    #[serde(skip)]
    pub lately: Lately,
}

impl Default for Times {
    fn default() -> Times {
        Times {
            job: Part::ALL.iter().map(|_| Spread::new()).collect(),
            ranks: Vec::new(),
            record: Record::default(),
            desk: Buckets::default(),
            lately: Lately::default(),
        }
    }
}

impl Times {
    /// Drops the times of the ranks, because the ranks of a new group start their own counts.
    pub fn clear_ranks(&mut self) {
        self.ranks.clear();
    }

    /// Takes a closed row and its final kind.
    pub fn row(&mut self, row: &Row, kind: StepKind) {
        for (rank, sample) in row.samples() {
            self.one(rank, sample, kind);
        }
    }

    /// Takes a closed row with its ranks compared. `about` is the time, epoch and number of ranks.
    pub fn see(&mut self, row: &Row, matrix: &StepMatrix<'_>, about: (f64, u32, u32)) {
        if let Some(seen) = lately::seen(row, matrix, about) {
            self.record.take(&seen);
            self.lately.take(seen);
        }
    }

    /// Returns all steps so far, condensed.
    pub fn history(&self) -> Option<History> {
        Some(self.record.told()).filter(|told| !told.columns.is_empty())
    }

    fn one(&mut self, rank: Rank, sample: &Sample, kind: StepKind) {
        let micros = micros(sample, kind);
        if micros.iter().all(Option::is_none) {
            return;
        }
        for (spread, micros) in self.job.iter_mut().zip(micros) {
            spread.take(micros);
        }
        let index = rank.0 as usize;
        if index >= self.ranks.len() {
            self.ranks.resize_with(index + 1, || None);
        }
        let tally = self.ranks[index].get_or_insert_with(|| Box::new(Tally::of(rank)));
        tally.take(micros, &mut self.desk);
    }

    /// Returns the times so far.
    pub fn told(&self) -> Told {
        let parts = Part::ALL.iter().zip(&self.job);
        let parts = parts.filter_map(|(part, spread)| spread.told(*part)).collect();
        let known = self.ranks.iter().flatten().count();
        let of_rank = if known > ALL_PARTS {
            &Part::ALL[..2]
        } else {
            &Part::ALL[..]
        };
        let mut desk = Buckets::default();
        let ranks = self.ranks.iter().zip(0..).filter_map(|(tally, rank)| {
            let tally = tally.as_ref()?;
            let mut parts = BTreeMap::new();
            let mut steps = 0;
            for part in of_rank {
                let told = tally.quantiles(*part as usize, [0.5, 0.99], &mut desk);
                if let Some((samples, [p50_s, p99_s])) = told {
                    steps = if *part == Part::Step { samples } else { steps };
                    parts.insert(*part, Usual { p50_s, p99_s });
                }
            }
            Some(RankTimes {
                rank: Rank(rank),
                steps,
                parts,
            })
        });
        Told {
            parts,
            ranks: ranks.collect(),
        }
    }
}

/// Returns the parts of a sample that count, by [`Part`], in microseconds.
fn micros(sample: &Sample, kind: StepKind) -> [Option<u64>; Part::ALL.len()] {
    let ordinary = |seconds: Option<f64>| seconds.filter(|_| kind == StepKind::Train);
    let known = |seconds: f64| ordinary(sample.compute_s.map(|_| seconds));
    let parts = [
        ordinary(Some(sample.dur_s)),
        ordinary(sample.self_s),
        known(sample.data_s),
        ordinary(sample.compute_s),
        ordinary(sample.self_s.map(|_| sample.wait_s)),
        known(sample.optimizer_s),
        (sample.checkpoint_s > 0.0).then_some(sample.checkpoint_s),
        known(sample.gc_s),
    ];
    parts.map(|seconds| seconds.map(|seconds| ((seconds * 1e6).round() as u64).min(MOST)))
}

/// The times of one part over all ranks, with three significant digits, up to an hour.
#[derive(Debug, Serialize, Deserialize)]
struct Spread {
    #[serde(with = "histogram")]
    micros: Histogram<u64>,
    sum: u64,
    /// The longest time, exact to the microsecond.
    longest: u64,
}

impl Spread {
    fn new() -> Spread {
        Spread {
            micros: histogram::empty(),
            sum: 0,
            longest: 0,
        }
    }

    fn take(&mut self, micros: Option<u64>) {
        let Some(micros) = micros else { return };
        // The result is ignored, because the histogram grows as needed up to an hour.
        let _ = self.micros.record(micros);
        self.sum = self.sum.saturating_add(micros);
        self.longest = self.longest.max(micros);
    }

    fn told(&self, part: Part) -> Option<PartTimes> {
        let quantile = |quantile| {
            let value = self.micros.value_at_quantile(quantile);
            // The value is the middle of the bucket.
            self.micros.median_equivalent(value).min(self.longest) as f64 / 1e6
        };
        (!self.micros.is_empty()).then(|| PartTimes {
            part,
            samples: self.micros.len(),
            sum_s: self.sum as f64 / 1e6,
            p50_s: quantile(0.5),
            p90_s: quantile(0.9),
            p99_s: quantile(0.99),
            max_s: self.longest as f64 / 1e6,
        })
    }
}

#[cfg(test)]
#[path = "times_tests.rs"]
mod tests;
