//! Rows, which hold the samples of all ranks for one step. A row closes once no expected rank can add to it, or at its
//! deadline. Rows close in the order of their steps.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::waits::Stood;
use crate::event::{Signal, Step, StepKind};
use crate::id::Rank;
use crate::time::Time;

/// Maximum number of samples open at once. The number of open steps is limited too, but never to less than `MIN_OPEN`
/// or more than `MAX_OPEN`, whatever the number of ranks. Beyond these limits the oldest row closes as it is.
const MAX_SAMPLES: usize = 1 << 20;
const MIN_OPEN: usize = 64;
const MAX_OPEN: usize = 4096;
/// If a rank has reported this many later steps, its sample for this step was lost and is no longer expected.
const PASSED_BY: u64 = 3;

/// With more open steps than this, a row no longer waits for its collectives.
const HELD: usize = 4;

/// One rank's part of a row, in seconds.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Sample {
    /// Self-time, or `None` if only the wall time is known.
    pub self_s: Option<f64>,
    pub wait_s: f64,
    pub data_s: f64,
    /// Compute time, or `None` if the phases are not known.
    pub compute_s: Option<f64>,
    pub optimizer_s: f64,
    pub checkpoint_s: f64,
    pub gc_s: f64,
    pub dur_s: f64,
    /// Declared work: tokens, sum of squared lengths, and tokens routed to the rank's experts. Zero if not declared.
    pub work: [f64; 3],
    pub micro_batches: u16,
    /// Journal entry.
    pub entry: u64,
}

/// All samples of one step.
#[derive(Debug, Serialize, Deserialize)]
pub struct Row {
    pub step: u64,
    /// The kind of the step: the most special kind that any rank declared.
    pub kind: StepKind,
    /// Source of the self-times. S0 if there are none.
    pub signal: Signal,
    /// When the first sample arrived. In synchronous training all ranks end a step together, so this is the end of the
    /// step.
    pub opened: Time,
    /// When the row closed.
    pub closed_at: Time,
    /// Samples by rank number.
    samples: Vec<Option<Sample>>,
    filled: usize,
    /// Number of ranks that can no longer add to the row: those with a sample, and those far ahead.
    settled: usize,
}

impl Row {
    /// Returns the ranks that reported, in order.
    pub fn samples(&self) -> impl Iterator<Item = (Rank, &Sample)> {
        self.samples
            .iter()
            .zip(0..)
            .filter_map(|(sample, rank)| Some((Rank(rank), sample.as_ref()?)))
    }

    /// Returns the number of samples.
    pub fn len(&self) -> usize {
        self.filled
    }

    /// Returns true if any rank reported its phases.
    pub fn has_phases(&self) -> bool {
        self.signal == Signal::S2
    }

    /// Sets the self-time of ranks to the part of the step that they spent outside collectives.
    pub fn fill(&mut self, stood: impl Fn(Rank) -> Option<Stood>) {
        for (sample, rank) in self.samples.iter_mut().zip(0..) {
            let Some((sample, stood)) = sample.as_mut().zip(stood(Rank(rank))) else {
                continue;
            };
            let own_s = sample.dur_s - stood.exposed_s;
            if own_s > 0.0 {
                sample.self_s = Some(own_s);
                sample.wait_s = stood.exposed_s;
                self.signal = Signal::S1;
            }
        }
    }

    fn has(&self, rank: Rank) -> bool {
        self.samples.get(rank.0 as usize).is_some_and(Option::is_some)
    }

    fn put(&mut self, rank: Rank, sample: Sample) {
        let index = rank.0 as usize;
        if index >= self.samples.len() {
            self.samples.resize(index + 1, None);
        }
        self.samples[index] = Some(sample);
        self.filled += 1;
    }
}

impl Sample {
    fn of(step: &Step, entry: u64) -> Sample {
        let phases = step.phases.unwrap_or_default();
        let s = |ns: u64| ns as f64 / 1e9;
        Sample {
            self_s: step.self_time(),
            wait_s: s(phases.wait_ns),
            data_s: s(phases.data_ns),
            compute_s: step.phases.map(|phases| s(phases.compute_ns)),
            optimizer_s: s(phases.optimizer_ns),
            checkpoint_s: s(phases.checkpoint_ns),
            gc_s: s(phases.gc_ns),
            dur_s: s(step.dur_ns),
            work: [step.tokens, step.sum_sq, step.expert_tokens].map(|work| work as f64),
            micro_batches: step.micro_batches,
            entry,
        }
    }
}

/// Rows that are not closed yet.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Rows {
    open: VecDeque<Row>,
    latest: BTreeMap<Rank, u64>,
    /// Number of ranks that are still expected. It is set to zero once a row has waited for them in vain.
    absent: usize,
    /// Every step up to this one is closed.
    closed: Option<u64>,
    /// When the step of the last closed row ended.
    ended: Option<Time>,
    /// Number of samples that arrived after their row had closed.
    late: u64,
}

impl Rows {
    /// Drops everything, because a new group of ranks starts over.
    pub fn clear(&mut self) {
        *self = Rows {
            late: self.late,
            ended: self.ended,
            ..Rows::default()
        };
    }

    /// No longer expects ranks that have not arrived, because training is ending.
    pub fn expect_no_more(&mut self) {
        self.absent = 0;
    }

