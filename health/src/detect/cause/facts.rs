//! Facts about one rank since a given time: readings of its GPU, process and node, reduced to numbers that can be
//! compared with its peers'.

use serde::{Deserialize, Serialize};

use crate::frame::Provenance;
use crate::stats;
use crate::verdict::Evidence;

/// Declares the facts with their names in evidence.
macro_rules! facts {
    ($($(#[$doc:meta])* $fact:ident = $name:literal,)*) => {
        /// A number about a rank; its unit is in its name.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Fact {
            $($(#[$doc])* $fact,)*
        }

        /// Names of the facts, in order.
        const NAMES: [&str; [$($name),*].len()] = [$($name),*];
    };
}

facts! {
    /// Medians over the window.
    SmClock = "sm_clock_mhz",
    Temperature = "temperature_c",
    /// The last reading: an earlier one does not slow the GPU now.
    Margin = "margin_c",
    Power = "power_w",
    Busy = "utilization_ratio",
    /// Settings: the most frequent reading.
    SmClockSet = "sm_clock_set_mhz",
    PowerLimit = "power_limit_w",
    PcieGenMax = "pcie_generation_max",
    PcieLanesMax = "pcie_lanes_max",
    /// The value on which most readings of the busy GPU agree.
    PcieGen = "pcie_generation",
    PcieLanes = "pcie_lanes",
    /// Flags: the last reading.
    RemapPending = "remap_pending",
    RemapFailed = "remap_failed",
    /// Shares of the window.
    Thermal = "thermal_throttled_ratio",
    PowerCap = "power_capped_ratio",
    PowerBrake = "power_braked_ratio",
    /// Increases in the window.
    EccUncorrected = "ecc_uncorrected_errors",
    PcieReplays = "pcie_replays",
    NvlinkErrors = "nvlink_errors",
    NvlinkRecoveries = "nvlink_recoveries",
    EccCorrectedRate = "ecc_corrected_errors_per_s",
    /// Of the rank's process, or else of its node; shares of the window.
    Contention = "cpu_contention_ratio",
    DiskWait = "disk_wait_ratio",
    MajorFaultRate = "major_faults_per_s",
    /// Of the rank's node.
    NetErrorRate = "net_errors_per_s",
    NetRate = "net_rate_gbps",
}

impl Fact {
    /// Whether it takes only a few distinct values, with no meaningful value in between.
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

    /// For a device's maximum: the fact with the current value. The maximum is compared with that, not with peers.
    fn rates(self) -> Option<Fact> {
        match self {
            Fact::PcieGenMax => Some(Fact::PcieGen),
            Fact::PcieLanesMax => Some(Fact::PcieLanes),
            _ => None,
        }
    }
}

/// Readings that differ by less are equal.
const SAME_RATIO: f64 = 0.01;

/// All facts about one rank, or the medians over several.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Facts {
    #[serde(with = "crate::codec::serde_impls::array")]
    values: [Option<f64>; NAMES.len()],
    /// First and last journal entry of their readings.
    pub entries: Option<(u64, u64)>,
    pub provenance: Provenance,
    /// Number of readings in the window of its GPU, and of its process or node; `None`: never read.
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

    /// Records the journal entries and provenance of facts.
    pub fn rest_on(&mut self, (first, last): (u64, u64), provenance: Provenance) {
        let (from, to) = self.entries.unwrap_or((first, last));
        self.entries = Some((from.min(first), to.max(last)));
        self.provenance = self.provenance.max(provenance);
    }

    /// Median of each fact over the ranks that have it; for discrete facts, the most frequent value.
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
        // Most of them have at least this many.
        let mut readings: Vec<Option<usize>> = of.iter().map(|facts| facts.gpu_readings).collect();
        readings.sort_unstable();
        medians.gpu_readings = readings.get(readings.len() / 2).copied().flatten();
        medians
    }

    /// The known facts among `facts`, with the peers' values. A value equal to the peers' is no evidence.
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
