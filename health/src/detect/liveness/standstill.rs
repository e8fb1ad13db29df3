//! The time that a job stands still, divided among the silent ranks. It is lost only once, however many ranks are
//! silent.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::id::Rank;
use crate::time::Time;
use crate::verdict::{Finding, Severity, Subject};

/// Maximum number of steps whose records arrive together with those of the step in which the job stood still.
const STEPS_BEFORE: u8 = 8;
/// After this time, every rank that moved with the others has reported it.
const MOVED_BY: Duration = Duration::from_secs(3);

/// A silent rank or job, and since when.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Named {
    pub finding: Finding,
    pub severity: Severity,
    pub since: Time,
    pub rank: Option<Rank>,
    /// Version of NCCL's answer in this finding's evidence. Zero if there is none.
    pub asked: u64,
    /// Version of the ranks' stacks in this finding's evidence. Zero if there is none.
    pub stacks: u64,
    /// Its share of the standstill up to the last booking, in seconds.
    pub lost_s: f64,
}

impl Named {
    pub fn new(finding: Finding, severity: Severity, since: Time, rank: Option<Rank>) -> Named {
        Named {
            finding,
            severity,
            since,
            rank,
            asked: 0,
            stacks: 0,
            lost_s: 0.0,
        }
    }
}

/// All ranks, or the job, that are silent now, and the standstill that they cause.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Standstill {
    silent: BTreeMap<Subject, Named>,
    /// The standstill before this time is booked.
    booked: Time,
    /// Booked standstill in seconds.
    stood_s: f64,
    /// The part of the standstill in steps already processed, in seconds.
    taken_s: f64,
    /// Number of consecutive steps without room for the rest of the standstill, and when the first of them was taken.
    without_room: u8,
    without_room_since: Time,
}

impl Standstill {
    pub fn is_empty(&self) -> bool {
        self.silent.is_empty()
    }

    pub fn get(&self, subject: &Subject) -> Option<&Named> {
        self.silent.get(subject)
    }

    pub fn get_mut(&mut self, subject: &Subject) -> Option<&mut Named> {
        self.silent.get_mut(subject)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&Subject, &Named)> {
        self.silent.iter()
    }

    pub fn insert(&mut self, subject: Subject, named: Named) {
        self.silent.insert(subject, named);
    }

    /// Adds to each silent rank its share of the time up to now, in proportion to its silence.
    pub fn book(&mut self, now: Time) {
        if self.silent.is_empty() {
            return;
        }
        let ratio = self.share_ratio(now);
        self.stood_s = self.stood_s(now);
        let booked = self.booked;
        for named in self.silent.values_mut() {
            named.lost_s += ratio * unbooked_s(named, booked, now);
        }
        self.booked = now;
    }

    /// Returns how long the job has stood still because of silent ranks since its start, in seconds.
    pub fn stood_s(&self, now: Time) -> f64 {
        let each = self.silent.values();
        let each = each.map(|named| unbooked_s(named, self.booked, now));
        self.stood_s + each.fold(0.0, f64::max)
    }

    /// Returns the part of the standstill that is not yet assigned to a step, in seconds.
    pub fn left_s(&self, now: Time) -> f64 {
        self.stood_s(now) - self.taken_s
    }

    /// Assigns to a step as much of the standstill as fits its room, and returns that part. Several steps may pass
    /// before one has room for the rest, because records of earlier steps arrive together with those of the step in
    /// which the job stood still.
    pub fn take(&mut self, now: Time, room_s: f64) -> f64 {
        let left_s = self.left_s(now);
        let here_s = left_s.min(room_s);
        self.taken_s += here_s;
        if here_s >= left_s {
            self.without_room = 0;
            return here_s;
        }
        if self.without_room == 0 {
            self.without_room_since = now;
        }
        self.without_room = self.without_room.saturating_add(1);
        if self.without_room > STEPS_BEFORE {
            if self.silent.is_empty() {
                // The rest of the standstill was in a step that was not reported.
                self.without_room = 0;
                self.taken_s += left_s - here_s;
            } else if now.since(self.without_room_since) >= MOVED_BY {
                self.without_room = 0;
                self.give_back(now, left_s - here_s);
            }
        }
        here_s
    }

