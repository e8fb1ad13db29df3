//! The latest steady steps of all ranks, column by column. They are kept so that a change that a test dates back can be
//! reported and priced.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::matrix::{RoleLevel, StepMatrix};
use crate::policy::bounds;
use crate::stats;
use crate::time::Time;

/// Number of steps kept. Each takes 20 bytes per rank.
const KEPT: usize = bounds::JOB_STEPS;
/// Number of steps whose times are kept. Older ones are thinned out.
const TIMES: usize = 2048;

/// Fewer steps than this do not define what is usual.
const USUAL: usize = 16;

/// Marks a rank without a sample.
const NONE: f32 = f32::NAN;

/// One step by rank number, in seconds. NaN stands for a rank without a sample.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Kept {
    pub step: u64,
    pub at: Time,
    pub entries: (u64, u64),
    pub dur_s: f64,
    /// Number of steps that this one represents: itself, and those just before it that have no self-times.
    #[serde(default = "one")]
    pub steps: u32,
    pub micro_batches: u16,
    pub x: Vec<f32>,
    pub self_s: Vec<f32>,
    pub wait_s: Vec<f32>,
    pub data_s: Vec<f32>,
    pub gc_s: Vec<f32>,
    pub roles: Vec<RoleLevel>,
}

fn one() -> u32 {
    1
}

/// The kept steps, oldest first.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct History {
    rows: VecDeque<Kept>,
    /// Number of steps without self-times since the last kept step.
    #[serde(default)]
    unmeasured: u32,
    /// The step before the first steady one, or `None` during warm-up.
    steady_from: Option<u64>,
    times: Vec<(u64, Time)>,
}

impl Kept {
    fn clear(&mut self, ranks: usize) {
        for column in [
            &mut self.x,
            &mut self.self_s,
            &mut self.wait_s,
            &mut self.data_s,
            &mut self.gc_s,
        ] {
            column.clear();
            column.resize(ranks, NONE);
        }
        self.roles.clear();
    }
}

impl History {
    /// Clears everything.
    pub fn clear(&mut self) {
        *self = History::default();
    }

    /// Counts a step that has no self-times.
    pub fn pass(&mut self) {
        self.unmeasured = self.unmeasured.saturating_add(1);
    }

    /// Keeps a step.
    pub fn push(&mut self, matrix: &StepMatrix<'_>) {
        let ranks = matrix
            .rank_steps
            .last()
            .map_or(0, |rank_step| rank_step.rank.0 as usize + 1);
        let mut kept = if self.rows.len() == KEPT {
            self.rows.pop_front().unwrap_or_default()
        } else {
            Kept::default()
        };
        kept.clear(ranks);
        kept.step = matrix.step;
        kept.at = matrix.at;
        kept.entries = matrix.entries;
        kept.dur_s = matrix.dur_s;
        kept.steps = 1 + std::mem::take(&mut self.unmeasured);
        kept.micro_batches = matrix.micro_batches;
        kept.roles.extend_from_slice(&matrix.roles);
        for rank_step in &matrix.rank_steps {
            let index = rank_step.rank.0 as usize;
            kept.x[index] = rank_step.x as f32;
            kept.self_s[index] = rank_step.self_s as f32;
            kept.wait_s[index] = rank_step.sample.wait_s as f32;
            kept.data_s[index] = rank_step.sample.data_s as f32;
            kept.gc_s[index] = rank_step.sample.gc_s as f32;
        }
        self.rows.push_back(kept);
        self.times.push((matrix.step, matrix.at));
        if self.times.len() > TIMES {
            let mut place = 0;
            let recent = self.times.len() - TIMES / 2;
            self.times.retain(|_| {
                place += 1;
                place > recent || place % 2 == 1
            });
        }
    }

    /// Records that the last `rows` steps and all later ones are steady.
    pub fn settle(&mut self, rows: usize) {
        let place = self.rows.len().checked_sub(rows + 1);
        let before = place
            .and_then(|place| self.rows.get(place))
            .map_or(0, |row| row.step);
        self.steady_from.get_or_insert(before);
    }

    /// Returns the kept steps after `step`, oldest first.
    pub fn since(&self, step: u64) -> impl DoubleEndedIterator<Item = &Kept> + Clone {
        let first = self.rows.partition_point(|row| row.step <= step);
        self.rows.range(first..)
    }

    /// Returns the kept steady steps after `step`, oldest first.
    pub fn steady_since(&self, step: u64) -> impl Iterator<Item = &Kept> {
        self.since(self.steady_from.map_or(u64::MAX, |steady| steady.max(step)))
    }

    /// Returns the mean duration of the kept steady steps up to `step` in seconds, or `None` if there are too few.
    pub fn usual_s(&self, step: u64) -> Option<f64> {
        let before = self.latest(KEPT).take_while(|kept| kept.step <= step);
        let before: Vec<f64> = before.map(|kept| kept.dur_s).collect();
        (before.len() >= USUAL).then(|| stats::mean(&before))
    }

    /// Returns the latest steady steps, at most `count`, oldest first.
    pub fn latest(&self, count: usize) -> impl DoubleEndedIterator<Item = &Kept> + Clone {
        let first = self
            .rows
            .partition_point(|row| Some(row.step) <= self.steady_from);
        self.rows
            .range(first.max(self.rows.len().saturating_sub(count))..)
    }

    /// Returns when `step` closed, as precisely as is kept.
    pub fn time_of(&self, step: u64) -> Option<Time> {
        let after = self.times.partition_point(|(known, _)| *known <= step);
        let place = after.saturating_sub(1);
        self.times.get(place).map(|(_, at)| *at)
    }
}
