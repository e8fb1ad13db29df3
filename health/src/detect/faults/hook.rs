//! Connects the rule of GPU faults to the detector.

use std::time::Duration;

use super::FaultContext;
use crate::detect::Detector;
use crate::detect::claim::{Body, Claim};
use crate::detect::members::roster::Member;
use crate::frame::Frame;
use crate::time::Time;
use crate::verdict::{Cause, Finding, Severity, Subject};

impl Detector {
    /// Passes a frame to the rule of GPU faults.
    pub(in crate::detect) fn observe_faults(&mut self, at: Time, frame: &Frame) {
        let context = FaultContext {
            at,
            entry: self.entry,
            provenance: frame.provenance,
            node: &frame.node,
            job: &self.job,
            roster: &self.roster,
            limits: &self.policy.detector.gpu,
            ports: &self.policy.detector.port,
            tables: self.policy.faults(),
        };
        self.faults.observe(&context, frame);
    }

    /// Books the claims of the rule of GPU faults.
    pub(in crate::detect) fn book_faults(&mut self) {
        let origin = self.origin.unwrap_or_default();
        while let Some((claim, order, words)) = self.faults.poll() {
            if self.is_told_as_straggler(&claim) {
                self.faults.ledger.hold_back(claim.finding, &claim.subject);
                continue;
            }
            self.incidents
                .book_ordered(claim, Some((order, words)), origin, &self.policy);
        }
    }

    /// Schedules the findings on a straggler's GPU when the straggler is over and no longer covers them. They are
    /// reported later if they still hold.
    pub(in crate::detect) fn explains_no_more(&mut self, claim: &Claim) {
        let (Finding::Straggler, Body::Over(_)) = (claim.finding, &claim.body) else {
            return;
        };
        if let Subject::Rank {
            node,
            gpu_uuid: Some(gpu),
            ..
        } = &claim.subject
        {
            let quiet = Duration::from_secs_f64(self.policy.detector.gpu.straggler_quiet_s);
            let (gpu_uuid, node) = (gpu.clone(), node.clone());
            self.faults
                .ledger
                .tell_later(claim.at + quiet, &Subject::Gpu { gpu_uuid, node });
        }
    }

    /// Returns true if the straggler finding already reports this GPU problem as its cause, with the cost. A problem
    /// that needs an action of its own is reported in addition.
    fn is_told_as_straggler(&self, claim: &Claim) -> bool {
        let (Subject::Gpu { gpu_uuid, node }, Body::Holds(detail)) = (&claim.subject, &claim.body) else {
            return false;
        };
        let explained: &[Cause] = match claim.finding {
            Finding::GpuThrottled => &[Cause::Thermal, Cause::Power],
            Finding::GpuConfig => &[Cause::Power, Cause::ClockStuck],
            Finding::PcieDegraded => &[Cause::Pcie],
            Finding::NvlinkErrors if detail.severity < Severity::Critical => &[Cause::Nvlink],
            Finding::EccCorrected | Finding::RowRemap if detail.severity < Severity::Critical => {
                &[Cause::Ecc]
            }
            _ => return false,
        };
        let mut members = self.roster.members();
        let on_it = |member: &Member| member.node == *node && member.gpu.as_ref() == Some(gpu_uuid);
        let rank = members.find(|(_, member)| on_it(member)).map(|(rank, _)| rank);
        rank.and_then(|rank| self.roster.subject(rank))
            .and_then(|subject| self.incidents.cause_of(Finding::Straggler, &subject))
            .is_some_and(|cause| explained.contains(&cause))
    }
}
