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

/// Maximum codes kept per GPU; further ones are ignored.
const MAX_CODES: usize = 64;
/// Maximum links (or GPCs) distinguished for one code.
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
    /// As in its readings.
    pub pci: Arc<str>,
    /// Its state in the fleet.
    pub member: Member,
    /// Counters that restart with the driver, as last read.
    pub loaded: BTreeMap<GpuSignal, f64>,
    pub codes: BTreeMap<u32, Code>,
    pub holders: Vec<GpuProcess>,
    pub counters: Counters,
    /// The last reported value of each signal.
    pub known: Option<Box<Values>>,
    pub memory: Memory,
    /// The driver requested a recovery: if it withdraws the request, the recovery is done.
    pub recovery_asked: bool,
}

/// One XID on one GPU.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Code {
    /// Counted by the kernel log and by NVML: both see the same faults, so the larger is their number.
    pub by_kernel: u64,
    pub by_nvml: u64,
    pub entries: Option<(u64, u64)>,
    /// The worst judgment.
    pub judged: Option<Judgement>,
    bursts: Bursts,
    /// The same by link, or by place on the chip.
    spots: BTreeMap<String, Spot>,
    /// Reboots of the node while it requested one.
    pub reboots: u32,
}

impl Code {
    /// Number of occurrences.
    pub fn count(&self) -> u64 {
        self.by_kernel.max(self.by_nvml)
    }

    /// Records an occurrence.
    pub fn seen(&mut self, at: Time, limits: &GpuThresholds) {
        self.bursts.take(at, limits);
    }

    /// Time of the last occurrence.
    pub fn last(&self) -> Option<Time> {
        self.bursts.last
    }

    /// Bursts within the window, including the latest.
    pub fn bursts(&self) -> u32 {
        self.bursts.count()
    }

    /// Records `count` more at one place. Returns the total there, and the number of bursts.
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

/// Counts recurring events by bursts: a burst continues while the next event comes soon after the last.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Bursts {
    /// Start of each burst, the latest last.
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
    /// The state of an XID; `None`: too many XIDs to be real.
    pub fn code(&mut self, xid: u32) -> Option<&mut Code> {
        if self.codes.len() >= MAX_CODES && !self.codes.contains_key(&xid) {
            return None;
        }
        Some(self.codes.entry(xid).or_default())
    }

    /// Whether an XID was seen within `span` before `at`.
    pub fn saw(&self, xid: u32, at: Time, span: Duration) -> bool {
        let last = self.codes.get(&xid).and_then(Code::last);
        last.is_some_and(|last| at.since(last) <= span)
    }

    /// The latest other XID within `span` before `at`.
    pub fn other_than(&self, xid: u32, at: Time, span: Duration) -> Option<u32> {
        let others = self.codes.iter().filter(|(own, _)| **own != xid);
        others
            .filter_map(|(own, code)| Some((code.last()?, *own)))
            .filter(|(last, _)| at.since(*last) <= span)
            .max()
            .map(|(_, own)| own)
    }

    /// It was reset, or recovered: what its XIDs requested is done.
    pub fn recovered(&mut self) {
        self.recovery_asked = false;
        self.codes.values_mut().for_each(|code| code.judged = None);
    }

    /// Its node was rebooted: its counters restart. XIDs that requested the reboot (`was_asked`) count it.
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
        // Once per second, for longer than the pause that ends a burst.
        for second in 0..600 {
            assert_eq!(at(second), (1, 1), "second {second}");
        }
        // After a pause, it is a new burst.
        assert_eq!(at(600 + 181), (2, 2));
    }
}
