//! Conditions that make a GPU slow: throttling, which is measured by time and not by samples, and a degraded PCIe link.

use std::time::Duration;

use super::{Counters, Look, ReadingParts};
use crate::detect::faults::ledger::Part;
use crate::event::GpuSignal;
use crate::fault::{Remedy, When};
use crate::verdict::{Cause, Finding, Severity};

/// Reports throttling by heat and power. The power cap is handled in [`super::fleet`], because it means something only
/// in comparison with the peers.
pub fn throttles(look: &Look<'_>, counters: &mut Counters, parts: &mut ReadingParts) {
    let (at, limits) = (look.context.at, look.context.limits);
    let mut report = |name, cause, part: Option<Part>| {
        let part = part.map(|part| Part { cause, ..part });
        parts.report(Finding::GpuThrottled, name, part);
    };
    if let Some(slowed) = look.value(GpuSignal::ThrottleThermalSwNs) {
        let span = Duration::from_secs_f64(limits.throttle_window_s);
        let rise = counters.thermal.per_span(at, slowed, span);
        let ratio = rise / 1e9 / limits.throttle_window_s;
        let part = (ratio >= limits.throttle_thermal_ratio).then(|| {
            look.part(Severity::Warning, "Heat slows it down")
                .asks(Remedy::Diagnose, When::JobEnd)
                .shows("thermal_throttled_ratio", ratio.min(1.0))
        });
        report("thermal_sw", Cause::Thermal, part);
    }
    if let Some((_, slowed)) = counters.risen(look, GpuSignal::ThrottleThermalHwNs) {
        let span = Duration::from_secs_f64(limits.slowdown_window_s);
        counters.slowdowns.retain(|event| at.since(*event) <= span);
        if slowed && counters.slowdowns.len() < limits.slowdown_events as usize {
            counters.slowdowns.push_back(at);
        }
        let sustained = counters.slowdowns.len() >= limits.slowdown_events as usize;
        let part = sustained.then(|| {
            look.part(
                Severity::Critical,
                "The hardware repeatedly slows it down because of heat",
            )
            .asks(Remedy::Inspect, When::NextCheckpoint)
            .shows("hardware_slowdowns", f64::from(limits.slowdown_events))
        });
        report("thermal_hw", Cause::Thermal, part);
    }
    if let Some((_, braked)) = counters.risen(look, GpuSignal::ThrottleBrakeNs) {
        let polls = counters.brake.push(braked);
        let part = (polls >= limits.brake_readings).then(|| {
            look.part(
                Severity::Critical,
                "The power brake slows it down: the supply or the facility",
            )
            .asks(Remedy::Inspect, When::NextCheckpoint)
            .shows("power_brake_readings", f64::from(limits.brake_readings))
        });
        report("brake", Cause::Power, part);
    }
    // If the thermal margin is known, the temperature is ignored. GPUs tolerate different temperatures, so the margin
    // is better evidence.
    let degrees = match look.value(GpuSignal::MarginC) {
        Some(_) => None,
        None => look.value(GpuSignal::TemperatureC),
    };
    let past = |since: Option<crate::time::Time>, seconds: f64| {
        since.is_some_and(|since| at.since(since) >= Duration::from_secs_f64(seconds))
    };
    if let Some(degrees) = degrees {
        let warm = counters.warm.holds(at, degrees >= limits.temperature_warning_c);
        let hot = counters.hot.holds(at, degrees >= limits.temperature_critical_c);
        let severity = if past(hot, limits.temperature_critical_s) {
            Some(Severity::Critical)
        } else {
            past(warm, limits.temperature_warning_s).then_some(Severity::Warning)
        };
        let part = severity.map(|severity| {
            let part = look.part(severity, "It is hot");
            part.asks(Remedy::Diagnose, When::JobEnd)
                .shows("temperature_c", degrees)
        });
        report("temperature", Cause::Thermal, part);
    }
}

/// Reports a degraded PCIe link, by its width, generation and replays.
pub fn pcie(look: &Look<'_>, counters: &mut Counters, parts: &mut ReadingParts) {
    let (at, limits) = (look.context.at, look.context.limits);
    let pair = |now, max| Some((look.value(now)?, look.value(max)?));
    let width = pair(GpuSignal::PcieWidth, GpuSignal::PcieWidthMax);
    let generation = pair(GpuSignal::PcieGen, GpuSignal::PcieGenMax);
    let busy = look
        .value(GpuSignal::UtilizationRatio)
        .is_some_and(|busy| busy >= limits.pcie_busy_ratio);
    let below = |pair: Option<(f64, f64)>| pair.is_some_and(|(now, max)| now < max);
    if width.is_some() || generation.is_some() {
        let readings = counters.narrow.push(busy && (below(width) || below(generation)));
        let part = (readings >= limits.pcie_readings).then(|| {
            let mut part = look
                .part(
                    Severity::Warning,
                    "The PCIe link is below its width or generation under load",
                )
                .asks(Remedy::Inspect, When::JobEnd);
            let what = [("pcie_width", width), ("pcie_generation", generation)];
            let shown = what.into_iter().filter_map(|(what, pair)| {
                let (now, max) = pair?;
                Some((what.to_owned(), now, Some(max)))
            });
            part.evidence.extend(shown);
            part
        });
        parts.report(Finding::PcieDegraded, "width", part);
    }
    if let Some(replays) = look.value(GpuSignal::PcieReplays) {
        let span = Duration::from_secs_f64(limits.pcie_replays_window_s);
        let rise = counters.replays.per_span(at, replays, span);
        let part = (rise > f64::from(limits.pcie_replays)).then(|| {
            look.part(Severity::Warning, "The PCIe link retransmits")
                .asks(Remedy::Diagnose, When::JobEnd)
                .shows("pcie_replays", rise)
        });
        parts.report(Finding::PcieDegraded, "replays", part);
    }
}
