//! State of one GPU.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Counters;
use super::fleet::Member;
use super::memory::Memory;
use super::values::Values;
use crate::event::{GpuProcess, GpuSignal};
use crate::fault::Judgement;
use crate::policy::GpuThresholds;
use crate::time::Time;
use crate::verdict::Finding;

/// Maximum number of XIDs kept for each GPU. Further ones are ignored.
const MAX_CODES: usize = 64;
/// Maximum number of links (or GPCs) distinguished for one XID.
const MAX_SPOTS: usize = 32;

/// Findings that end with a reset of the GPU, or a reboot of its node.
pub const ENDED_BY_RESET: [Finding; 5] = [
    Finding::GpuLost,
    Finding::GpuFault,
    Finding::EccUncorrectable,
    Finding::RowRemap,
    Finding::NvlinkErrors,
];

/// One GPU.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Gpu {
    /// The PCI address as in the GPU's readings.
    pub pci: Arc<str>,
    /// The state of this GPU in comparison with the others.
    pub member: Member,
    /// The last values of counters that restart when the driver is loaded.
    pub loaded: BTreeMap<GpuSignal, f64>,
    pub codes: BTreeMap<u32, Code>,
    pub holders: Vec<GpuProcess>,
    pub counters: Counters,
    /// The last reported value of each signal.
    pub known: Option<Box<Values>>,
    pub memory: Memory,
    /// True if the driver requested a recovery. If it withdraws the request, the recovery is done.
    pub recovery_asked: bool,
}

/// One XID on one GPU.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Code {
    /// Number of faults that the kernel log and NVML counted. Both see the same faults, so the larger number is used.
    pub by_kernel: u64,
    pub by_nvml: u64,
    pub entries: Option<(u64, u64)>,
    /// The worst judgment of this XID so far.
    pub judged: Option<Judgement>,
    bursts: Bursts,
    /// Occurrences by link, or by place on the chip.
    spots: BTreeMap<String, Spot>,
    /// Number of reboots of the node while this XID requested one.
    pub reboots: u32,
}

impl Code {
    /// Returns the number of occurrences.
    pub fn count(&self) -> u64 {
        self.by_kernel.max(self.by_nvml)
    }

    /// Records an occurrence.
    pub fn seen(&mut self, at: Time, limits: &GpuThresholds) {
        self.bursts.take(at, limits);
    }

    /// Returns the time of the last occurrence.
    pub fn last(&self) -> Option<Time> {
        self.bursts.last
    }

    /// Returns the number of bursts within the window, including the latest.
    pub fn bursts(&self) -> u32 {
        self.bursts.count()
    }

    /// Records `count` more occurrences at one place. Returns the total there, and the number of bursts.
    pub fn spot(&mut self, place: &str, count: u32, at: Time, limits: &GpuThresholds) -> (u32, u32) {
        if self.spots.len() >= MAX_SPOTS && !self.spots.contains_key(place) {
            return (count, 1);
        }
        let spot = self.spots.entry(place.to_owned()).or_default();
        spot.seen = spot.seen.saturating_add(count);
        spot.bursts.take(at, limits);
        (spot.seen, spot.bursts.count())
    }
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Spot {
    seen: u32,
    bursts: Bursts,
}

/// Counts recurring events by bursts. A burst continues as long as each event comes soon after the one before.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Bursts {
    /// Start of each burst, oldest first.
    begun: VecDeque<Time>,
    last: Option<Time>,
}

impl Bursts {
    fn take(&mut self, at: Time, limits: &GpuThresholds) {
        let goes_on = Duration::from_secs_f64(limits.xid_burst_s);
        let last = self.last.replace(at);
        let fresh = last.is_none_or(|last| at.since(last) > goes_on);
        let kept = Duration::from_secs_f64(limits.xid_recurrence_h * 3600.0);
        self.begun.retain(|begun| at.since(*begun) <= kept);
        if fresh || self.begun.is_empty() {
            self.begun.push_back(at);
        }
        while self.begun.len() > limits.xid_recurrence.max(2) as usize {
            self.begun.pop_front();
        }
    }

    fn count(&self) -> u32 {
        u32::try_from(self.begun.len()).unwrap_or(u32::MAX)
    }
}

impl Gpu {
    /// Returns the state of an XID, or `None` if there are more XIDs than is plausible.
    pub fn code(&mut self, xid: u32) -> Option<&mut Code> {
        if self.codes.len() >= MAX_CODES && !self.codes.contains_key(&xid) {
            return None;
        }
        Some(self.codes.entry(xid).or_default())
    }

    /// Returns true if the XID was seen within `span` before `at`.
    pub fn saw(&self, xid: u32, at: Time, span: Duration) -> bool {
        let last = self.codes.get(&xid).and_then(Code::last);
        last.is_some_and(|last| at.since(last) <= span)
    }

    /// Returns the latest XID other than `xid` within `span` before `at`.
    pub fn other_than(&self, xid: u32, at: Time, span: Duration) -> Option<u32> {
        let others = self.codes.iter().filter(|(own, _)| **own != xid);
        others
            .filter_map(|(own, code)| Some((code.last()?, *own)))
            .filter(|(last, _)| at.since(*last) <= span)
            .max()
            .map(|(_, own)| own)
    }

    /// Records that the GPU was reset or has recovered, so that what its XIDs requested is done.
    pub fn recovered(&mut self) {
        self.recovery_asked = false;
        self.codes.values_mut().for_each(|code| code.judged = None);
    }

    /// Records that the node was rebooted and its counters restarted. If `was_asked` is true, XIDs that requested the
    /// reboot count it.
    pub fn rebooted(&mut self, was_asked: bool) {
        for code in self.codes.values_mut() {
            let asks = code.judged.as_ref().is_some_and(Judgement::acts_on_node);
            if was_asked && asks {
                code.reboots += 1;
            }
        }
        self.recovered();
        self.loaded.clear();
        self.counters = Counters::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Policy;

    #[test]
    fn what_goes_on_is_one_burst_however_long() {
        let limits = Policy::default().detector.gpu;
        let mut code = Code::default();
        let mut at = |second: u64| {
            let at = Time(second * 1_000_000_000);
            code.seen(at, &limits);
            let (_, at_place) = code.spot("GPC 1", 1, at, &limits);
            (code.bursts(), at_place)
        };
        // One event per second, for longer than the pause that ends a burst, is still one burst.
        for second in 0..600 {
            assert_eq!(at(second), (1, 1), "second {second}");
        }
        // An event after a pause starts a new burst.
        assert_eq!(at(600 + 181), (2, 2));
    }
}