    /// No longer expects this rank.
    pub fn leave(&mut self, rank: Rank) {
        if let Some(latest) = self.latest.remove(&rank) {
            for row in &mut self.open {
                if row.has(rank) || latest >= row.step.saturating_add(PASSED_BY) {
                    row.settled -= 1;
                }
            }
        }
    }

    /// Expects this rank from now on, as one of `world_size`.
    pub fn join(&mut self, rank: Rank, world_size: u32) {
        if self.latest.is_empty() && self.open.is_empty() {
            self.absent = world_size as usize;
        }
        if let Entry::Vacant(new) = self.latest.entry(rank) {
            new.insert(0);
            self.absent = self.absent.saturating_sub(1);
            // The rank may have been absent for a while. Samples that it sent before still count.
            for row in self.open.iter_mut().filter(|row| row.has(rank)) {
                row.settled += 1;
            }
        }
    }

    /// Adds a sample of a rank that has joined. Samples of closed steps are ignored, and so are repeated samples of an
    /// open step.
    pub fn add(&mut self, at: Time, entry: u64, step: &Step) {
        let Some(latest) = self.latest.get_mut(&step.rank) else {
            return;
        };
        let before = *latest;
        *latest = before.max(step.step);
        if self.closed.is_some_and(|closed| step.step <= closed) {
            // A repeated sample does not count as late if the first one was in time.
            self.late += u64::from(step.step > before);
            return;
        }
        let now = *latest;
        for row in &mut self.open {
            let passes =
                before < row.step.saturating_add(PASSED_BY) && now >= row.step.saturating_add(PASSED_BY);
            if passes && !row.has(step.rank) {
                row.settled += 1;
            }
        }
        let place = self.place(at, step.step);
        let row = &mut self.open[place];
        row.kind = row.kind.max(step.kind);
        if row.has(step.rank) {
            return;
        }
        if now < row.step.saturating_add(PASSED_BY) {
            row.settled += 1;
        }
        let sample = Sample::of(step, entry);
        if sample.self_s.is_some() {
            row.signal = Signal::S2;
        }
        row.put(step.rank, sample);
    }

    /// Returns the index of a step's row. Opens the row if necessary.
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
                    signal: Signal::S0,
                    opened: at,
                    closed_at: at,
                    samples: Vec::with_capacity(self.latest.len()),
                    filled: 0,
                    settled,
                },
            );
        }
        place
    }

    /// Returns when the last compared step ended.
    pub fn ended(&self) -> Option<Time> {
        self.ended
    }

    /// Returns the number of samples that arrived too late to be compared.
    pub fn late(&self) -> u64 {
        self.late
    }

    /// Returns the oldest row if it is due, because it is complete, overdue by `patience`, or there are too many rows.
    /// If the reports on its collectives are incomplete (`are_in` returns false), the row waits for them, but only for
    /// some steps.
    pub fn take_due(&mut self, now: Time, patience: Duration, are_in: impl Fn(&Row) -> bool) -> Option<Row> {
        let row = self.open.front()?;
        let most = (MAX_SAMPLES / self.latest.len().max(1)).clamp(MIN_OPEN, MAX_OPEN);
        let overdue = row.opened + patience <= now;
        let complete = row.settled >= self.latest.len() + self.absent
            && (self.open.len() > HELD || row.has_phases() || are_in(row));
        if !(complete || overdue || self.open.len() > most) {
            return None;
        }
        if overdue {
            self.absent = 0;
        }
        let mut row = self.open.pop_front()?;
        row.closed_at = now;
        self.closed = Some(row.step);
        self.ended = Some(row.opened);
        Some(row)
    }

    /// Returns when the oldest row becomes overdue.
    pub fn deadline(&self, patience: Duration) -> Option<Time> {
        self.open.front().map(|row| row.opened + patience)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Phases;

    const PATIENCE: Duration = Duration::from_secs(3600);

    fn add(rows: &mut Rows, rank: u32, step: u64) {
        let step = Step {
            rank: Rank(rank),
            restart: 0,
            step,
            kind: StepKind::Train,
            dur_ns: 1_000_000,
            phases: Some(Phases::default()),
            micro_batches: 1,
            tokens: 0,
            signal: Signal::S2,
            sum_sq: 0,
            expert_tokens: 0,
        };
        rows.add(Time::ZERO, 0, &step);
    }

    #[test]
    fn a_rank_that_was_away_is_as_settled_as_before() {
        for away in [0, 1] {
            let mut rows = Rows::default();
            for rank in 0..2 {
                rows.join(Rank(rank), 2);
            }
            add(&mut rows, 0, 1);
            rows.leave(Rank(away));
            rows.join(Rank(away), 0);
            assert!(
                rows.take_due(Time::ZERO, PATIENCE, |_| true).is_none(),
                "rank 1 is to come"
            );
            add(&mut rows, 1, 1);
            let row = rows
                .take_due(Time::ZERO, PATIENCE, |_| true)
                .expect("all have reported");
            assert_eq!(row.len(), 2);
        }
    }

    #[test]
    fn a_rank_may_come_and_go_and_end() {
        let mut rows = Rows::default();
        for rank in 0..2 {
            rows.join(Rank(rank), 2);
        }
        add(&mut rows, 0, 1);
        for _ in 0..2 {
            rows.leave(Rank(0));
            rows.join(Rank(0), 0);
        }
        rows.leave(Rank(0));
        add(&mut rows, 1, 1);
        assert_eq!(
            rows.take_due(Time::ZERO, PATIENCE, |_| true).map(|row| row.len()),
            Some(2)
        );
    }
}
