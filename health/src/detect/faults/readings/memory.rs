//! Two conditions: a GPU whose memory is nearly full, and a GPU that is held by a process but idle.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Look, ReadingParts};
use crate::detect::faults::window::Since;
use crate::event::{GpuProcess, GpuSignal};
use crate::verdict::{Finding, Severity};

/// State of these rules.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Memory {
    full: Since,
    idle: Since,
    /// True once a kernel has run since monitoring began. It selects the text of the finding on an idle GPU.
    worked: bool,
}

impl Memory {
    pub fn take(&mut self, look: &Look<'_>, holders: &[GpuProcess], parts: &mut ReadingParts) {
        let (at, limits) = (look.context.at, look.context.limits);
        let (used, total) = (
            look.value(GpuSignal::MemoryUsedBytes),
            look.value(GpuSignal::MemoryTotalBytes),
        );
        let Some((used, total)) = used.zip(total).filter(|(_, total)| *total > 0.0) else {
            return;
        };
        let ratio = used / total;
        let lasts = |since: Option<crate::time::Time>, seconds: f64| {
            since.is_some_and(|since| at.since(since) >= Duration::from_secs_f64(seconds))
        };
        let full = self.full.holds(at, ratio >= limits.memory_full_ratio);
        // Frameworks keep memory once it is allocated, so a full GPU is worth reporting but is no fault.
        let part = lasts(full, limits.memory_full_s).then(|| {
            let mut part = look
                .part(
                    Severity::Info,
                    format!(
                        "{:.0} % of its memory is in use{}",
                        100.0 * ratio,
                        held_by(holders)
                    )
                    .as_str(),
                )
                .shows("memory_used_ratio", ratio);
            part.more =
                "If steps are slow or fail, lower the micro-batch or the memory that other processes hold."
                    .to_owned();
            part
        });
        parts.report(Finding::GpuMemoryFull, "memory", part);
        let Some(busy) = look.value(GpuSignal::UtilizationRatio) else {
            return;
        };
        self.worked |= busy > 0.0;
        let held = ratio >= limits.idle_memory_ratio || !holders.is_empty();
        let idle = self.idle.holds(at, held && busy == 0.0);
        let part = lasts(idle, limits.idle_s).then(|| {
            let began = if self.worked {
                "No kernel has run for a long time"
            } else {
                "No kernel has run since the job began"
            };
            let mut part = look
                .part(Severity::Warning, &format!("{began}{}", held_by(holders)))
                .shows("memory_used_ratio", ratio);
            part.more = "End the process that holds it, or release the GPU.".to_owned();
            part
        });
        parts.report(Finding::GpuIdle, "idle", part);
    }
}

/// Returns text such as ", held by python3 (4711) and 2 more".
fn held_by(holders: &[GpuProcess]) -> String {
    let Some(first) = holders.first() else {
        return String::new();
    };
    let name = if first.name.is_empty() {
        "a process outside this container"
    } else {
        &first.name
    };
    match holders.len() {
        1 => format!(", held by {name} ({})", first.pid),
        more => format!(", held by {name} ({}) and {} more", first.pid, more - 1),
    }
}
