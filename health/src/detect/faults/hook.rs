//! How the rule stands in the detector.

use super::super::Detector;
use super::super::claim::{Body, Claim};
use super::Scene;
use crate::frame::Frame;
use crate::time::Time;
use crate::verdict::{Finding, Subject};

impl Detector {
    /// Hands a frame to the rule of GPU faults.
    pub(in crate::detect) fn observe_faults(&mut self, at: Time, frame: &Frame) {
        let scene = Scene {
            at,
            entry: self.entry,
            provenance: frame.provenance,
            node: &frame.node,
            job: &self.job,
            roster: &self.roster,
            limits: &self.policy.detector.gpu,
            tables: self.policy.faults(),
        };
        self.faults.observe(&scene, frame);
    }

    /// Books what the rule of GPU faults says.
    pub(in crate::detect) fn book_faults(&mut self) {
        let origin = self.origin.unwrap_or_default();
        while let Some((claim, order, words)) = self.faults.poll() {
            if self.is_told_as_straggler(&claim) {
                continue;
            }
            self.incidents
                .book_ordered(claim, Some((order, words)), origin, &self.policy);
        }
    }

    /// A GPU that slows itself down, whose rank is told to be slow: that verdict has the cause and the cost.
    fn is_told_as_straggler(&self, claim: &Claim) -> bool {
        let Subject::Gpu { gpu_uuid, node } = &claim.subject else {
            return false;
        };
        let mut members = self.roster.members();
        claim.finding == Finding::GpuThrottled
            && matches!(claim.body, Body::Holds(_))
            && members
                .find(|(_, member)| member.node == *node && member.gpu.as_ref() == Some(gpu_uuid))
                .and_then(|(rank, _)| self.roster.subject(rank))
                .is_some_and(|rank| self.incidents.is_open(Finding::Straggler, &rank))
    }
}
