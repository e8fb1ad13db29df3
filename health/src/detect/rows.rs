//! Rows: the samples of all ranks for one step, put together. A row closes when nobody who is still expected can add
//! to it, or at its deadline; rows close in the order of their steps.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use crate::event::{Step, StepKind};
use crate::id::Rank;
use crate::time::Time;

/// Samples that may be open at once, and steps whatever the number of ranks. Beyond, the oldest row closes as it is.
const MAX_SAMPLES: usize = 1 << 20;
const MIN_OPEN: usize = 64;
const MAX_OPEN: usize = 4096;
/// A rank that has reported this many steps more will not report this one: its sample was lost.
const PASSED_BY: u64 = 3;

/// One rank's part of a row. Seconds.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// `None`: only the wall time is known.
    pub self_s: Option<f64>,
    pub wait_s: f64,
    pub dur_s: f64,
    /// Journal entry.
    pub entry: u64,
}

/// All samples of one step.
#[derive(Debug)]
pub struct Row {
    pub step: u64,
    /// The kind of the step: that of the rank with the most special one.
    pub kind: StepKind,
    opened: Time,
    /// By rank.
    pub samples: BTreeMap<Rank, Sample>,
    /// Ranks that cannot add to it any more: with a sample, or far ahead.
    settled: usize,
}

/// Rows that are not closed yet.
#[derive(Debug, Default)]
pub struct Rows {
    open: VecDeque<Row>,
    latest: BTreeMap<Rank, u64>,
    /// Ranks that are to come; none are awaited once a row has waited for them in vain.
    absent: usize,
    /// Every step up to this one is closed.
    closed: Option<u64>,
    /// Samples that came after their row had closed.
    late: u64,
}

impl Rows {
    /// Forgets everything: a new group of ranks counts anew.
    pub fn clear(&mut self) {
        *self = Rows {
            late: self.late,
            ..Rows::default()
        };
    }

    /// Ranks that have not come are not awaited any more: training is ending.
    pub fn expect_no_more(&mut self) {
        self.absent = 0;
    }

    /// A rank that is not awaited any more.
    pub fn leave(&mut self, rank: Rank) {
        if let Some(latest) = self.latest.remove(&rank) {
            for row in &mut self.open {
                if row.samples.contains_key(&rank) || latest >= row.step.saturating_add(PASSED_BY) {
                    row.settled -= 1;
                }
            }
        }
    }

    /// A rank that is awaited from now on, one of `world_size`.
    pub fn join(&mut self, rank: Rank, world_size: u32) {
        if self.latest.is_empty() && self.open.is_empty() {
            self.absent = world_size as usize;
        }
        if let Entry::Vacant(new) = self.latest.entry(rank) {
            new.insert(0);
            self.absent = self.absent.saturating_sub(1);
        }
    }

    /// Adds a sample of a rank that has joined. Samples of closed steps and second ones of an open step are ignored.
    pub fn add(&mut self, at: Time, entry: u64, step: &Step) {
        let Some(latest) = self.latest.get_mut(&step.rank) else {
            return;
        };
        let before = *latest;
        *latest = before.max(step.step);
        if self.closed.is_some_and(|closed| step.step <= closed) {
            // A second copy of what was there in time is not late.
            self.late += u64::from(step.step > before);
            return;
        }
        let now = *latest;
        for row in &mut self.open {
            let passes =
                before < row.step.saturating_add(PASSED_BY) && now >= row.step.saturating_add(PASSED_BY);
            if passes && !row.samples.contains_key(&step.rank) {
                row.settled += 1;
            }
        }
        let place = self.place(at, step.step);
        let row = &mut self.open[place];
        row.kind = row.kind.max(step.kind);
        if row.samples.contains_key(&step.rank) {
            return;
        }
        if now < row.step.saturating_add(PASSED_BY) {
            row.settled += 1;
        }
        let wait_s = step.phases.map_or(0.0, |phases| phases.wait_ns as f64 / 1e9);
        let dur_s = step.dur_ns as f64 / 1e9;
        row.samples.insert(
            step.rank,
            Sample {
                self_s: step.self_time(),
                wait_s,
                dur_s,
                entry,
            },
        );
    }

    /// The place of a step's row, which is opened if it was not.
    fn place(&mut self, at: Time, step: u64) -> usize {
        let place = self.open.partition_point(|row| row.step < step);
        if self.open.get(place).is_none_or(|row| row.step != step) {
            let settled = self
                .latest
                .values()
                .filter(|latest| **latest >= step.saturating_add(PASSED_BY))
                .count();
            let kind = StepKind::Train;
            self.open.insert(
                place,
                Row {
                    step,
                    kind,
                    opened: at,
                    samples: BTreeMap::new(),
                    settled,
                },
            );
        }
        place
    }

    /// Samples that came too late to be compared.
    pub fn late(&self) -> u64 {
        self.late
    }

    /// The oldest row, if it is due: complete, overdue by `patience`, or pushed out.
    pub fn take_due(&mut self, now: Time, patience: Duration) -> Option<Row> {
        let row = self.open.front()?;
        let most = (MAX_SAMPLES / self.latest.len().max(1)).clamp(MIN_OPEN, MAX_OPEN);
        let overdue = row.opened + patience <= now;
        let complete = row.settled >= self.latest.len() + self.absent;
        if !(complete || overdue || self.open.len() > most) {
            return None;
        }
        if overdue {
            self.absent = 0;
        }
        let row = self.open.pop_front()?;
        self.closed = Some(row.step);
        Some(row)
    }

    /// When the oldest row is overdue.
    pub fn deadline(&self, patience: Duration) -> Option<Time> {
        self.open.front().map(|row| row.opened + patience)
    }
}
