//! The ledger: what the job's GPUs did with their time. What incidents lost is theirs to say; here is kept what no
//! incident tells, and that no second is counted twice.

mod long;

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

pub use self::long::Teller;
use self::long::{Late, Long};
use crate::detect::step::matrix::StepMatrix;
use crate::event::StepKind;
use crate::stats;
use crate::time::Time;

/// Ordinary steps that tell what is usual.
pub(crate) const USUAL: usize = 32;
/// Fewer tell nothing.
const ENOUGH: usize = 4;
/// This many times as long as usual a step is no ordinary one.
const LONG: f64 = 4.0;
/// One of at least so many seconds says nothing of the job's speed: it stood.
const STALL_S: f64 = 1.0;
/// Long steps that an incident may still take over: those that it needs to be sure, of several ranks.
const MAX_BOOKINGS: usize = 64;
/// A step is told later than this, and this many times as late as one takes, only where nothing was heard.
const LATE_S: f64 = 10.0;
const LATE: f64 = 10.0;
/// A group whose first record is one of these counts its steps from the beginning, whatever it has taken up: so does a
/// hook in a process that is new, which sees no record of its very first step.
const ANEW: u64 = 2;
/// So many of its first records may be missing.
const MISSED: u64 = 16;

/// How long the job stood still for silent ranks, which is an incident's to tell, seconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stood {
    /// In this step.
    pub here_s: f64,
    /// In one that is still to come.
    pub left_s: f64,
}

/// What a step took, what it would take were no rank slower than its peers, and what its ranks worked, a mean; seconds.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Took {
    pub all_s: f64,
    pub even_s: f64,
    pub work_s: f64,
}

impl Took {
    /// The same in a step of which only the time is known.
    pub fn in_step(self, all_s: f64) -> Took {
        let times = if self.all_s > 0.0 { all_s / self.all_s } else { 0.0 };
        Took {
            all_s,
            even_s: self.even_s * times,
            work_s: self.work_s * times,
        }
    }
}

/// Sums in rank-seconds.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Ledger {
    /// Up to the present size: since when, and how many there are.
    before: f64,
    since: Option<Time>,
    ranks: f64,
    /// Up to the end of the last step.
    accounted: f64,
    pub warm_up: f64,
    pub checkpoint: f64,
    /// Long steps that came back at a fixed distance, undeclared.
    pub pause: f64,
    pub restart: f64,
    /// Steps far longer than those before and after them, of which no incident tells.
    stall: f64,
    long: Long,
    /// Nothing was heard of what happened in them.
    unheard: f64,
    late: Late,
    /// The latest ordinary steps, seconds.
    usual: VecDeque<Took>,
    /// First steps of the epoch whose share of warm-up is not known yet, and their time.
    warming: (f64, f64),
    /// When the last step closed, the highest as the group counts, and its latest with a checkpoint.
    last: Option<Time>,
    highest: u64,
    saved: Option<u64>,
    /// Steps before this one were made before the restart, and what it lost in this epoch to those that were made
    /// again, seconds.
    made: u64,
    again_s: f64,
    restarted: bool,
    /// What the latest long steps were booked under, so that an incident can take over what it explains.
    booked: VecDeque<Booking>,
    /// Seconds of the step that comes next which an incident tells of.
    told_s: f64,
}

/// One long step.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Booking {
    step: u64,
    under: Overhead,
    rank_s: f64,
}

