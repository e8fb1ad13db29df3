//! Counters and flags read from NVML. Each rule takes one reading and reports whether its part holds.

pub mod fleet;
pub mod gpu;
mod memory;
pub mod nvlinks;
mod remap;
mod slow;
mod values;

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use self::values::{Rises, Values};
use super::ledger::Part;
use super::window::{Since, Streak, Window};
use super::xids::subject;
use super::{FaultContext, FaultRule};
use crate::event::{GpuReading, GpuSignal};
use crate::fault::{Order, Remedy, When, recovery_order};
use crate::id::{GpuId, NodeId};
use crate::time::Time;
use crate::verdict::{Finding, Severity};
use gpu::Gpu;

/// Up to this number of active findings, every reading renews the evidence of all of them.
const RENEWED: usize = 1024;

/// State of a GPU's readings.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Counters {
    pub first_read: Option<Time>,
    pub rises: Rises,
    /// Maximum number of NVLinks of this GPU that were up at once.
    pub most_links: f64,
    /// Time of the last reading without a new uncorrectable error.
    pub clean: Option<Time>,
    pub thermal: Window,
    pub corrected: Window,
    pub corrected_short: Window,
    pub replays: Window,
    pub slowdowns: VecDeque<Time>,
    pub brake: Streak,
    pub warm: Since,
    pub hot: Since,
    pub narrow: Streak,
    pub links_down: Streak,
    pub answers: Streak,
    /// Number of readings in a row in which the driver requested no recovery.
    pub unasked: Streak,
    /// Active parts, each with the number of readings since its reason disappeared, and with the severity and order
    /// that it requests.
    holding: BTreeMap<Cow<'static, str>, (u32, (Severity, Order))>,
}

/// Result of the rules for one reading: the parts that hold, and those that held before and no longer do.
pub struct ReadingParts {
    parts: Vec<(Finding, &'static str, Option<Part>)>,
    any_held: bool,
}

impl ReadingParts {
    /// Reports a part, or `None` if its reason is absent.
    pub fn report(&mut self, finding: Finding, name: &'static str, part: Option<Part>) {
        // Absent parts are skipped if nothing was active before, which is the case for most GPUs most of the time.
        if part.is_some() || self.any_held {
            self.parts.push((finding, name, part));
        }
    }
}

/// One reading of one GPU.
pub struct Look<'a> {
    pub context: &'a FaultContext<'a>,
    pub reading: &'a GpuReading,
    pub values: &'a Values,
}

impl Look<'_> {
    pub fn value(&self, signal: GpuSignal) -> Option<f64> {
        self.values.get(signal)
    }

    pub fn flag(&self, signal: GpuSignal) -> Option<bool> {
        self.value(signal).map(|value| value > 0.5)
    }

    pub fn part(&self, severity: Severity, why: &str) -> Part {
        Part::new(self.context, severity, why)
    }
}

impl Counters {
    /// Returns how much a counter rose since the job's start, and whether it rose since the reading before.
    pub fn risen(&mut self, look: &Look<'_>, signal: GpuSignal) -> Option<(f64, bool)> {
        Some(self.rises.take(signal, look.value(signal)?))
    }

    /// Returns the change to report for a part, or `None` if there is none. `Some(Some(part))` reports a part that is
    /// new or requests something else; if `renew` is true, it is reported at every reading. `Some(None)` ends a part
    /// whose reason has been gone for long enough.
    fn latch(
        &mut self,
        name: &'static str,
        part: Option<Part>,
        clear_after: u32,
        renew: bool,
    ) -> Option<Option<Part>> {
        if let Some(part) = part {
            let asks = (part.severity, part.order);
            let before = self.holding.insert(Cow::Borrowed(name), (0, asks));
            let is_news = renew || before.is_none_or(|(_, before)| before != asks);
            return is_news.then_some(Some(part));
        }
        let (gone, _) = self.holding.get_mut(name)?;
        *gone += 1;
        if *gone < clear_after {
            return None;
        }
        self.holding.remove(name);
        Some(None)
    }
}

