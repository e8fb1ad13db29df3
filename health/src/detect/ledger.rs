//! The ledger: what the job's GPUs did with their time. What incidents lost is theirs to say; here is kept what no
//! incident tells, and that no second is counted twice.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::board::Board;
use super::kinds::Sort;
use crate::event::StepKind;
use crate::stats;
use crate::time::Time;

/// Ordinary steps that tell what is usual.
pub(super) const USUAL: usize = 32;
/// Fewer tell nothing.
const ENOUGH: usize = 4;
/// This many times as long as usual a step is no ordinary one.
const LONG: f64 = 4.0;
/// More of them in a row are a slowness, which is an incident's to tell.
const ALONE: u32 = 2;
/// A step is told later than this, and this many times as late as one takes, only where nothing was heard.
const LATE_S: f64 = 10.0;
const LATE: f64 = 10.0;
/// A group whose first record is one of these counts its steps from the beginning, whatever it has taken up: so does a hook
/// in a process that is new, which sees no record of its very first step.
const ANEW: u64 = 2;

/// Sums in rank-seconds.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Ledger {
    /// Up to the present epoch, and its size and beginning.
    before: f64,
    ranks: f64,
    since: Option<Time>,
    pub warm_up: f64,
    pub checkpoint: f64,
    pub restart: f64,
    /// Steps far longer than those before and after them, of which no incident tells.
    pub stall: f64,
    /// Such steps until it is known what comes after them: how many, and what they took beyond ordinary ones, seconds.
    long: (u32, f64),
    /// Nothing was heard of what happened in them.
    unheard: f64,
    /// The latest ordinary steps, seconds.
    usual: VecDeque<f64>,
    /// First steps of the epoch whose share of warm-up is not known yet, and their time.
    warming: (f64, f64),
    /// When the last step closed, the highest as the group counts, and its latest with a checkpoint.
    last: Option<Time>,
    highest: u64,
    saved: Option<u64>,
    /// Steps before this one were made before the restart.
    made: u64,
    restarted: bool,
}

impl Ledger {
    /// A rank of a group of so many attached.
    pub fn attach(&mut self, at: Time, ranks: u32) {
        let ranks = f64::from(ranks);
        if self.ranks != ranks {
            self.before = self.total(at);
            self.ranks = ranks;
            self.since = Some(at);
        }
    }

    /// A new group of ranks begins.
    pub fn begin_epoch(&mut self) {
        self.settle();
        self.warming = (0.0, 0.0);
        self.made = 0;
        self.restarted = self.last.is_some();
    }

    /// Takes a step. `stood_s`: how long the job stood still for silent ranks in it, which is an incident's to tell; `is_told`:
    /// incidents that are open tell why it is slow.
    pub fn row(&mut self, board: &Board<'_>, steady: bool, sort: Sort, stood_s: f64, is_told: bool) {
        let began = self.last.replace(board.at).or(self.since);
        if self.restarted {
            self.take_up(board.step);
        }
        let usual = self.usual_s();
        if let Some((began, usual)) = began.zip(usual).filter(|_| !self.restarted) {
            self.leap(board, began, usual);
        }
        self.highest = self.highest.max(board.step);
        if board.kind == StepKind::Checkpoint {
            self.saved = Some(board.step);
        }
        if let Some(began) =
            began.filter(|_| self.restarted || self.warming.0 == 0.0 && self.usual.is_empty())
        {
            // From the last step, or the first rank, to the beginning of this one.
            let idle_s = (board.at.since(began).as_secs_f64() - board.dur_s).max(0.0);
            // The job stood in the step; of one that nobody saw, before.
            let idle = (idle_s - (stood_s - board.dur_s).max(0.0)).max(0.0) * self.ranks;
            if self.restarted {
                self.restart += idle;
            } else {
                self.warm_up += idle;
            }
        }
        self.restarted = false;
        let moved_s = (board.dur_s - stood_s).max(0.0);
        if board.step < self.made {
            // It was made before, and is made again.
            self.restart += moved_s * self.ranks;
            return;
        }
        match board.kind {
            StepKind::Train | StepKind::WarmUp if !steady => {
                self.warming.0 += 1.0;
                self.warming.1 += moved_s;
            }
            StepKind::Train => {
                if let Some(usual) = usual.filter(|_| !is_told) {
                    self.look(moved_s, usual);
                }
                self.usual.push_back(board.dur_s);
                if self.usual.len() > USUAL {
                    self.usual.pop_front();
                }
                if self.warming.0 > 0.0 && self.usual.len() >= ENOUGH {
                    self.settle();
                }
            }
            StepKind::Checkpoint if sort != Sort::Apart => {
                let more = usual.map_or(0.0, |usual| moved_s - usual);
                self.checkpoint += more.max(0.0) * self.ranks;
            }
            _ => {}
        }
    }

    /// The first step after a restart: which of those that follow were made before. Numbers that go on say it themselves.
    /// Where they begin anew, it is what came after the last checkpoint; where none was seen, nothing is said to be lost
    /// of which that is not known.
    fn take_up(&mut self, step: u64) {
        if step > ANEW {
            self.made = self.highest + 1;
            return;
        }
        let again = self.saved.take().map_or(0, |saved| self.highest - saved);
        (self.made, self.highest) = (step + again, step);
    }

    /// Rank-seconds from the first rank on.
    pub fn total(&self, now: Time) -> f64 {
        let present = self.since.map_or(0.0, |since| now.since(since).as_secs_f64());
        self.before + present * self.ranks
    }

    /// Rank-seconds of which nothing can be said: those in which nothing was heard, and those since the last step ended,
    /// beyond an ordinary one and what the job `stood_s` still in them, before the step has ended.
    pub fn unsettled(&self, now: Time, stood_s: f64) -> f64 {
        let (Some(last), Some(usual)) = (self.last, self.usual_s()) else {
            return 0.0;
        };
        let open_s = (now.since(last).as_secs_f64() - usual - stood_s).max(0.0);
        self.unheard + open_s * self.ranks
    }

    /// From the end of the step that ended last: more time than steps have passed.
    fn leap(&mut self, board: &Board<'_>, began: Time, usual: f64) {
        let steps = board.step.saturating_sub(self.highest).max(1) as f64;
        let unheard_s = board.at.since(began).as_secs_f64() - (steps * usual).max(board.dur_s);
        if unheard_s >= LATE_S.max(LATE * usual) {
            self.unheard += unheard_s * self.ranks;
        }
    }

    fn look(&mut self, moved_s: f64, usual: f64) {
        if moved_s > LONG * usual {
            self.long = (self.long.0 + 1, self.long.1 + moved_s - usual);
            return;
        }
        let (steps, more_s) = std::mem::take(&mut self.long);
        if steps <= ALONE {
            self.stall += more_s * self.ranks;
        }
    }

    /// The median of the latest ordinary steps, seconds.
    pub fn usual_s(&self) -> Option<f64> {
        let mut usual: Vec<f64> = self.usual.iter().copied().collect();
        if usual.len() < ENOUGH {
            return None;
        }
        stats::median(&mut usual)
    }

    /// What the first steps took beyond ordinary ones.
    fn settle(&mut self) {
        let (steps, took_s) = std::mem::take(&mut self.warming);
        if let Some(usual) = self.usual_s() {
            self.warm_up += (took_s - steps * usual).max(0.0) * self.ranks;
        }
    }
}
