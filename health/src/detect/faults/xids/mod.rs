//! Reported faults, such as XIDs, from the kernel log and from NVML. A fault that both report is counted once.

pub mod job;
mod reported;

use std::time::Duration;

use super::ledger::Part;
use super::{FaultContext, FaultRule, xid_name};
use crate::event::{FaultSource, GpuFault, GpuFaultKind};
use crate::fault::{Judgement, NvlinkLine, Remedy, When};
use crate::id::GpuId;
use crate::verdict::{Finding, Severity, Subject};

/// XID 45, which follows another XID of the same GPU.
pub const SYMPATHETIC: u32 = 45;
/// XID 48, an uncorrectable ECC error. Accompanying XIDs show its place and extent.
const DOUBLE_BIT: u32 = 48;
const REMAPS: [u32; 2] = [63, 64];
const IN_DRAM: u32 = 171;
const IN_SRAM: u32 = 172;
/// XID 154, with which the driver itself requests a recovery action.
const RECOVERY: u32 = 154;
/// XID 13, a fault of the application. Its occurrences are distinguished by GPC and TPC.
pub const EXCEPTION: u32 = 13;
/// XID 31, also a fault of the application.
pub const PAGE_FAULT: u32 = 31;
/// XID 94, a contained error. It ends the application, but the GPU remains usable until the job has ended.
pub const CONTAINED: u32 = 94;
/// One report of an XID, with its GPU and its judgment.
pub struct XidReport<'a> {
    pub xid: u32,
    pub gpu: &'a GpuId,
    pub judged: Judgement,
    /// Number of new occurrences.
    pub new: u64,
}

impl FaultRule {
    /// Takes a report on a GPU.
    pub(super) fn fault(&mut self, context: &FaultContext<'_>, fault: &GpuFault) {
        if fault.kind == GpuFaultKind::Switch {
            return self.switch(context, fault);
        }
        let Some(id) = self.resolve(context, fault.gpu.as_ref(), &fault.pci) else {
            return self.nameless(context, fault);
        };
        if fault.seen_by == FaultSource::KernelBefore {
            return self.seen_before(context, &id, fault);
        }
        match fault.kind {
            GpuFaultKind::Xid => self.xid(context, &id, fault),
            _ => self.reported(context, &id, fault),
        }
    }

    fn xid(&mut self, context: &FaultContext<'_>, id: &GpuId, fault: &GpuFault) {
        let (xid, limits) = (fault.xid, context.limits);
        let judged = context.tables.judge(xid, &fault.text, self.branch(context.node));
        let Some(gpu) = self.gpu(context, id) else { return };
        let Some(code) = gpu.code(xid) else { return };
        let before = code.count();
        let by = match fault.seen_by {
            FaultSource::Nvml => &mut code.by_nvml,
            _ => &mut code.by_kernel,
        };
        *by = by.saturating_add(u64::from(fault.count.max(1)));
        let new = code.count() - before;
        if new > 0 || code.last().is_none() {
            code.seen(context.at, limits);
        }
        code.entries = Some((
            code.entries.map_or(context.entry, |(first, _)| first),
            context.entry,
        ));
        // Of several judgments the worst is kept. If they are equal, the new one replaces the old one, because the
        // kernel log's text is more precise than NVML's number. A new recovery request of the driver always replaces
        // the one before.
        let worse = code.judged.as_ref().is_none_or(|known| {
            xid == RECOVERY || (judged.severity, judged.order) >= (known.severity, known.order)
        });
        if worse {
            code.judged = Some(judged.clone());
        }
        let judged = code.judged.clone().unwrap_or(judged);
        let seen = XidReport {
            xid,
            gpu: id,
            judged,
            new,
        };
        match xid {
            SYMPATHETIC => self.sympathetic(context, &seen),
            RECOVERY => self.recovery(context, &seen),
            _ => self.book_xid(context, &seen, fault),
        }
    }

