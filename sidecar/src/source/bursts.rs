//! Bursts of faults. The first fault of a kind is sent at once; those within the next second are sent together.

use std::collections::BTreeMap;
use std::sync::Arc;

use paceline_health::event::{FaultSource, GpuFault, GpuFaultKind};
use paceline_health::id::GpuId;

const WINDOW_NS: u64 = 1_000_000_000;
/// Maximum number of kinds. Beyond it, a new fault's text no longer distinguishes kinds; beyond twice that, faults of
/// new kinds are lost.
const MAX_KINDS: usize = 256;

/// The kind of a fault. The text is part of it only if the required action depends on the text.
type Kind = (Option<GpuId>, Arc<str>, GpuFaultKind, u32, Arc<str>);

#[derive(Debug)]
struct Burst {
    fault: GpuFault,
    total: u32,
    unsent: u32,
    sent_ns: Option<u64>,
}

/// Collects faults; see the module.
#[derive(Debug, Default)]
pub struct Bursts {
    kinds: BTreeMap<Kind, Burst>,
    lost: u64,
}

impl Bursts {
    /// Adds a fault.
    pub fn add(&mut self, fault: GpuFault) {
        let mut kind = kind(&fault);
        if !self.kinds.contains_key(&kind) && self.kinds.len() >= MAX_KINDS {
            kind.4 = "".into();
        }
        if !self.kinds.contains_key(&kind) && self.kinds.len() >= 2 * MAX_KINDS {
            self.lost += u64::from(fault.count);
            return;
        }
        let burst = self.kinds.entry(kind).or_insert_with(|| Burst {
            fault: fault.clone(),
            total: 0,
            unsent: 0,
            sent_ns: None,
        });
        burst.total = burst.total.saturating_add(fault.count);
        burst.unsent = burst.unsent.saturating_add(fault.count);
        burst.fault = fault;
    }

    /// Sends faults of new kinds, and those collected for a second.
    pub fn send(&mut self, now_ns: u64, tell: &mut dyn FnMut(GpuFault)) {
        for burst in self.kinds.values_mut().filter(|burst| burst.unsent > 0) {
            if burst
                .sent_ns
                .is_none_or(|sent| now_ns.saturating_sub(sent) >= WINDOW_NS)
            {
                burst.sent_ns = Some(now_ns);
                let count = std::mem::take(&mut burst.unsent);
                tell(GpuFault {
                    count,
                    ..burst.fault.clone()
                });
            }
        }
    }

    /// Makes the next call send all faults again, for a receiver that has none of them.
    pub fn tell_again(&mut self) {
        for burst in self.kinds.values_mut() {
            burst.unsent = burst.total;
            burst.sent_ns = None;
        }
    }

    /// Returns the number of faults lost because there were too many kinds.
    pub fn lost(&self) -> u64 {
        self.lost
    }
}

fn kind(fault: &GpuFault) -> Kind {
    // NVML's text names the instance. In the kernel log, the text of these XIDs holds registers, a location on the
    // chip, or a recovery action. For other XIDs it differs only in channel and address.
    let words_decide = fault.seen_by == FaultSource::Nvml
        || fault.kind == GpuFaultKind::Switch
        || matches!(fault.xid, 13 | 74 | 144..=150 | 154);
    let words = if words_decide {
        fault.text.clone()
    } else {
        "".into()
    };
    (fault.gpu.clone(), fault.pci.clone(), fault.kind, fault.xid, words)
}
