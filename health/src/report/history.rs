//! A compact history of a job, for a heat map at its end. Its size is bounded for any number of steps and ranks.

use serde::{Deserialize, Serialize};

use crate::codec::base64;
use crate::event::{Signal, StepKind};
use crate::report::step_snapshot::{self, ABSENT, StepSnapshot};

/// Maximum number of columns. When there are this many, pairs of columns are merged.
pub const MOST_COLUMNS: usize = 192;
/// Maximum number of rows. If there are more ranks, several share a row.
pub const MOST_ROWS: usize = 128;

/// The history of a job's compared steps. A column may contain several steps.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct History {
    /// Number of ranks per row. A row shows the slowest of its ranks.
    pub ranks_a_row: u32,
    /// True if cells compare self-times. Otherwise, they compare whole steps, because self-times were not known.
    pub is_self: bool,
    /// Columns in order.
    pub columns: Vec<Column>,
}

/// Consecutive steps.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Column {
    /// The last step.
    pub step: u64,
    /// Number of compared steps.
    pub steps: u64,
    /// How many of these steps were not ordinary: checkpoints, evaluations, warm-up, periodic pauses, outliers.
    pub apart: u64,
    /// The restart count of the job.
    pub restart: u32,
    /// When the last step was complete, seconds since the first frame.
    pub at_s: f64,
    /// Mean over the ordinary steps of the median of the ranks' step times, seconds. `None` if no step was ordinary.
    pub p50_s: Option<f64>,
    /// The longest step of any rank, seconds.
    pub max_s: f64,
    /// Means over ranks and steps of data, compute, wait, optimizer and checkpoint, seconds. `None` if no rank reported
    /// phases.
    pub phases_s: Option<[f64; 5]>,
    /// One cell per row, encoded as in [`step_snapshot::cell`]. It is the mean over the steps, for the slowest of the
    /// row's ranks. Encoded as Base64 in JSON.
    #[serde(with = "base64::field")]
    pub cells: Vec<u8>,
}

/// Builds a [`History`] while steps are compared.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Record {
    told: History,
    /// Number of steps per column.
    each: u64,
    open: Open,
}

/// A column that is not full, with a cell for every rank.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Open {
    column: Column,
    phased: u64,
    /// For each rank, the sum and number of its cells.
    cells: Vec<(u32, u32)>,
}

impl Record {
    /// Adds a step.
    pub fn take(&mut self, seen: &StepSnapshot) {
        let column = &self.open.column;
        if column.steps > 0 && column.restart != seen.restart {
            self.close();
        }
        self.told.is_self = seen.signal != Signal::S0;
        self.open.take(seen);
        if self.open.column.steps >= self.each.max(1) {
            self.close();
        }
    }

    /// Returns the history so far.
    pub fn told(&self) -> History {
        let mut told = self.told.clone();
        if self.open.column.steps > 0 {
            told.push(self.open.clone());
        }
        for column in &mut told.columns {
            column.round();
        }
        told
    }

    fn close(&mut self) {
        self.told.push(std::mem::take(&mut self.open));
        if self.told.columns.len() < MOST_COLUMNS {
            return;
        }
        self.each = self.each.max(1) * 2;
        let pairs = self.told.columns.chunks(2);
        self.told.columns = pairs
            .map(|pair| match pair {
                [one, two] => one.with(two),
                other => other[0].clone(),
            })
            .collect();
    }
}

impl Open {
    fn take(&mut self, seen: &StepSnapshot) {
        let column = &mut self.column;
        (column.step, column.restart, column.at_s) = (seen.step, seen.restart, seen.at_s);
        column.steps += 1;
        column.max_s = column.max_s.max(seen.max_s);
        if seen.kind == StepKind::Train {
            let before = (column.steps - 1 - column.apart) as f64;
            let mean = column.p50_s.unwrap_or(0.0);
            column.p50_s = Some((mean * before + seen.p50_s) / (before + 1.0));
        } else {
            column.apart += 1;
        }
        if let Some(phases) = seen.phases_s {
            let before = self.phased as f64;
            let means = column.phases_s.get_or_insert([0.0; 5]);
            for (mean, own) in means.iter_mut().zip(phases) {
                *mean = (*mean * before + own) / (before + 1.0);
            }
            self.phased += 1;
        }
        if self.cells.len() < seen.cells.len() {
            self.cells.resize(seen.cells.len(), (0, 0));
        }
        for ((sum, count), cell) in self.cells.iter_mut().zip(&seen.cells) {
            if *cell != ABSENT {
                *sum = sum.saturating_add(u32::from(*cell));
                *count += 1;
            }
        }
    }

