//! Delayed frames: those of a sidecar that another one has replaced meanwhile.

use crate::detect::Detector;
use crate::event::Event;
use crate::frame::Frame;
use crate::time::Time;

impl Detector {
    /// Takes a frame of a sidecar that another one has followed, if it is one: what happened has happened, but it is no
    /// sign of life, begins no epoch and ends none.
    pub(crate) fn took_late(&mut self, at: Time, frame: &Frame) -> bool {
        if !self.roster.is_late(frame) {
            return false;
        }
        self.roster.observe_late(at, frame);
        match &frame.event {
            Event::Step(step) => self.step(at, frame, step),
            Event::GpuFault(_) => self.observe_faults(at, frame),
            _ => {}
        }
        self.close_rows(at);
        true
    }
}
