//! Gaps of the journal. They occur because the aggregator was down or because the journal was thinned
//! ([`crate::event::Thinned`]). A gap makes no rank late, and the report mentions it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::detect::Detector;
use crate::detect::liveness::unreachable_node;
use crate::event::{Event, Job, Thinned};
use crate::frame::{AGGREGATOR, Entry, Frame};
use crate::id::NodeId;
use crate::time::Time;

/// A sidecar that lost a restarted aggregator finds it within this time. This minimum is used because the downtime is
/// not known if the aggregator comes back after a boot or on another host.
const FINDS_AGAIN: Duration = Duration::from_secs(10);

/// How many lines of one kind are known to be missing, and up to which entry and time.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Gone {
    to: u64,
    until: Time,
    lines: u64,
}

/// The missing parts of the journal.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct JournalGaps {
    telemetry: Gone,
    others: Gone,
    bound_bytes: u64,
    /// The number of the last entry. Zero if no entry had one.
    last_n: u64,
    /// A part that was thinned before this detector read the journal: its end, and the number of entries to count after
    /// it.
    part: Option<(Time, u64)>,
    /// Number of frames, as numbered by sidecars, that are missing here because they were thinned before.
    unread: Option<u64>,
}

impl JournalGaps {
    /// Records a thinned part. Each part is recorded in order, at its place and again at the time of the thinning, and
    /// it must not be counted twice.
    fn learn(&mut self, thinned: &Thinned) {
        let (telemetry, others) = thinned.lines();
        self.bound_bytes = thinned.bound_bytes;
        if thinned.here {
            let lines = telemetry.saturating_add(others);
            let before = self.part.map_or(0, |(_, lines)| lines);
            let after = before.saturating_add(lines.saturating_sub(1));
            self.part = Some((thinned.to_ns, after));
            self.unread = Some(self.unread.unwrap_or(0).saturating_add(thinned.frames));
        }
        if thinned.to > self.telemetry.to {
            let before = if thinned.whole { 0 } else { self.telemetry.lines };
            self.telemetry = Gone {
                to: thinned.to,
                until: self.telemetry.until.max(thinned.to_ns),
                lines: telemetry.saturating_add(before),
            };
        }
        if thinned.whole && thinned.to > self.others.to {
            self.others = Gone {
                to: thinned.to,
                until: self.others.until.max(thinned.to_ns),
                lines: others,
            };
        }
    }

    /// Returns the number of missing frames without those that are known to have been thinned.
    pub fn without(&self, lost: u64) -> u64 {
        lost.saturating_sub(self.unread.unwrap_or(0))
    }

    /// Returns notes for the report.
    pub fn notes(&self, seconds: impl Fn(Time) -> f64) -> Vec<String> {
        let mut notes = Vec::new();
        let room = size(self.bound_bytes);
        let judged = match self.unread {
            None => "was judged before it was deleted",
            Some(_) => "was not judged here: its findings are missing",
        };
        if self.telemetry.lines > 0 {
            let (lines, span) = (self.telemetry.lines, span(seconds(self.telemetry.until)));
            notes.push(format!(
                "telemetry of the first {span} was reduced to keep the journal within {room} ({lines} lines); it \
                 {judged}"
            ));
        }
        if self.others.lines > 0 {
            let (lines, span) = (self.others.lines, span(seconds(self.others.until)));
            notes.push(format!(
                "of the first {span} the rest was deleted too ({lines} lines); it {judged}"
            ));
        }
        notes
    }
}

/// Formats bytes for display, such as 8 GiB or 1.5 MiB.
fn size(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut value, mut unit) = (bytes as f64, 0);
    while value >= 1024.0 && unit + 1 < units.len() {
        (value, unit) = (value / 1024.0, unit + 1);
    }
    format!("{} {}", (value * 10.0).round() / 10.0, units[unit])
}

/// Formats a duration for display, such as 3 h 12 min, 4 min 10 s or 7 s.
fn span(seconds: f64) -> String {
    let whole = seconds.max(0.0).round() as u64;
    match (whole / 3600, whole / 60 % 60, whole % 60) {
        (0, 0, s) => format!("{s} s"),
        (0, min, s) => format!("{min} min {s} s"),
        (h, min, _) => format!("{h} h {min} min"),
    }
}

impl Detector {
    /// Records which part of the journal is missing before the next frame, or was missing before it was read.
    pub(crate) fn learn_of_thinning(&mut self, frame: &Frame, thinned: &Thinned) {
        // Ignore the event unless the aggregator sent it, because only the aggregator writes the journal.
        if frame.agent == AGGREGATOR {
            self.journal_gaps.learn(thinned);
        }
    }

