//! The ledger records how the job's GPUs spent their time. Incidents account for their own losses. The ledger keeps the
//! rest, and counts no second twice.

mod long;

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

pub use self::long::Teller;
use self::long::{Late, Long};
use crate::detect::step::matrix::StepMatrix;
use crate::event::StepKind;
use crate::stats;
use crate::time::Time;

/// Number of ordinary steps that define the usual step.
pub(crate) const USUAL: usize = 32;
/// Fewer ordinary steps than this do not define the usual step.
const ENOUGH: usize = 4;
/// A step that is longer than the usual one by this factor is not ordinary.
const LONG: f64 = 4.0;
/// Minimum duration of a stall in seconds. A stalled step is not used to judge the job's speed.
const STALL_S: f64 = 1.0;
/// Maximum number of long steps that an incident can still take over. This is enough to confirm incidents on several
/// ranks.
const MAX_BOOKINGS: usize = 64;
/// If a step arrives later than both limits (seconds, and number of usual steps), reports were missing before it.
const LATE_S: f64 = 10.0;
const LATE: f64 = 10.0;
/// If the first record of a group has at most this step number, the group counts its steps from the start, whatever it
/// resumed from. The limit is above 1 because a hook in a new process has no record of its very first step.
const ANEW: u64 = 2;
/// Maximum number of a group's first records that may be missing.
const MISSED: u64 = 16;

/// Seconds that the job stood still because of silent ranks. An incident accounts for this time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stood {
    /// Standstill in this step.
    pub here_s: f64,
    /// Standstill in a later step.
    pub left_s: f64,
}

/// A step's duration, its duration if no rank were slower than its peers, and its ranks' mean work; seconds.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Took {
    pub all_s: f64,
    pub even_s: f64,
    pub work_s: f64,
}

impl Took {
    /// Scales these durations to a step of which only the duration `all_s` is known.
    pub fn in_step(self, all_s: f64) -> Took {
        let times = if self.all_s > 0.0 { all_s / self.all_s } else { 0.0 };
        Took {
            all_s,
            even_s: self.even_s * times,
            work_s: self.work_s * times,
        }
    }
}

/// The sums in rank-seconds of how the GPUs spent their time.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Ledger {
    /// Rank-seconds before the job had its current size, when that size began, and its number of ranks.
    before: f64,
    since: Option<Time>,
    ranks: f64,
    /// Total rank-seconds at the end of the last step.
    accounted: f64,
    pub warm_up: f64,
    pub checkpoint: f64,
    /// Long steps that were not declared and recurred at a fixed interval.
    pub pause: f64,
    pub restart: f64,
    /// Steps far longer than those before and after them, for which no incident accounts.
    stall: f64,
    long: Long,
    /// Time without reports.
    unheard: f64,
    late: Late,
    /// The latest ordinary steps, seconds.
    usual: VecDeque<Took>,
    /// Number and duration of the epoch's first steps, whose share of warm-up is not known yet.
    warming: (f64, f64),
    /// When the last step closed, the group's highest step number, and the group's latest step with a checkpoint.
    last: Option<Time>,
    highest: u64,
    saved: Option<u64>,
    /// Steps below `made` were completed before the restart. `again_s` is the time lost in this epoch to repeating
    /// them, in seconds.
    made: u64,
    again_s: f64,
    restarted: bool,
    /// How the latest long steps were booked, so that an incident can take over what it explains.
    booked: VecDeque<Booking>,
    /// Seconds of the next step for which an incident accounts.
    told_s: f64,
}

/// One long step, as it was booked.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Booking {
    step: u64,
    under: Overhead,
    rank_s: f64,
}

/// How a long step is booked.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum Overhead {
    Checkpoint,
    Pause,
    Stall,
}

impl Ledger {
    /// Records that a rank attached, which declares a job of `ranks` ranks.
    pub fn attach(&mut self, at: Time, ranks: u32) {
        let ranks = f64::from(ranks);
        if self.ranks != ranks {
            self.before = self.total(at);
            self.ranks = ranks;
            self.since = Some(at);
        }
    }

    /// Starts the account of a new group of ranks.
    pub fn begin_epoch(&mut self) {
        self.settle();
        self.warming = (0.0, 0.0);
        self.again_s = 0.0;
        self.told_s = 0.0;
        self.booked.clear();
        self.restarted = self.last.is_some();
    }

    /// Returns how much standstill fits a step of this length. First steps take all: what exceeds them came before.
    pub fn room_s(&self, longest_s: f64) -> f64 {
        if self.is_first() {
            return f64::INFINITY;
        }
        (longest_s - self.usual_s().unwrap_or(0.0)).max(0.0)
    }

    /// Returns true if the next step is the job's first, or the first after a restart.
    fn is_first(&self) -> bool {
        self.restarted || self.warming.0 == 0.0 && self.usual.is_empty()
    }

    /// Returns true if a step is an isolated stall, far longer than the usual step.
    pub fn is_stall(&self, matrix: &StepMatrix<'_>, steady: bool, stood: Stood) -> bool {
        let moved_s = matrix.dur_s - stood.here_s;
        let is_long = self.usual_s().is_some_and(|usual| moved_s > LONG * usual);
        let is_ordinary = steady && matrix.kind == StepKind::Train && !self.is_first();
        is_ordinary && is_long && moved_s >= STALL_S && self.long.is_rare()
    }

