//! The detector: frames in, verdicts out, time handed in.

use std::collections::VecDeque;
use std::time::Duration;

use crate::frame::Frame;
use crate::id::JobId;
use crate::policy::Policy;
use crate::report::{Coverage, REPORT_VERSION, Report};
use crate::time::Time;
use crate::verdict::Verdict;

/// The fold over frames.
#[derive(Debug)]
pub struct Detector {
    policy: Policy,
    out: VecDeque<Verdict>,
    last: Time,
}

impl Detector {
    /// A detector that has seen nothing.
    pub fn new(policy: Policy) -> Detector {
        Detector { policy, out: VecDeque::new(), last: Time::ZERO }
    }

    /// Takes the next frame of the journal. Fires every deadline up to `at` first.
    pub fn observe(&mut self, at: Time, frame: &Frame) {
        let _ = (&self.policy, frame);
        self.last = at;
    }

    /// Fires every deadline up to `now`.
    pub fn advance(&mut self, now: Time) {
        self.last = now.max(self.last);
    }

    /// The next verdict that is new or changed, if there is one.
    pub fn poll(&mut self) -> Option<Verdict> {
        self.out.pop_front()
    }

    /// When [`Detector::advance`] has something to do next.
    pub fn wake_at(&self) -> Option<Time> {
        Some(self.last + Duration::from_secs(1))
    }

    /// Frames that reached the detector but not the journal.
    pub fn note_journal_lost(&mut self, _frames: u64) {}

    /// What is known so far.
    pub fn report(&self) -> Report {
        Report {
            schema_version: REPORT_VERSION,
            job: JobId::from(""),
            world_size: 0,
            steps: 0,
            median_step_s: None,
            duration_s: self.last.as_secs_f64(),
            exits: Vec::new(),
            coverage: Coverage {
                steps_ratio: None,
                ranks_seen: 0,
                ranks_expected: 0,
                signals: Vec::new(),
                frames_lost: 0,
                ring_dropped: 0,
                ring_torn: 0,
                journal_lost: 0,
                gaps: Vec::new(),
                notes: Vec::new(),
            },
            verdicts: Vec::new(),
        }
    }
}
