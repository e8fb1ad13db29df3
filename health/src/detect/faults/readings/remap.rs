//! Memory rows and pages that were remapped or retired, and those for which this is pending or has failed.

use super::{Counters, Look, ReadingParts};
use crate::detect::faults::ledger::Part;
use crate::event::GpuSignal;
use crate::fault::{Remedy, When};
use crate::verdict::{Finding, Severity};

/// Reports rows and pages that were taken out of use, and those for which this is pending or has failed.
pub fn remaps(look: &Look<'_>, counters: &mut Counters, parts: &mut ReadingParts) {
    let limits = look.context.limits;
    let mut report = |name, part: Option<Part>| parts.report(Finding::RowRemap, name, part);
    let is_set = |signal| look.flag(signal) == Some(true);
    report(
        "pending",
        (is_set(GpuSignal::RemapPending) || is_set(GpuSignal::RetiredPagesPending)).then(|| {
            look.part(
                Severity::Warning,
                "A row waits to be remapped, and running work stays correct",
            )
            .asks(Remedy::ResetGpu, When::JobEnd)
            .shows("remap_pending", 1.0)
        }),
    );
    report(
        "failed",
        is_set(GpuSignal::RemapFailed).then(|| {
            look.part(Severity::Critical, "A row could not be remapped")
                .asks(Remedy::Inspect, When::NextCheckpoint)
                .shows("remap_failed", 1.0)
        }),
    );
    let rows = look.value(GpuSignal::RowsRemappedUncorrectable);
    let risen = counters.risen(look, GpuSignal::RowsRemappedUncorrectable);
    report(
        "rows",
        rows.zip(risen).and_then(|(rows, (risen, _))| {
            if rows >= f64::from(limits.remapped_rows_max) {
                let part = look.part(Severity::Critical, "The maximum number of rows is remapped");
                Some(
                    part.asks(Remedy::Inspect, When::JobEnd)
                        .shows("rows_remapped", rows),
                )
            } else {
                (risen > 0.0).then(|| {
                    let part = look.part(Severity::Warning, "Rows were remapped after uncorrectable errors");
                    part.shows("rows_remapped", rows)
                        .shows("rows_remapped_in_job", risen)
                })
            }
        }),
    );
    let correctable = counters.risen(look, GpuSignal::RowsRemappedCorrectable);
    report(
        "rows_correctable",
        correctable.filter(|(risen, _)| *risen > 0.0).map(|(risen, _)| {
            look.part(Severity::Info, "Rows were remapped after correctable errors")
                .shows("rows_remapped_correctable_in_job", risen)
        }),
    );
    let none = look.value(GpuSignal::RemapBanksNone).filter(|banks| *banks > 0.0);
    let low = counters
        .risen(look, GpuSignal::RemapBanksLow)
        .filter(|(risen, _)| *risen > 0.0);
    report(
        "banks",
        (none.is_some() || low.is_some()).then(|| {
            look.part(Severity::Warning, "Banks of memory run out of spare rows")
                .asks(Remedy::Inspect, When::JobEnd)
                .shows("banks_without_spare_rows", none.unwrap_or(0.0))
        }),
    );
    let single = look.value(GpuSignal::RetiredPagesSingleBit).unwrap_or(0.0);
    let double = look.value(GpuSignal::RetiredPagesDoubleBit).unwrap_or(0.0);
    let doubled = counters
        .risen(look, GpuSignal::RetiredPagesDoubleBit)
        .is_some_and(|(risen, _)| risen > 0.0);
    let worn = single + double >= f64::from(limits.retired_pages_max)
        || (doubled && double > f64::from(limits.retired_double_bit_max));
    report(
        "pages",
        worn.then(|| {
            look.part(Severity::Critical, "The maximum number of pages is retired")
                .asks(Remedy::Inspect, When::JobEnd)
                .shows("pages_retired", single + double)
        }),
    );
}