/// What a long step is booked under.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum Overhead {
    Checkpoint,
    Pause,
    Stall,
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
        self.again_s = 0.0;
        self.told_s = 0.0;
        self.booked.clear();
        self.restarted = self.last.is_some();
    }

    /// How much of a standstill a step of so many seconds may hold. What nobody saw of the first one was before it.
    pub fn room_s(&self, longest_s: f64) -> f64 {
        if self.is_first() {
            return f64::INFINITY;
        }
        (longest_s - self.usual_s().unwrap_or(0.0)).max(0.0)
    }

    /// Of the job, or after a restart.
    fn is_first(&self) -> bool {
        self.restarted || self.warming.0 == 0.0 && self.usual.is_empty()
    }

    /// A step that is far too long, by itself.
    pub fn is_stall(&self, matrix: &StepMatrix<'_>, steady: bool, stood: Stood) -> bool {
        let moved_s = matrix.dur_s - stood.here_s;
        let is_long = self.usual_s().is_some_and(|usual| moved_s > LONG * usual);
        let is_ordinary = steady && matrix.kind == StepKind::Train && !self.is_first();
        is_ordinary && is_long && moved_s >= STALL_S && self.long.is_rare()
    }

    /// Takes a step; what it took is `matrix`'s to say.
    pub fn row(&mut self, matrix: &StepMatrix<'_>, steady: bool, stood: Stood, teller: Teller, took: Took) {
        let is_first = self.is_first();
        let stood_s = stood.here_s;
        let began = self.last.replace(matrix.at).or(self.since);
        let total = self.total(matrix.at);
        let accounted = std::mem::replace(&mut self.accounted, total);
        if self.restarted {
            self.take_up(matrix.step);
        }
        let usual = self.usual_s();
        if let Some((began, usual)) = began.zip(usual).filter(|_| !self.restarted) {
            self.leap(matrix, began, usual, stood.left_s);
        }
        self.highest = self.highest.max(matrix.step);
        // What nobody declared may be an evaluation: nobody can go back to it.
        if matrix.kind == StepKind::Checkpoint {
            self.saved = Some(matrix.step);
        }
        if is_first {
            let idle = self.idle(matrix, accounted, stood_s);
            if self.restarted {
                self.restart += idle;
            } else {
                self.warm_up += idle;
            }
        }
        self.restarted = false;
        let told_s = std::mem::take(&mut self.told_s);
        let moved_s = (matrix.dur_s - stood_s - told_s).max(0.0);
        if matrix.step < self.made {
            // It was made before, and is made again; what it took too long incidents tell.
            let again_s = moved_s * teller.left_ratio();
            self.again_s += again_s;
            self.restart += again_s * self.ranks;
            return;
        }
        let ranks = self.ranks;
        let beyond = |usual: Option<f64>| usual.map_or(0.0, |usual| (moved_s - usual).max(0.0)) * ranks;
        match matrix.kind {
            StepKind::Train | StepKind::WarmUp if !steady => {
                self.warming.0 += 1.0;
                self.warming.1 += moved_s * teller.left_ratio();
            }
            StepKind::Train => {
                if let Some(usual) = usual {
                    // The usual step may not have followed yet what incidents tell.
                    let usual = usual / teller.left_ratio().max(0.01);
                    let more_s = if moved_s > LONG * usual {
                        moved_s - usual
                    } else {
                        0.0
                    };
                    // What is booked now was lost in the steps before, unless this one stalled by itself.
                    let first = matrix.step.saturating_sub(u64::from(self.long.row));
                    let stalled_s = self.long.step(more_s, teller);
                    self.book(first, Overhead::Stall, stalled_s * self.ranks);
                }
                if teller != Teller::Stall {
                    let all_s = matrix.dur_s - stood_s - told_s;
                    self.usual.push_back(Took {
                        all_s,
                        even_s: took.even_s.min(all_s),
                        work_s: took.work_s.min(all_s),
                    });
                }
                if self.usual.len() > USUAL {
                    self.usual.pop_front();
                }
                if self.warming.0 > 0.0 && self.usual.len() >= ENOUGH {
                    self.settle();
                }
            }
            StepKind::Checkpoint => self.book(matrix.step, Overhead::Checkpoint, beyond(usual)),
            StepKind::PeriodicPause => self.book(matrix.step, Overhead::Pause, beyond(usual)),
            // Until it comes back.
            StepKind::Outlier => self.book(matrix.step, Overhead::Stall, beyond(usual)),
            StepKind::WarmUp | StepKind::Evaluation => {}
        }
    }

    fn book(&mut self, step: u64, under: Overhead, rank_s: f64) {
        if rank_s <= 0.0 {
            return;
        }
        *self.overhead(under) += rank_s;
        self.booked.push_back(Booking { step, under, rank_s });
        if self.booked.len() > MAX_BOOKINGS {
            self.booked.pop_front();
        }
    }

    fn overhead(&mut self, under: Overhead) -> &mut f64 {
        match under {
            Overhead::Checkpoint => &mut self.checkpoint,
            Overhead::Pause => &mut self.pause,
            Overhead::Stall => &mut self.stall,
        }
    }

    /// Before a step is taken: an incident tells of so many seconds of it.
    pub fn report(&mut self, seconds: f64) {
        self.told_s += seconds;
    }

    /// An incident that was raised now tells of so many seconds of a long step before. What is left of a step that
    /// seemed to have stalled by itself is of a pause that comes back.
    pub fn take_over(&mut self, step: u64, seconds: f64) {
        let ranks = self.ranks;
        let Some(booking) = self.booked.iter_mut().find(|booking| booking.step == step) else {
            return;
        };
        let told = (seconds * ranks).min(booking.rank_s);
        booking.rank_s -= told;
        let (under, left) = (booking.under, booking.rank_s);
        if matches!(under, Overhead::Stall) {
            booking.under = Overhead::Pause;
            self.stall -= left;
            self.pause += left;
        }
        *self.overhead(under) -= told;
    }

    /// Before a step is taken: an incident that is raised in it tells of so many seconds of the steps after `start`,
    /// too.
    pub fn tell_late(&mut self, start: u64, step: u64, seconds: f64) {
        let steps = step.saturating_sub(start + 1).max(1) as f64;
        let again = self.made.min(step).saturating_sub(start + 1) as f64;
        let told_s = (seconds * (again / steps).min(1.0)).clamp(0.0, self.again_s);
        self.again_s -= told_s;
        self.restart -= told_s * self.ranks;
        // Those of a first warm-up are compared with what is usual beside the incident.
        if self.warming.0 > 0.0 && self.usual_s().is_some() {
            self.warming.1 -= (seconds - told_s).max(0.0);
        }
    }

    /// Rank-seconds from the last step, up to which so many were `accounted` for, or the first rank, to the beginning
    /// of this one; of groups of each size that there were meanwhile.
    fn idle(&self, matrix: &StepMatrix<'_>, accounted: f64, stood_s: f64) -> f64 {
        let began = Time(matrix.at.0.saturating_sub((matrix.dur_s * 1e9) as u64));
        // The job stood in the step; of one that nobody saw, before.
        let stood_before_s = (stood_s - matrix.dur_s).max(0.0);
        (self.total(began) - accounted - stood_before_s * self.ranks).max(0.0)
    }

    /// The first step after a restart: which of those that follow were made before. Numbers that go on say it
    /// themselves. Where they begin anew, it is what came after the last checkpoint, from which each further restart
    /// takes up, too; where none was seen, nothing is said to be lost of which that is not known.
    fn take_up(&mut self, step: u64) {
        // An attempt may have ended before it had got as far as the one before it.
        let furthest = self.highest.max(self.made.saturating_sub(1));
        // Nobody takes up what is far before the checkpoint, or the end: the first records are missing.
        let is_before = step <= MISSED && step * 2 < self.saved.unwrap_or(self.highest);
        if step > ANEW && !is_before {
            self.made = furthest + 1;
            return;
        }
        let again = self.saved.map_or(0, |saved| furthest.saturating_sub(saved));
        (self.made, self.highest) = (step.min(1) + again, step);
        self.saved = self.saved.and(Some(0));
    }

    /// Rank-seconds from the first rank on.
    pub fn total(&self, now: Time) -> f64 {
        let present = self.since.map_or(0.0, |since| now.since(since).as_secs_f64());
        self.before + present * self.ranks
    }

    /// Rank-seconds of which nothing can be said: those in which nothing was heard, and those since the last step
    /// ended, beyond an ordinary one and what the job `stood_s` still in them, before the step has ended.
    pub fn unsettled(&self, now: Time, stood_s: f64) -> f64 {
        let (Some(last), Some(usual)) = (self.last, self.usual_s()) else {
            return 0.0;
        };
        let open_s = (now.since(last).as_secs_f64() - usual - stood_s).max(0.0);
        self.unheard + open_s * self.ranks
    }

    /// Rank-seconds lost to steps that stalled, where a step would take this share of its time without incidents.
    pub fn stalled(&self, left_ratio: f64) -> f64 {
        let is_told = self.long.is_told(left_ratio);
        let pending_s = if is_told { 0.0 } else { self.long.more_s };
        self.stall + pending_s * self.ranks
    }

    /// From the end of the step that ended last: more time than steps have passed, but for a standstill that is still
    /// to come.
    fn leap(&mut self, matrix: &StepMatrix<'_>, began: Time, usual: f64, stood_s: f64) {
        let steps = matrix.step.saturating_sub(self.highest).max(1) as f64;
        let passed_s = (steps * usual).max(matrix.dur_s);
        let more_s = matrix.at.since(began).as_secs_f64() - passed_s;
        if more_s - stood_s >= LATE_S.max(LATE * usual) {
            self.unheard += (more_s - stood_s) * self.ranks;
            self.late = Late {
                owed_s: more_s - stood_s,
                ..Late::default()
            };
        } else {
            self.unheard -= self.late.step(-more_s) * self.ranks;
        }
    }

    /// The median of the latest ordinary steps, seconds.
    pub fn usual_s(&self) -> Option<f64> {
        self.middle(|step| step.all_s)
    }

    /// The same of what they would take were no rank slower than its peers.
    pub fn even_s(&self) -> Option<f64> {
        self.middle(|step| step.even_s)
    }

    /// The same of what their ranks worked, a mean over the ranks: no step is shorter.
    pub fn work_s(&self) -> Option<f64> {
        self.middle(|step| step.work_s)
    }

    fn middle(&self, of: impl Fn(&Took) -> f64) -> Option<f64> {
        let mut usual: Vec<f64> = self.usual.iter().map(of).collect();
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