    /// Books a step. Its duration is in `matrix`.
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
        // Only declared checkpoints count, because an undeclared pause may be an evaluation, from which no job can
        // resume.
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
            // This step repeats an earlier one. Incidents account for part of its time.
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
                    // The usual step may not include the slowdown by the incidents yet.
                    let usual = usual / teller.left_ratio().max(0.01);
                    let more_s = if moved_s > LONG * usual {
                        moved_s - usual
                    } else {
                        0.0
                    };
                    // The excess that is booked now was lost in the preceding long steps, unless this step is an
                    // isolated stall.
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
            // An outlier is booked as a stall until it recurs.
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

    /// Records that an incident accounts for this many seconds of the next step. Call before `row`.
    pub fn report(&mut self, seconds: f64) {
        self.told_s += seconds;
    }

    /// Moves this many seconds of an earlier long step to an incident that was raised now. If the step was booked as an
    /// isolated stall, the rest of it is moved to recurring pauses.
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

    /// Call before `row`: an incident raised in this step also accounts for `seconds` of the steps after `start`.
    pub fn tell_late(&mut self, start: u64, step: u64, seconds: f64) {
        let steps = step.saturating_sub(start + 1).max(1) as f64;
        let again = self.made.min(step).saturating_sub(start + 1) as f64;
        let told_s = (seconds * (again / steps).min(1.0)).clamp(0.0, self.again_s);
        self.again_s -= told_s;
        self.restart -= told_s * self.ranks;
        // In the first warm-up there is no usual step yet, and it will include the incident: subtract nothing.
        if self.warming.0 > 0.0 && self.usual_s().is_some() {
            self.warming.1 -= (seconds - told_s).max(0.0);
        }
    }

    /// Returns the rank-seconds between the last step (or the first rank) and the start of this one, over groups of
    /// every size. `accounted` is the total at the last step.
    fn idle(&self, matrix: &StepMatrix<'_>, accounted: f64, stood_s: f64) -> f64 {
        let began = Time(matrix.at.0.saturating_sub((matrix.dur_s * 1e9) as u64));
        // Standstill that exceeds the step's duration came before the step.
        let stood_before_s = (stood_s - matrix.dur_s).max(0.0);
        (self.total(began) - accounted - stood_before_s * self.ranks).max(0.0)
    }

    /// Finds which steps after a restart are repeated. Call it at the first step. If the step numbers continue, they
    /// show it directly. If they start over, the steps after the last checkpoint are repeated, and each further restart
    /// resumes from that checkpoint too. Without a known checkpoint, no step counts as repeated.
    fn take_up(&mut self, step: u64) {
        // Use the maximum, because the last attempt may have ended before it got as far as the one before it.
        let furthest = self.highest.max(self.made.saturating_sub(1));
        // No job resumes far before its checkpoint or its end, so a low number means that first records are missing.
        let is_before = step <= MISSED && step * 2 < self.saved.unwrap_or(self.highest);
        if step > ANEW && !is_before {
            self.made = furthest + 1;
            return;
        }
        let again = self.saved.map_or(0, |saved| furthest.saturating_sub(saved));
        (self.made, self.highest) = (step.min(1) + again, step);
        self.saved = self.saved.and(Some(0));
    }

    /// Returns the rank-seconds since the first rank.
    pub fn total(&self, now: Time) -> f64 {
        let present = self.since.map_or(0.0, |since| now.since(since).as_secs_f64());
        self.before + present * self.ranks
    }

    /// Returns the rank-seconds of unknown use: those without reports, and those since the last step beyond an ordinary
    /// step and beyond `stood_s`, the job's standstill in the unfinished step.
    pub fn unsettled(&self, now: Time, stood_s: f64) -> f64 {
        let (Some(last), Some(usual)) = (self.last, self.usual_s()) else {
            return 0.0;
        };
        let open_s = (now.since(last).as_secs_f64() - usual - stood_s).max(0.0);
        self.unheard + open_s * self.ranks
    }

    /// Returns the rank-seconds lost to stalled steps. `left_ratio` is the duration of a step without the incidents,
    /// divided by its actual duration.
    pub fn stalled(&self, left_ratio: f64) -> f64 {
        let is_told = self.long.is_told(left_ratio);
        let pending_s = if is_told { 0.0 } else { self.long.more_s };
        self.stall + pending_s * self.ranks
    }

    /// Books the time since the last step that no step explains as time without reports, except for a standstill in a
    /// later step.
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

    /// Returns the median of the latest ordinary steps, in seconds.
    pub fn usual_s(&self) -> Option<f64> {
        self.middle(|step| step.all_s)
    }

    /// Returns the median duration that these steps would have if no rank were slower than its peers.
    pub fn even_s(&self) -> Option<f64> {
        self.middle(|step| step.even_s)
    }

    /// Returns the median of the ranks' mean work in these steps. No step can be shorter.
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

    /// Books the time of the first steps beyond that of ordinary ones.
    fn settle(&mut self) {
        let (steps, took_s) = std::mem::take(&mut self.warming);
        if let Some(usual) = self.usual_s() {
            self.warm_up += (took_s - steps * usual).max(0.0) * self.ranks;
        }
    }
}
