//! Bursts of faults: the first of its kind is told at once, those that follow within a second together.

use std::collections::BTreeMap;
use std::sync::Arc;

use paceline_health::event::{FaultSource, GpuFault, GpuFaultKind};
use paceline_health::id::GpuId;

const WINDOW_NS: u64 = 1_000_000_000;
/// Kinds that are told apart. Past it those that differ only in their words are one, and past twice that they are lost.
const MAX_KINDS: usize = 256;

/// What makes two faults alike. The words count only where they decide what is asked for.
type Kind = (Option<GpuId>, Arc<str>, GpuFaultKind, u32, Arc<str>);

#[derive(Debug)]
struct Burst {
    fault: GpuFault,
    total: u32,
    unsent: u32,
    sent_ns: Option<u64>,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Bursts {
    kinds: BTreeMap<Kind, Burst>,
    lost: u64,
}

impl Bursts {
    /// Takes one fault.
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

    /// Tells what is new of its kind, and what has gathered for a second.
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

    /// All that ever was is told when it is sent next: there is somebody who knows nothing of it.
    pub fn tell_again(&mut self) {
        for burst in self.kinds.values_mut() {
            burst.unsent = burst.total;
            burst.sent_ns = None;
        }
    }

    /// Faults that were too many to be told apart.
    pub fn lost(&self) -> u64 {
        self.lost
    }
}

fn kind(fault: &GpuFault) -> Kind {
    // NVML's are the instance. In the log: registers, a place on the chip, a recovery action; elsewhere the words
    // differ by channel and address alone.
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