    /// Enters an XID in the ledger, on its GPU or on the job.
    fn book_xid(&mut self, context: &FaultContext<'_>, seen: &XidReport<'_>, fault: &GpuFault) {
        self.job_xids.followed(context.node, seen.gpu);
        if matches!(
            seen.judged.finding,
            Finding::ApplicationFault | Finding::XidRecorded
        ) {
            if seen.new > 0 {
                self.job_xids.add(context, &mut self.ledger, seen);
                self.repeats(context, seen, fault);
            }
            return;
        }
        if seen.new > 0 && seen.judged.suspect && context.rank_on(seen.gpu).is_some() {
            let until = context.at - Duration::from_secs(1);
            let why = format!("XID {} ({}) on {}", seen.xid, seen.judged.means, seen.gpu);
            let card = (seen.judged.finding, subject(context, seen.gpu));
            self.suspect.taint(context, &mut self.ledger, until, &why, card);
        }
        self.hold_xid(context, seen, &fault.text);
        // XIDs that accompany XID 48 change the action for XID 48, whichever of them came first.
        if REMAPS.contains(&seen.xid) || matches!(seen.xid, IN_DRAM | IN_SRAM) {
            let key = (context.node.clone(), seen.gpu.clone());
            let double_bit = self.gpus.get(&key).and_then(|gpu| gpu.codes.get(&DOUBLE_BIT));
            if let Some(judged) = double_bit.and_then(|code| code.judged.clone()) {
                let (xid, new) = (DOUBLE_BIT, 0);
                self.hold_xid(
                    context,
                    &XidReport {
                        xid,
                        judged,
                        new,
                        gpu: seen.gpu,
                    },
                    "",
                );
            }
        }
    }

    fn hold_xid(&mut self, context: &FaultContext<'_>, seen: &XidReport<'_>, text: &str) {
        let subject = subject(context, seen.gpu);
        let Some(gpu) = self.gpus.get_mut(&(context.node.clone(), seen.gpu.clone())) else {
            return;
        };
        let limits = context.limits;
        let span = Duration::from_secs_f64(limits.xid_follows_s);
        let beside = |xid| gpu.saw(xid, context.at, span);
        let (dram, sram, remap) = (beside(IN_DRAM), beside(IN_SRAM), REMAPS.into_iter().any(beside));
        let follows = gpu.other_than(seen.xid, context.at, span).is_some();
        let Some(code) = gpu.codes.get_mut(&seen.xid) else {
            return;
        };
        let mut severity = seen.judged.severity;
        let mut order = seen.judged.order;
        let mut more = String::new();
        if let Some(repeat) = seen.judged.repeat {
            let place = repeat
                .link
                .map_or("no link".to_owned(), |link| format!("link {link}"));
            let new = u32::try_from(seen.new).unwrap_or(u32::MAX);
            let (times, _) = code.spot(&place, new, context.at, limits);
            if times < repeat.after {
                order.remedy = Remedy::None;
                severity = severity.min(Severity::Warning);
            }
        }
        if order.remedy == Remedy::Support && severity == Severity::Info && follows {
            // This XID is sympathetic, and the XID that it follows was found, so it needs no remedy of its own.
            order.remedy = Remedy::None;
        }
        if seen.xid == DOUBLE_BIT && remap {
            order.remedy = Remedy::DrainReset;
        }
        if seen.xid == DOUBLE_BIT && sram {
            more = "It was in SRAM: look at the SRAM threshold flag; past it the GPU is replaced.".to_owned();
        } else if seen.xid == DOUBLE_BIT && dram {
            more = "It was in DRAM: the reset remaps the row.".to_owned();
        }
        let bursts = code.bursts();
        if severity == Severity::Critical && bursts >= limits.xid_recurrence {
            order.remedy = Remedy::Support;
            more = format!("It occurred {bursts} times within {} h.", limits.xid_recurrence_h);
        }
        if code.reboots >= limits.xid_reboots {
            (order.remedy, order.when) = (Remedy::Inspect, When::Now);
            more = format!("{} reboots did not fix it.", code.reboots);
        }
        let link = NvlinkLine::parse(text).and_then(|line| line.link);
        let why = match link {
            Some(link) => format!("XID {} ({}, link {link})", seen.xid, seen.judged.means),
            None => format!("XID {} ({})", seen.xid, seen.judged.means),
        };
        let mut part = Part::new(context, severity, why)
            .asks(order.remedy, order.when)
            .shows(&*xid_name(seen.xid), code.count() as f64);
        part.count = code.count();
        part.more = more;
        part.entries = code.entries.unwrap_or(part.entries);
        part.since_step = context.rank_on(seen.gpu).map(|(_, step)| step);
        self.ledger
            .hold(context, seen.judged.finding, &subject, &xid_name(seen.xid), part);
    }