impl FaultRule {
    /// Takes one reading of one GPU.
    pub(super) fn reading(&mut self, context: &FaultContext<'_>, reading: &GpuReading) {
        let key = (context.node.clone(), reading.gpu.clone());
        let known = self.gpus.get_mut(&key).is_some_and(|gpu| gpu.pci == reading.pci);
        if !known {
            let Some(id) = self.resolve(context, Some(&reading.gpu), &reading.pci) else {
                return;
            };
            let Some(gpu) = self.gpu(context, &id) else { return };
            gpu.pci = reading.pci.clone();
        }
        let Some(gpu) = self.gpus.get_mut(&key) else {
            return;
        };
        let mut values = std::mem::take(&mut gpu.known).unwrap_or_default();
        values.take(reading);
        let look = Look {
            context,
            reading,
            values: &values,
        };
        self.judge(&look, &key);
        if let Some(gpu) = self.gpus.get_mut(&key) {
            gpu.known = Some(values);
        }
    }

    /// Runs all rules for one GPU, once per reading.
    fn judge(&mut self, look: &Look<'_>, key: &(NodeId, GpuId)) {
        let (context, reading) = (look.context, look.reading);
        let Some(gpu) = self.gpus.get_mut(key) else {
            return;
        };
        gpu.counters.first_read.get_or_insert(context.at);
        let mut parts = ReadingParts {
            parts: Vec::new(),
            any_held: !gpu.counters.holding.is_empty(),
        };
        let asks_no_more = asked(look, gpu, &mut parts);
        memory_errors(look, &mut gpu.counters, &mut parts);
        remap::remaps(look, &mut gpu.counters, &mut parts);
        slow::throttles(look, &mut gpu.counters, &mut parts);
        slow::pcie(look, &mut gpu.counters, &mut parts);
        nvlinks::nvlinks(look, &mut gpu.counters, &mut self.wiring, &mut parts);
        gpu.memory.take(look, &gpu.holders, &mut parts);
        self.fleet.take(look, &mut gpu.member, &mut parts);
        let clear_after = context.limits.clear_readings;
        let renew = self.ledger.len() <= RENEWED;
        for (finding, name, part) in parts.parts {
            let fresh = !gpu.counters.holding.contains_key(name);
            let Some(news) = gpu.counters.latch(name, part, clear_after, renew) else {
                continue;
            };
            let subject = subject(context, &reading.gpu);
            match news {
                Some(mut part) => {
                    if fresh {
                        part.since_step = context.rank_on(&reading.gpu).map(|(_, step)| step);
                    }
                    self.ledger.hold(context, finding, &subject, name, part);
                }
                None => self.ledger.drop_part(context.at, finding, &subject, name),
            }
        }
        let (uncorrected, was_reset) = (uncorrected(look, gpu), was_reset(look, gpu));
        if was_reset {
            self.reset(context, &reading.gpu);
        } else if asks_no_more {
            self.recovered(context, &reading.gpu);
        }
        if let Some((risen, clean)) = uncorrected {
            self.tainted(look, risen, clean);
        }
        if !self.ledger.is_empty() {
            self.returns(look);
        }
    }

    /// Ends the finding of a lost GPU if the GPU answers again.
    fn returns(&mut self, look: &Look<'_>) {
        let (context, id) = (look.context, &look.reading.gpu);
        if !self.ledger.is_open(Finding::GpuLost, &subject(context, id)) {
            return;
        }
        let answers = look.values.has_any();
        let clear_after = context.limits.clear_readings;
        let Some(gpu) = self.gpu(context, id) else { return };
        if gpu.counters.answers.push(answers) >= clear_after {
            gpu.counters.answers = Streak::default();
            self.ledger
                .over(context.at, Finding::GpuLost, &subject(context, id));
        }
    }

    /// Reports uncorrectable errors. Everything computed since the last reading without new errors is suspect.
    fn tainted(&mut self, look: &Look<'_>, risen: f64, clean: Time) {
        let (context, id) = (look.context, &look.reading.gpu);
        let mut part = look
            .part(Severity::Critical, "Uncorrectable memory errors")
            .asks(Remedy::DrainReset, When::Now)
            .shows("uncorrected_errors", risen);
        part.count = risen as u64;
        let rank = context.rank_on(id);
        part.since_step = rank.map(|(_, step)| step);
        if rank.is_some() {
            let why = format!("Uncorrectable memory errors on {id}");
            let card = (Finding::EccUncorrectable, subject(context, id));
            self.suspect.taint(context, &mut self.ledger, clean, &why, card);
        }
        self.ledger.hold(
            context,
            Finding::EccUncorrectable,
            &subject(context, id),
            "uncorrected",
            part,
        );
    }
}