    /// Reduces the standstill by `seconds`. The job did not stand still for that long, because the others continued
    /// while a rank counted as silent.
    fn give_back(&mut self, now: Time, seconds: f64) {
        self.book(now);
        self.stood_s -= seconds;
        let booked_s: f64 = self.silent.values().map(|named| named.lost_s).sum();
        let kept = 1.0 - seconds / booked_s.max(seconds);
        for named in self.silent.values_mut() {
            named.lost_s *= kept;
        }
    }

    /// Skips the time up to now, because no process was alive that could stand still.
    pub fn pass(&mut self, now: Time) {
        if !self.silent.is_empty() {
            self.booked = now;
        }
    }

    /// Returns the cost of one silent rank so far, in seconds of the whole job.
    pub fn lost_s(&self, subject: &Subject, now: Time) -> Option<f64> {
        let named = self.silent.get(subject)?;
        Some(named.lost_s + self.share_ratio(now) * unbooked_s(named, self.booked, now))
    }

    /// Removes and returns the findings that no longer hold. Call `book` first.
    pub fn keep(&mut self, mut holds: impl FnMut(&Subject, &Named) -> bool) -> Vec<(Subject, Named)> {
        let over: Vec<Subject> = self
            .silent
            .iter()
            .filter(|(subject, named)| !holds(subject, named))
            .map(|(subject, _)| subject.clone())
            .collect();
        over.into_iter()
            .filter_map(|subject| self.silent.remove_entry(&subject))
            .collect()
    }

    /// Returns the factor that scales the silences up to now, so that together they are as long as the longest of them.
    fn share_ratio(&self, now: Time) -> f64 {
        let each = self
            .silent
            .values()
            .map(|named| unbooked_s(named, self.booked, now));
        let (longest, sum) = each.fold((0.0, 0.0), |(longest, sum): (f64, f64), s| {
            (longest.max(s), sum + s)
        });
        if sum > 0.0 { longest / sum } else { 0.0 }
    }
}

fn unbooked_s(named: &Named, booked: Time, now: Time) -> f64 {
    now.since(named.since.max(booked)).as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(rank: u32) -> Subject {
        Subject::Node {
            node: format!("n{rank}").as_str().into(),
        }
    }

    fn at(s: u64) -> Time {
        Time(s * 1_000_000_000)
    }

    fn silent(standstill: &mut Standstill, number: u32, since: Time) {
        let named = Named::new(Finding::RankSilent, Severity::Info, since, None);
        standstill.insert(rank(number), named);
    }

    #[test]
    fn the_time_is_lost_once() {
        let mut all = Standstill::default();
        silent(&mut all, 0, at(100));
        all.book(at(130));
        assert_eq!(all.lost_s(&rank(0), at(140)), Some(40.0));
        // Another rank turns out to have been silent too. Time that is already booked must not be booked again.
        silent(&mut all, 1, at(110));
        assert_eq!(all.lost_s(&rank(0), at(140)), Some(35.0));
        all.book(at(140));
        assert_eq!(all.lost_s(&rank(1), at(140)), Some(5.0));
        assert_eq!(all.stood_s(at(140)), 40.0);
        let over = all.keep(|subject, _| *subject == rank(1));
        let over: Vec<_> = over
            .iter()
            .map(|(subject, named)| (subject, named.lost_s))
            .collect();
        assert_eq!(over, [(&rank(0), 35.0)]);
        assert_eq!(all.lost_s(&rank(1), at(150)), Some(15.0));
        assert_eq!(all.stood_s(at(150)), 50.0);
    }

    #[test]
    fn who_was_silent_longer_has_more() {
        let mut all = Standstill::default();
        silent(&mut all, 0, at(70));
        silent(&mut all, 1, at(90));
        all.book(at(100));
        assert_eq!(all.lost_s(&rank(0), at(100)), Some(22.5));
        assert_eq!(all.lost_s(&rank(1), at(100)), Some(7.5));
        // After a much later silence, the time in between must not count as standstill.
        all.keep(|_, _| false);
        silent(&mut all, 2, at(1000));
        assert_eq!(all.lost_s(&rank(2), at(1060)), Some(60.0));
    }
}
