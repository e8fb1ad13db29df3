//! Faults that were reported without an XID, without a GPU, or before monitoring began.

use std::time::Duration;

use super::subject;
use crate::detect::faults::ledger::Part;
use crate::detect::faults::{FaultContext, FaultRule, xid_name};
use crate::event::{FaultSource, GpuFault, GpuFaultKind};
use crate::fault::{Remedy, When};
use crate::id::GpuId;
use crate::verdict::{Finding, Severity, Subject};

impl FaultRule {
    /// Handles a fault that NVML or the kernel reported without an XID.
    pub(crate) fn reported(&mut self, context: &FaultContext<'_>, id: &GpuId, fault: &GpuFault) {
        use Finding::{EccCorrected, EccUncorrectable, GpuFault as Fault, GpuLost, RowRemap};
        use Severity::{Critical, Info, Warning};
        let (finding, severity, remedy, when, why) = match fault.kind {
            GpuFaultKind::FellOff => (
                GpuLost,
                Critical,
                Remedy::RebootNode,
                When::Now,
                "It has fallen off the bus",
            ),
            GpuFaultKind::Unavailable => (
                Fault,
                Critical,
                Remedy::ResetGpu,
                When::Now,
                "The driver took it out of service",
            ),
            GpuFaultKind::EccUncorrected => (
                EccUncorrectable,
                Critical,
                Remedy::DrainReset,
                When::Now,
                "An uncorrectable memory error",
            ),
            GpuFaultKind::PoisonFatal => (
                EccUncorrectable,
                Critical,
                Remedy::ResetGpu,
                When::Now,
                "Poisoned data was used, uncontained",
            ),
            GpuFaultKind::Poison => (
                EccUncorrectable,
                Warning,
                Remedy::RestartApp,
                When::Now,
                "Poisoned data was used, contained",
            ),
            GpuFaultKind::EccStorm => (
                EccCorrected,
                Warning,
                Remedy::Diagnose,
                When::JobEnd,
                "A storm of corrected errors",
            ),
            GpuFaultKind::MemoryRetired => (
                RowRemap,
                Info,
                Remedy::None,
                When::JobEnd,
                "Memory was retired or remapped",
            ),
            GpuFaultKind::MemoryRetirementFailed => (
                RowRemap,
                Critical,
                Remedy::Inspect,
                When::NextCheckpoint,
                "Memory could not be remapped",
            ),
            // Corrected errors are counted from readings, and the driver's recovery request is read as a signal, so
            // both are ignored here.
            GpuFaultKind::EccCorrected | GpuFaultKind::RecoveryAction => return,
            GpuFaultKind::Xid | GpuFaultKind::Switch => return,
        };
        let tainting = matches!(
            fault.kind,
            GpuFaultKind::EccUncorrected | GpuFaultKind::PoisonFatal
        );
        if tainting && context.rank_on(id).is_some() {
            let until = context.at - Duration::from_secs(1);
            let card = (finding, subject(context, id));
            self.suspect
                .taint(context, &mut self.ledger, until, &format!("{why} on {id}"), card);
        }
        let mut part = Part::new(context, severity, why).asks(remedy, when);
        part.since_step = context.rank_on(id).map(|(_, step)| step);
        self.ledger.hold(
            context,
            finding,
            &subject(context, id),
            reported_name(fault.kind),
            part,
        );
    }

    /// Handles a line that reports a lost GPU without naming it. The fault is reported for the node, unless one of the
    /// node's GPUs is known to be lost.
    pub(crate) fn nameless(&mut self, context: &FaultContext<'_>, fault: &GpuFault) {
        let is_here =
            |subject: &Subject| matches!(subject, Subject::Gpu { node, .. } if node == context.node);
        let known = self.ledger.subjects(Finding::GpuLost).any(is_here);
        if fault.kind != GpuFaultKind::FellOff || fault.seen_by == FaultSource::KernelBefore || known {
            return;
        }
        let part = Part::new(
            context,
            Severity::Critical,
            "A GPU of this node has fallen off the bus",
        )
        .asks(Remedy::RebootNode, When::Now);
        self.ledger.hold(
            context,
            Finding::GpuLost,
            &context.node_subject(),
            "fell_off",
            part,
        );
    }

    /// Handles a fault from before monitoring began. It is worth reporting but requires no action.
    pub(super) fn seen_before(&mut self, context: &FaultContext<'_>, id: &GpuId, fault: &GpuFault) {
        let judged = context
            .tables
            .judge(fault.xid, &fault.text, self.branch(context.node));
        let (name, why) = match fault.kind {
            GpuFaultKind::Xid => (
                format!("before_{}", xid_name(fault.xid)),
                format!("XID {} ({}) before the job began", fault.xid, judged.means),
            ),
            _ => (
                "before_fell_off".to_owned(),
                "It fell off the bus before the job began".to_owned(),
            ),
        };
        let what = if fault.kind == GpuFaultKind::Xid {
            xid_name(fault.xid)
        } else {
            "fell_off".into()
        };
        let part = Part::new(context, Severity::Info, why).shows(&*what, f64::from(fault.count.max(1)));
        self.ledger
            .hold(context, Finding::XidRecorded, &subject(context, id), &name, part);
    }

    /// Handles a fault of an NVSwitch, which concerns all GPUs of the node. NVIDIA publishes no table of actions for
    /// such faults.
    pub(crate) fn switch(&mut self, context: &FaultContext<'_>, fault: &GpuFault) {
        if fault.seen_by == FaultSource::KernelBefore {
            return;
        }
        let lower = fault.text.to_ascii_lowercase();
        let fatal = lower.contains("fatal") && !lower.contains("non-fatal") && !lower.contains("nonfatal");
        let severity = if fatal { Severity::Warning } else { Severity::Info };
        let name = format!("sxid_{}", fault.xid);
        let part = Part::new(
            context,
            severity,
            format!("SXID {} of an NVSwitch ({})", fault.xid, fault.text),
        )
        .shows(name.as_str(), f64::from(fault.count.max(1)));
        self.ledger.hold(
            context,
            Finding::NvlinkErrors,
            &context.node_subject(),
            &name,
            part,
        );
    }
}

fn reported_name(kind: GpuFaultKind) -> &'static str {
    match kind {
        GpuFaultKind::FellOff => "fell_off",
        GpuFaultKind::Unavailable => "unavailable",
        GpuFaultKind::EccUncorrected => "uncorrected",
        GpuFaultKind::PoisonFatal => "poison_fatal",
        GpuFaultKind::Poison => "poison",
        GpuFaultKind::EccStorm => "storm",
        GpuFaultKind::MemoryRetired => "retired",
        GpuFaultKind::MemoryRetirementFailed => "retirement_failed",
        _ => "reported",
    }
}