    /// Returns true if this thinning of a part of the journal is already recorded.
    pub fn knows(&self, thinned: &Thinned) -> bool {
        let told = if thinned.whole {
            self.journal_gaps.others.to
        } else {
            self.journal_gaps.telemetry.to
        };
        thinned.to <= told
    }

    /// Returns true if part of the history is missing here, because it was thinned before.
    pub fn misses_history(&self) -> bool {
        self.journal_gaps.unread.is_some()
    }

    /// Returns true if the frame is telemetry that was left in a thinned part. Such a frame only shows how far its
    /// sender had come. It is not compared, because the frames of other ranks are missing.
    pub(crate) fn took_remainder(&mut self, at: Time, frame: &Frame) -> bool {
        let is_left =
            self.journal_gaps.part.is_some_and(|(until, _)| at <= until) && frame.event.is_telemetry();
        if is_left {
            self.roster.receive(at, frame);
        }
        is_left
    }

    /// Returns true if deadlines up to `to` can fire. They start over after a thinned part, because silence within it
    /// proves nothing.
    pub(crate) fn has_heard_up_to(&mut self, to: Time) -> bool {
        let Some((until, lines)) = self.journal_gaps.part else {
            return true;
        };
        if to <= until {
            return false;
        }
        self.journal_gaps.part = None;
        self.entry = self.entry.saturating_add(lines);
        self.resume(until);
        true
    }

    /// Takes the next entry of a journal, like [`Detector::observe`]. If numbers are missing, the disk did not accept
    /// the entries or returned them damaged, and no rank is late because of them. Gaps by thinning are left out,
    /// because a thinned journal records them itself.
    pub fn read(&mut self, entry: &Entry) {
        let before = std::mem::replace(&mut self.journal_gaps.last_n, entry.n);
        let frame = &entry.frame;
        let is_thinned = matches!(&frame.event, Event::Thinned(thinned) if thinned.here);
        let lost = entry.n.saturating_sub(before + 1);
        if before > 0 && lost > 0 && !is_thinned && self.journal_gaps.part.is_none() {
            self.note_journal_lost(lost);
            let (at, limits) = (entry.at_ns, &self.policy.detector.blind);
            let missed = at.since(self.last_frame);
            self.roster.excuse(missed);
            // The missing entries may include a restart of the aggregator, so allow for the time that sidecars need to
            // find it.
            self.unreachable.excuse(at, missed.max(FINDS_AGAIN), limits);
            self.blind_check = self.unreachable.wake_at(&self.roster, limits);
        }
        self.observe(entry.at_ns, frame);
    }

    /// Handles a start or a delay of the aggregator. Deadlines do not pass while it was not receiving.
    pub(crate) fn open(&mut self, at: Time, node: &NodeId, job: &Job) {
        let why = match job.listened_to {
            Some(_) => "the aggregator was delayed",
            None => "the aggregator was restarted",
        };
        // Before the first entry of the journal nothing can be missing.
        let before = if self.entry > 1 { self.last_frame } else { at };
        let to = job.listened_to.unwrap_or(before).min(at);
        self.fire(to);
        // If a thinned part ended before this entry, end it here, so that the detector does not resume from it a second
        // time.
        if let Some((_, lines)) = self.journal_gaps.part.take_if(|(until, _)| *until < at) {
            self.entry = self.entry.saturating_add(lines);
        }
        if self.entry > 1 {
            self.roster.gaps.add(node, self.last_frame, at, why);
        }
        self.job = job.job.clone();
        let (missed, limits) = (at.since(to), &self.policy.detector.blind);
        self.roster.excuse(missed);
        if job.listened_to.is_none() {
            self.unreachable.excuse(at, missed.max(FINDS_AGAIN), limits);
        } else if missed.as_secs_f64() > limits.beat_missing_s {
            // Sidecars give up only after a longer delay than a deadline, so shorter delays need no allowance.
            self.unreachable.excuse(at, missed, limits);
        }
        self.blind_check = self.unreachable.wake_at(&self.roster, limits);
    }

    fn resume(&mut self, at: Time) {
        self.roster.resume(at, |node| self.unreachable.is_open(node));
        let next = unreachable_node::deadline(at, &self.policy.detector.blind);
        self.blind_check = self.roster.nodes().next().map(|_| next);
    }

    pub(crate) fn frames_lost(&self) -> u64 {
        self.journal_gaps.without(self.roster.frames_lost())
    }
}

#[cfg(test)]
#[path = "journal_gaps_tests.rs"]
mod tests;
