//! NVLinks of a GPU: their error counters, and links that are down.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Counters, Look, ReadingParts};
use crate::event::GpuSignal;
use crate::fault::{Remedy, When};
use crate::id::NodeId;
use crate::verdict::{Finding, Severity};

/// Maximum GPU models kept per node.
const MAX_MODELS: usize = 16;

/// Maximum number of NVLinks that were up at once on a GPU, by node and model. It stands for the number of wired links,
/// because a GPU reports all links of its silicon. On a card without a bridge, or on one GPU of a baseboard in a
/// virtual machine, these links exist but are never up.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Wiring(BTreeMap<NodeId, BTreeMap<Arc<str>, f64>>);

impl Wiring {
    /// Takes one reading. Returns how many links should be up on this GPU, or 0 if there is no evidence that any is
    /// wired.
    fn expected(&mut self, look: &Look<'_>, up: f64) -> f64 {
        let models = self.0.entry(look.context.node.clone()).or_default();
        if models.len() >= MAX_MODELS && !models.contains_key(&look.reading.model) {
            return 0.0;
        }
        let most = models.entry(look.reading.model.clone()).or_default();
        *most = most.max(up);
        *most
    }
}

/// Reports link errors, and links that are down.
pub fn nvlinks(look: &Look<'_>, counters: &mut Counters, wiring: &mut Wiring, parts: &mut ReadingParts) {
    errors(look, counters, parts);
    down(look, counters, wiring, parts);
}

fn errors(look: &Look<'_>, counters: &mut Counters, parts: &mut ReadingParts) {
    for (name, signal, severity, why) in [
        (
            "recoveries",
            GpuSignal::NvlinkRecoveries,
            Severity::Warning,
            "NVLinks had to recover",
        ),
        (
            "nvlink_replays",
            GpuSignal::NvlinkReplays,
            Severity::Warning,
            "NVLinks retransmit",
        ),
        (
            "nvlink_errors",
            GpuSignal::NvlinkErrors,
            Severity::Warning,
            "NVLinks count uncorrected errors",
        ),
        (
            "recoveries_failed",
            GpuSignal::NvlinkRecoveriesFailed,
            Severity::Critical,
            "NVLinks could not recover",
        ),
    ] {
        let Some((risen, now)) = counters.risen(look, signal) else {
            continue;
        };
        // The errors of a counter that stopped rising are cleared after a while.
        let part = now.then(|| {
            let part = look.part(severity, why).shows(name, risen);
            match severity {
                Severity::Info => part,
                Severity::Warning => part.asks(Remedy::Diagnose, When::JobEnd),
                Severity::Critical => part.asks(Remedy::ResetGpu, When::NextCheckpoint),
            }
        });
        parts.report(Finding::NvlinkErrors, name, part);
    }
}

fn down(look: &Look<'_>, counters: &mut Counters, wiring: &mut Wiring, parts: &mut ReadingParts) {
    let limits = look.context.limits;
    let Some(up) = look.value(GpuSignal::NvlinkUp) else {
        return;
    };
    let expected = wiring.expected(look, up);
    counters.most_links = counters.most_links.max(up);
    // After a boot, links first train. A GPU that was seen with all of them up has finished training.
    let trained = counters.most_links >= expected || has_trained(look, counters);
    let readings = counters.links_down.push(up < expected);
    let part = (trained && readings >= limits.nvlink_down_readings).then(|| {
        let mut part = look
            .part(Severity::Critical, "NVLinks are down")
            .asks(Remedy::ResetGpu, When::NextCheckpoint);
        let shown = ("nvlinks_up".to_owned(), up, Some(expected));
        part.evidence.push(shown);
        part
    });
    parts.report(Finding::NvlinkErrors, "links_down", part);
}

fn has_trained(look: &Look<'_>, counters: &Counters) -> bool {
    let training = Duration::from_secs_f64(look.context.limits.nvlink_training_s);
    counters
        .first_read
        .is_some_and(|first| look.context.at.since(first) >= training)
}