    /// Handles XID 154. The driver's request is active until the driver withdraws it.
    fn recovery(&mut self, context: &FaultContext<'_>, seen: &XidReport<'_>) {
        match seen.judged.recovery {
            Some(Remedy::None) => self.recovered(context, seen.gpu),
            Some(_) => {
                if let Some(gpu) = self.gpus.get_mut(&(context.node.clone(), seen.gpu.clone())) {
                    gpu.recovery_asked = true;
                }
                self.hold_xid(context, seen, "");
            }
            // NVML gives the number without the text, so the request is only recorded here. The recovery action is also
            // read as a signal.
            None if seen.new > 0 => {
                let judged = Judgement {
                    finding: Finding::XidRecorded,
                    ..seen.judged.clone()
                };
                self.job_xids
                    .add(context, &mut self.ledger, &XidReport { judged, ..*seen });
            }
            None => {}
        }
    }

    /// Records that the driver no longer requests a recovery action, which means that the GPU has recovered.
    pub(super) fn recovered(&mut self, context: &FaultContext<'_>, id: &GpuId) {
        let key = (context.node.clone(), id.clone());
        let Some(gpu) = self.gpus.get_mut(&key).filter(|gpu| gpu.recovery_asked) else {
            return;
        };
        gpu.recovered();
        for finding in [Finding::GpuFault, Finding::NvlinkErrors, Finding::GpuLost] {
            self.ledger.over(context.at, finding, &subject(context, id));
        }
    }

    /// Ends the findings that a reset clears, because the GPU was reset or its driver was reloaded.
    pub(super) fn reset(&mut self, context: &FaultContext<'_>, id: &GpuId) {
        if let Some(gpu) = self.gpus.get_mut(&(context.node.clone(), id.clone())) {
            gpu.recovered();
        }
        for finding in super::readings::gpu::ENDED_BY_RESET {
            self.ledger.over(context.at, finding, &subject(context, id));
        }
    }

    /// Reports an application's XID as a fault of the GPU if it recurs on this GPU and occurs on no other.
    fn repeats(&mut self, context: &FaultContext<'_>, seen: &XidReport<'_>, fault: &GpuFault) {
        if !matches!(seen.xid, EXCEPTION | PAGE_FAULT) {
            return;
        }
        let place = if seen.xid == EXCEPTION {
            chip_place(&fault.text)
        } else {
            String::new()
        };
        let gpus = self.job_xids.gpus(seen.judged.finding, seen.xid);
        let gpu_key = (context.node.clone(), seen.gpu.clone());
        let Some(code) = self
            .gpus
            .get_mut(&gpu_key)
            .and_then(|gpu| gpu.codes.get_mut(&seen.xid))
        else {
            return;
        };
        let new = u32::try_from(seen.new).unwrap_or(u32::MAX);
        let (_, bursts) = code.spot(&place, new, context.at, context.limits);
        let name = format!("repeats_{}", seen.xid);
        if gpus > 1 {
            self.ledger
                .drop_part(context.at, Finding::GpuFault, &subject(context, seen.gpu), &name);
        } else if bursts >= context.limits.xid_application_recurrence {
            let hours = context.limits.xid_recurrence_h;
            let at = if place.is_empty() {
                place
            } else {
                format!(" at {place}")
            };
            let why = format!(
                "XID {} occurred again on this GPU{at} within {hours} h, and on no other",
                seen.xid
            );
            let part = Part::new(context, Severity::Warning, why)
                .asks(Remedy::Diagnose, When::JobEnd)
                .shows("bursts", f64::from(bursts));
            self.ledger.hold(
                context,
                Finding::GpuFault,
                &subject(context, seen.gpu),
                &name,
                part,
            );
        }
    }
}

pub(super) fn subject(context: &FaultContext<'_>, id: &GpuId) -> Subject {
    Subject::Gpu {
        gpu_uuid: id.clone(),
        node: context.node.clone(),
    }
}

/// Returns the part of a message such as "GPC 4, TPC 2", as far as the message names these.
fn chip_place(text: &str) -> String {
    let number_after = |key: &str| {
        let rest = text.split_once(key)?.1.trim_start_matches([' ', ':']);
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        (!digits.is_empty()).then_some(digits)
    };
    match (number_after("GPC"), number_after("TPC")) {
        (Some(gpc), Some(tpc)) => format!("GPC {gpc}, TPC {tpc}"),
        (Some(gpc), None) => format!("GPC {gpc}"),
        _ => String::new(),
    }
}
