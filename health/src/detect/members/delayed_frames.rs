//! Delayed frames, which come from a sidecar that another one has replaced.

use crate::detect::Detector;
use crate::event::Event;
use crate::frame::Frame;
use crate::time::Time;

impl Detector {
    /// Takes the frame if it comes from a sidecar that was replaced, and then returns true. The events of such a frame
    /// count, but it is no sign of life, and it neither begins nor ends an epoch.
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
