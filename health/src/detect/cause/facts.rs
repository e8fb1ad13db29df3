//! What counters say of one rank since something began: its GPU, its process and its node, reduced to numbers that can
//! be compared with the same of its peers.

use serde::{Deserialize, Serialize};

use crate::frame::Provenance;
use crate::stats;
use crate::verdict::Evidence;

/// Declares the facts with the names that evidence gives them.
macro_rules! facts {
    ($($(#[$doc:meta])* $fact:ident = $name:literal,)*) => {
        /// A number about a rank; its unit is in its name.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Fact {
            $($(#[$doc])* $fact,)*
        }

        /// How many there are, and their names.
        const NAMES: [&str; [$($name),*].len()] = [$($name),*];
    };
}

facts! {
    /// Medians over the window.
    SmClock = "sm_clock_mhz",
    Temperature = "temperature_c",
    /// The last one: what lies behind does not slow a GPU now.
    Margin = "margin_c",
    Power = "power_w",
    Busy = "utilization_ratio",
    /// Settings: the most frequent reading.
    SmClockSet = "sm_clock_set_mhz",
    PowerLimit = "power_limit_w",
    PcieGenMax = "pcie_generation_max",
    PcieLanesMax = "pcie_lanes_max",
    /// What most readings of the busy GPU agree on.
    PcieGen = "pcie_generation",
    PcieLanes = "pcie_lanes",
    /// Flags: the last reading.
    RemapPending = "remap_pending",
    RemapFailed = "remap_failed",
    /// Shares of the window.
    Thermal = "thermal_throttled_ratio",
    PowerCap = "power_capped_ratio",
    PowerBrake = "power_braked_ratio",
    /// Rises in the window.
    EccUncorrected = "ecc_uncorrected_errors",
    PcieReplays = "pcie_replays",
    NvlinkErrors = "nvlink_errors",
    NvlinkRecoveries = "nvlink_recoveries",
    EccCorrectedRate = "ecc_corrected_errors_per_s",
    /// Of the rank's process, else of its node; shares of the window.
    Contention = "cpu_contention_ratio",
    DiskWait = "disk_wait_ratio",
    MajorFaultRate = "major_faults_per_s",
    /// Of its node.
    NetErrorRate = "net_errors_per_s",
    NetRate = "net_rate_gbps",
}

impl Fact {
    /// Whether it takes few distinct values, between which there is nothing.
    fn is_discrete(index: usize) -> bool {
        const DISCRETE: [Fact; 8] = [
            Fact::SmClockSet,
            Fact::PowerLimit,
            Fact::PcieGenMax,
            Fact::PcieLanesMax,
            Fact::PcieGen,
            Fact::PcieLanes,
            Fact::RemapPending,
            Fact::RemapFailed,
        ];
        DISCRETE.iter().any(|fact| *fact as usize == index)
    }

    /// What the device is made for, of what it has now: there is nothing to hold against peers.
    fn rates(self) -> Option<Fact> {
        match self {
            Fact::PcieGenMax => Some(Fact::PcieGen),
            Fact::PcieLanesMax => Some(Fact::PcieLanes),
            _ => None,
        }
    }
}

/// Two readings that differ by less are the same.
const SAME_RATIO: f64 = 0.01;

/// All facts about one rank, or the medians over several.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Facts {
    #[serde(with = "crate::codec::serde_impls::array")]
    values: [Option<f64>; NAMES.len()],
    /// First and last journal entry that they were read from.
    pub entries: Option<(u64, u64)>,
    pub provenance: Provenance,
    /// Readings in the window of its GPU, and of its process or node; `None`: it was never read.
    pub gpu_readings: Option<usize>,
    pub host_readings: Option<usize>,
}

impl Default for Facts {
    fn default() -> Facts {
        Facts {
            values: [None; NAMES.len()],
            entries: None,
            provenance: Provenance::Live,
            gpu_readings: None,
            host_readings: None,
        }
    }
}

impl Facts {
    pub fn of(&self, fact: Fact) -> Option<f64> {
        self.values[fact as usize]
    }

    pub fn set(&mut self, fact: Fact, value: Option<f64>) {
        self.values[fact as usize] = value;
    }

    /// Takes note of where facts were read.
    pub fn rest_on(&mut self, (first, last): (u64, u64), provenance: Provenance) {
        let (from, to) = self.entries.unwrap_or((first, last));
        self.entries = Some((from.min(first), to.max(last)));
        self.provenance = self.provenance.max(provenance);
    }

    /// Median of each fact over those of whom it is known; of what takes few values, the most frequent one.
    pub fn medians(of: &[Facts]) -> Facts {
        let mut medians = Facts::default();
        let mut scratch = Vec::with_capacity(of.len());
        for (index, median) in medians.values.iter_mut().enumerate() {
            scratch.clear();
            scratch.extend(of.iter().filter_map(|facts| facts.values[index]));
            *median = if Fact::is_discrete(index) {
                stats::mode(&mut scratch).map(|(value, _)| value)
            } else {
                stats::median(&mut scratch)
            };
        }
        for facts in of {
            medians.provenance = medians.provenance.max(facts.provenance);
            if let Some(entries) = facts.entries {
                medians.rest_on(entries, facts.provenance);
            }
        }
        // So many each of most of them has.
        let mut readings: Vec<Option<usize>> = of.iter().map(|facts| facts.gpu_readings).collect();
        readings.sort_unstable();
        medians.gpu_readings = readings.get(readings.len() / 2).copied().flatten();
        medians
    }

    /// Those of `facts` that are known, beside the peers'. What reads the same on the peers is no evidence.
    pub fn evidence(&self, facts: &[Fact], peers: &Facts) -> Vec<Evidence> {
        let piece = |fact: &Fact| {
            let value = self.of(*fact)?;
            let (peers, beside) = match fact.rates() {
                Some(now) => (None, self.of(now)),
                None => (peers.of(*fact), peers.of(*fact)),
            };
            let is_same = |other: f64| (value - other).abs() <= SAME_RATIO * value.abs().max(other.abs());
            (!beside.is_some_and(is_same)).then(|| Evidence {
                what: NAMES[*fact as usize].into(),
                value,
                peers,
                entries: self.entries,
            })
        };
        facts.iter().filter_map(piece).collect()
    }
}
