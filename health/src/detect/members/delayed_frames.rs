//! Delayed frames: those of a sidecar that was replaced by another one.

use crate::detect::Detector;
use crate::event::Event;
use crate::frame::Frame;
use crate::time::Time;

impl Detector {
    /// Takes a frame of a sidecar that was replaced, if it is one. Its events count, but it is no sign of life, and
    /// neither begins nor ends an epoch.
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
