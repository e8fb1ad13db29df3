//! Facts about one rank since a given time: readings of its GPU, process and node, reduced to numbers that can be
//! compared with its peers'.

use serde::{Deserialize, Serialize};

use crate::frame::Provenance;
use crate::stats;
use crate::verdict::Evidence;

/// Declares the facts with their names in evidence.
macro_rules! facts {
    ($($(#[$doc:meta])* $fact:ident = $name:literal,)*) => {
        /// A number about a rank. Its unit is in its name.
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
    /// The last reading, because an earlier one does not slow the GPU now.
    Margin = "margin_c",
    Power = "power_w",
    Busy = "utilization_ratio",
    /// The most frequent reading of a setting.
    SmClockSet = "sm_clock_set_mhz",
    PowerLimit = "power_limit_w",
    PcieGenMax = "pcie_generation_max",
    PcieLanesMax = "pcie_lanes_max",
    /// The value on which most readings of the busy GPU agree.
    PcieGen = "pcie_generation",
    PcieLanes = "pcie_lanes",
    /// The last reading of a flag.
    RemapPending = "remap_pending",
    RemapFailed = "remap_failed",
    /// Shares of the window in which the condition was true.
    Thermal = "thermal_throttled_ratio",
    PowerCap = "power_capped_ratio",
    PowerBrake = "power_braked_ratio",
    /// Increases in the window.
    EccUncorrected = "ecc_uncorrected_errors",
    PcieReplays = "pcie_replays",
    NvlinkErrors = "nvlink_errors",
    NvlinkRecoveries = "nvlink_recoveries",
    EccCorrectedRate = "ecc_corrected_errors_per_s",
    /// Shares of the window, read from the rank's process or else from its node.
    Contention = "cpu_contention_ratio",
    DiskWait = "disk_wait_ratio",
    MajorFaultRate = "major_faults_per_s",
    /// Values of the rank's node.
    NetErrorRate = "net_errors_per_s",
    NetRate = "net_rate_gbps",
}

impl Fact {
    /// Returns true if the fact takes only a few distinct values and no value in between is meaningful.
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

    /// Returns the fact that holds the current value, if this fact is a device's maximum. A maximum is compared with
    /// the current value and not with the peers.
    fn rates(self) -> Option<Fact> {
        match self {
            Fact::PcieGenMax => Some(Fact::PcieGen),
            Fact::PcieLanesMax => Some(Fact::PcieLanes),
            _ => None,
        }
    }
}

/// Values that differ by less than this ratio count as equal.
const SAME_RATIO: f64 = 0.01;

/// All facts about one rank, or the medians over several.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Facts {
    #[serde(with = "crate::codec::serde_impls::array")]
    values: [Option<f64>; NAMES.len()],
    /// First and last journal entry of the readings behind these facts.
    pub entries: Option<(u64, u64)>,
    pub provenance: Provenance,
    /// Number of readings in the window, of the GPU and of the process or node. `None` if there never was a reading.
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

    /// Records the journal entries and the provenance on which the facts are based.
    pub fn rest_on(&mut self, (first, last): (u64, u64), provenance: Provenance) {
        let (from, to) = self.entries.unwrap_or((first, last));
        self.entries = Some((from.min(first), to.max(last)));
        self.provenance = self.provenance.max(provenance);
    }

    /// Returns the median of each fact over the ranks that have it. For discrete facts, it returns the most frequent
    /// value.
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
        // Use the median number of readings, because half of the ranks have at least that many.
        let mut readings: Vec<Option<usize>> = of.iter().map(|facts| facts.gpu_readings).collect();
        readings.sort_unstable();
        medians.gpu_readings = readings.get(readings.len() / 2).copied().flatten();
        medians
    }

    /// Returns the known facts among `facts`, with the peers' values. A value equal to the peers' is omitted, because
    /// it is no evidence.
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