    /// Returns a rank's cell. The rank counts as absent if it was absent in at least half of the steps.
    fn cell(&self, (sum, count): (u32, u32)) -> u8 {
        if u64::from(count) * 2 <= self.column.steps {
            return ABSENT;
        }
        // The mean is between 1 and 255, because all values in the sum are.
        ((sum + count / 2) / count) as u8
    }
}

impl History {
    fn push(&mut self, mut open: Open) {
        let bin = self.ranks_a_row.max(1);
        let wanted = fitting(bin, open.cells.len());
        for _ in 0..(wanted / bin).ilog2() {
            for column in &mut self.columns {
                column.cells = rows(&column.cells, 2);
            }
        }
        self.ranks_a_row = wanted;
        let cells: Vec<u8> = open.cells.iter().map(|cell| open.cell(*cell)).collect();
        open.column.cells = rows(&cells, wanted as usize);
        self.columns.push(open.column);
    }
}

/// Returns the smallest power of two, from `bin` on, with which this many ranks fit into the rows.
fn fitting(mut bin: u32, ranks: usize) -> u32 {
    while ranks > MOST_ROWS * bin as usize {
        bin *= 2;
    }
    bin
}

/// Returns the worst cell of each group of `bin` cells.
fn rows(cells: &[u8], bin: usize) -> Vec<u8> {
    let worst = |row: &[u8]| {
        row.iter()
            .copied()
            .max_by_key(|cell| step_snapshot::badness(*cell))
    };
    cells.chunks(bin).filter_map(worst).collect()
}

impl Column {
    /// Merges two columns. Means are weighted by the number of steps.
    fn with(&self, later: &Column) -> Column {
        let mean = |one: f64, weight: u64, two: f64, other: u64| {
            (one * weight as f64 + two * other as f64) / (weight + other).max(1) as f64
        };
        let ordinary = |column: &Column| column.steps - column.apart;
        let p50_s = match (self.p50_s, later.p50_s) {
            (Some(one), Some(two)) => Some(mean(one, ordinary(self), two, ordinary(later))),
            (one, two) => one.or(two),
        };
        let phases_s = match (self.phases_s, later.phases_s) {
            (Some(one), Some(two)) => Some(std::array::from_fn(|part| {
                mean(one[part], self.steps, two[part], later.steps)
            })),
            (one, two) => one.or(two),
        };
        let cell = |row: usize| match (self.cells.get(row), later.cells.get(row)) {
            (Some(&ABSENT), Some(&two)) if later.steps > self.steps => two,
            (Some(&one), Some(&ABSENT)) if self.steps > later.steps => one,
            (Some(&ABSENT), Some(_)) | (Some(_), Some(&ABSENT)) => ABSENT,
            (Some(&one), Some(&two)) => {
                mean(f64::from(one), self.steps, f64::from(two), later.steps).round() as u8
            }
            (one, two) => one.or(two).copied().unwrap_or(ABSENT),
        };
        let rows = self.cells.len().max(later.cells.len());
        Column {
            steps: self.steps + later.steps,
            apart: self.apart + later.apart,
            p50_s,
            max_s: self.max_s.max(later.max_s),
            phases_s,
            cells: (0..rows).map(cell).collect(),
            ..*later
        }
    }

    /// Rounds to microseconds, the precision of the measurement.
    fn round(&mut self) {
        let micros = |seconds: &mut f64| *seconds = (*seconds * 1e6).round() / 1e6;
        micros(&mut self.at_s);
        micros(&mut self.max_s);
        self.p50_s.iter_mut().for_each(micros);
        self.phases_s.iter_mut().flatten().for_each(micros);
    }
}

#[cfg(test)]
#[path = "history_tests.rs"]
mod tests;