/// Returns the number of uncorrectable errors since the job's start, and the time of the last reading without new ones.
/// Returns `None` if this reading shows no new ones.
fn uncorrected(look: &Look<'_>, gpu: &mut Gpu) -> Option<(f64, Time)> {
    let (risen, now) = gpu.counters.risen(look, GpuSignal::EccUncorrected)?;
    if !now {
        gpu.counters.clean = Some(look.context.at);
        return None;
    }
    Some((risen, gpu.counters.clean.unwrap_or(look.context.at)))
}

/// Returns true if the counters that start at driver load have restarted, which means that the GPU was reset or its
/// driver was reloaded.
fn was_reset(look: &Look<'_>, gpu: &mut Gpu) -> bool {
    [GpuSignal::EnergyJ, GpuSignal::EccUncorrected]
        .into_iter()
        .any(|signal| {
            let Some(value) = look.value(signal) else {
                return false;
            };
            let before = gpu.loaded.insert(signal, value);
            before.is_some_and(|before| value < before)
        })
}

/// Reports the recovery that the driver requests. Returns true if the driver has requested none for long enough.
fn asked(look: &Look<'_>, gpu: &mut Gpu, parts: &mut ReadingParts) -> bool {
    let Some(number) = look.value(GpuSignal::RecoveryAction) else {
        return false;
    };
    let quiet = gpu.counters.unasked.push(number == 0.0);
    if number == 0.0 {
        parts.report(Finding::GpuFault, "recovery", None);
        return gpu.recovery_asked && quiet >= look.context.limits.clear_readings;
    }
    gpu.recovery_asked = true;
    let remedy = Remedy::of_recovery_action(number as u64);
    let asked = remedy.map(recovery_order);
    let severity = asked.map_or(Severity::Warning, |(severity, _)| severity);
    let mut part = look
        .part(severity, "The driver requests a recovery")
        .shows("recovery_action", number);
    part.order = asked.map_or(part.order, |(_, order)| order);
    parts.report(Finding::GpuFault, "recovery", Some(part));
    false
}

/// Reports memory errors: corrected ones by their rate, SRAM errors by their flag, and ECC by its mode.
fn memory_errors(look: &Look<'_>, counters: &mut Counters, parts: &mut ReadingParts) {
    let limits = look.context.limits;
    if let Some(corrected) = look.value(GpuSignal::EccCorrected) {
        let span = Duration::from_secs_f64(limits.corrected_window_s);
        let (rise, over) = counters.corrected.push(look.context.at, corrected, span);
        let (burst, short) = counters
            .corrected_short
            .push(look.context.at, corrected, span / 10);
        // A warning needs the whole window. A storm of errors shows in a tenth of the window.
        let rate = |rise: f64, over: Duration| rise / over.as_secs_f64().max(1.0);
        let slow = over >= span && rate(rise, over) >= limits.corrected_warning_per_s;
        let storm = short >= span / 10 && rate(burst, short) >= limits.corrected_critical_per_s;
        let part = (slow || storm).then(|| {
            let severity = if storm {
                Severity::Critical
            } else {
                Severity::Warning
            };
            let rate = if storm {
                rate(burst, short)
            } else {
                rate(rise, over)
            };
            look.part(severity, "Corrected memory errors at a high rate")
                .asks(Remedy::Diagnose, When::JobEnd)
                .shows("corrected_errors_per_s", rate)
        });
        parts.report(Finding::EccCorrected, "corrected", part);
    }
    let sram = look.flag(GpuSignal::SramThresholdExceeded);
    let part = sram.filter(|exceeded| *exceeded).map(|_| {
        look.part(Severity::Critical, "Errors in SRAM passed the threshold")
            .asks(Remedy::Inspect, When::NextCheckpoint)
            .shows("sram_threshold_exceeded", 1.0)
    });
    parts.report(Finding::EccUncorrectable, "sram", part);
    let (now, pending) = (
        look.flag(GpuSignal::EccEnabled),
        look.flag(GpuSignal::EccEnabledPending),
    );
    let part = match (now, pending) {
        (Some(false), _) => Some(look.part(Severity::Warning, "ECC is off")),
        (Some(now), Some(pending)) if now != pending => {
            Some(look.part(Severity::Warning, "ECC changes with the next reset"))
        }
        _ => None,
    };
    let part = part.map(|part| {
        let mut part = part.shows("ecc_enabled", f64::from(u8::from(now == Some(true))));
        part.more = "Set ECC as on the other GPUs before the next job.".to_owned();
        part
    });
    parts.report(Finding::GpuConfig, "ecc_mode", part);
}
