//! Counters of hosts: those of a node's cgroup and ports, and those of each rank's process. Even on healthy hosts, not
//! all counters are zero.

use std::collections::BTreeMap;

use super::meters::Ill;
use crate::event::{HostReading, HostSignal, Reading};
use crate::id::Rank;
use crate::sim::chance::Chance;
use crate::time::Time;
use crate::verdict::Cause;

/// Increase of a healthy node's counters per second. Each counter grows a little.
const NODE_RATES: [(HostSignal, f64); 7] = [
    (HostSignal::CpuThrottledNs, 2e5),
    (HostSignal::RunQueueNs, 2e7),
    (HostSignal::MemoryStallNs, 1e5),
    (HostSignal::DiskWaitNs, 1e7),
    (HostSignal::MajorFaults, 0.3),
    (HostSignal::NetRetransmits, 0.2),
    (HostSignal::NetErrors, 0.001),
];
/// Increase of the counters of a healthy rank's process per second.
const RANK_RATES: [(HostSignal, f64); 3] = [
    (HostSignal::RunQueueNs, 2e6),
    (HostSignal::DiskWaitNs, 1e6),
    (HostSignal::MajorFaults, 0.05),
];
/// Rate of a port of 400 Gb/s.
const PORT_BPS: f64 = 4e11;
/// Number of threads of a trainer that need a CPU while it launches kernels and loads data.
const THREADS: f64 = 4.0;

/// Uniform variation of the time waiting for a core from second to second, if cores are oversubscribed.
const WAIT_JITTER: f64 = 0.3;

/// The counters of one host, or of one process on it.
#[derive(Clone, Debug)]
pub(super) struct HostMeter {
    chance: Chance,
    rank: Option<u32>,
    read_at: Time,
    counters: BTreeMap<HostSignal, f64>,
}

impl HostMeter {
    /// Creates the meter of a node, or of the process of `rank` on it.
    pub fn new(seed: u64, node: u32, rank: Option<u32>) -> HostMeter {
        let mut chance = match rank {
            Some(rank) => Chance::of(seed, &[0x7072_6f63, u64::from(rank)]),
            None => Chance::of(seed, &[0x686f_7374, u64::from(node)]),
        };
        let rates = rates(rank);
        let mut counters: BTreeMap<HostSignal, f64> = BTreeMap::new();
        for (signal, rate) in rates {
            // The counters of a node start when it boots, and those of a process when the process starts.
            let age_s = if rank.is_some() { 60.0 } else { 1e6 };
            counters.insert(*signal, (rate * age_s * (1.0 + chance.unit())).floor());
        }
        HostMeter {
            chance,
            rank,
            read_at: Time::ZERO,
            counters,
        }
    }

    /// Reads the meter at `at`, with the faults of its ranks. `wanting` is the number of runnable threads without a
    /// CPU.
    pub fn read(&mut self, at: Time, ills: &[Ill], wanting: f64) -> HostReading {
        let span_s = at.since(self.read_at).as_secs_f64();
        self.read_at = at;
        for (signal, rate) in rates(self.rank) {
            // Host load is bursty. It is mostly below the mean, and sometimes several times the mean.
            let burst = -(1.0 - self.chance.unit()).ln();
            self.add(*signal, rate * span_s * burst);
        }
        if wanting > 0.0 {
            let varied = 1.0 + WAIT_JITTER * self.chance.around();
            self.add(HostSignal::RunQueueNs, span_s * 1e9 * wanting * varied);
        }
        for ill in ills {
            self.suffer(ill, span_s);
        }
        let mut readings: BTreeMap<HostSignal, Reading> = self
            .counters
            .iter()
            .map(|(signal, value)| (*signal, Reading::Value(value.floor())))
            .collect();
        if self.rank.is_none() {
            readings.insert(HostSignal::NetRateBps, Reading::Value(PORT_BPS));
        }
        HostReading {
            rank: self.rank.map(Rank),
            readings,
        }
    }

    fn add(&mut self, signal: HostSignal, amount: f64) {
        if let Some(counter) = self.counters.get_mut(&signal) {
            *counter += amount;
        }
    }

    /// Adds the effect of a fault in `span_s`. Counters that this meter lacks are skipped.
    fn suffer(&mut self, ill: &Ill, span_s: f64) {
        // The share of time that the fault adds.
        let excess = (1.0 - 1.0 / ill.factor) * (0.9 + 0.2 * self.chance.unit());
        match ill.cause {
            Cause::DataLoading => {
                self.add(HostSignal::DiskWaitNs, span_s * 1e9 * excess);
                self.add(HostSignal::MajorFaults, span_s * 5.0);
            }
            Cause::CpuContention => {
                self.add(HostSignal::RunQueueNs, span_s * 1e9 * excess * THREADS);
                if ill.way.is_multiple_of(2) {
                    self.add(HostSignal::CpuThrottledNs, span_s * 1e9 * excess);
                }
            }
            Cause::Network => {
                let (repeated, wrong) = (30.0 + 40.0 * self.chance.unit(), 1.0 + self.chance.unit());
                self.add(HostSignal::NetRetransmits, span_s * repeated);
                self.add(HostSignal::NetErrors, span_s * wrong);
            }
            _ => {}
        }
    }
}

fn rates(rank: Option<u32>) -> &'static [(HostSignal, f64)] {
    if rank.is_some() { &RANK_RATES } else { &NODE_RATES }
}
