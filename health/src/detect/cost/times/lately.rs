//! The latest compared steps, for display. They are kept only on request, and no rule uses them.

use std::collections::VecDeque;

use crate::detect::step::matrix::StepMatrix;
use crate::detect::step::rows::{Row, Sample};
use crate::event::Signal;
use crate::report::step_snapshot::{ABSENT, StepSnapshot, cell};

/// The latest steps that have not been fetched.
#[derive(Debug, Default)]
pub struct Lately {
    most: usize,
    steps: VecDeque<StepSnapshot>,
}

impl Lately {
    /// Keeps at most this many steps from now on. A new step replaces the oldest.
    pub fn keep(&mut self, most: usize) {
        self.most = most;
    }

    /// Removes the oldest step.
    pub fn poll(&mut self) -> Option<StepSnapshot> {
        self.steps.pop_front()
    }

    /// Takes a step.
    pub fn take(&mut self, seen: StepSnapshot) {
        if self.most == 0 {
            return;
        }
        if self.steps.len() >= self.most {
            self.steps.pop_front();
        }
        self.steps.push_back(seen);
    }
}

/// Creates the snapshot of a closed row with its ranks compared. `about` is the time, epoch and number of ranks.
/// Returns `None` if no rank reported.
pub fn seen(row: &Row, matrix: &StepMatrix<'_>, about: (f64, u32, u32)) -> Option<StepSnapshot> {
    if row.len() == 0 {
        return None;
    }
    let (at_s, restart, ranks) = about;
    let mut durations: Vec<f64> = row.samples().map(|(_, sample)| sample.dur_s).collect();
    let p99_s = nth(&mut durations, 0.99);
    let p50_s = nth(&mut durations, 0.5);
    let max_s = durations.iter().copied().fold(0.0, f64::max);
    let mut cells = vec![ABSENT; ranks as usize];
    if matrix.is_empty() {
        for (rank, sample) in row.samples() {
            put(&mut cells, rank.0, (sample.dur_s / p50_s).ln());
        }
    }
    for rank_step in &matrix.rank_steps {
        put(&mut cells, rank_step.rank.0, rank_step.x);
    }
    Some(StepSnapshot {
        step: row.step,
        restart,
        kind: matrix.kind,
        signal: if matrix.is_empty() {
            Signal::S0
        } else {
            matrix.signal
        },
        at_s,
        p50_s,
        p99_s,
        max_s,
        phases_s: phases(row),
        cells,
    })
}

fn put(cells: &mut [u8], rank: u32, x: f64) {
    if let Some(place) = cells.get_mut(rank as usize) {
        *place = cell(x);
    }
}

fn nth(values: &mut [f64], share: f64) -> f64 {
    let index = ((values.len() as f64 * share).ceil() as usize).clamp(1, values.len()) - 1;
    *values.select_nth_unstable_by(index, f64::total_cmp).1
}

/// Returns the means of the phases over the ranks that reported them.
fn phases(row: &Row) -> Option<[f64; 5]> {
    let mut sums = [0.0; 5];
    let mut told = 0_u32;
    for (_, sample) in row.samples() {
        let Sample {
            data_s,
            compute_s: Some(compute_s),
            wait_s,
            optimizer_s,
            checkpoint_s,
            ..
        } = sample
        else {
            continue;
        };
        told += 1;
        let own = [*data_s, *compute_s, *wait_s, *optimizer_s, *checkpoint_s];
        sums.iter_mut().zip(own).for_each(|(sum, own)| *sum += own);
    }
    (told > 0).then(|| sums.map(|sum| sum / f64::from(told)))
}
