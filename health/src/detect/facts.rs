//! What counters say of one rank since something began: its GPU, its process and its node, reduced to numbers that can
//! be compared with the same of its peers.

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
    SmClockSet = "sm_clock_set_mhz",
    Temperature = "temperature_c",
    /// The last one: what lies behind does not slow a GPU now.
    Margin = "margin_c",
    Power = "power_w",
    PowerLimit = "power_limit_w",
    Busy = "utilization_ratio",
    PcieGen = "pcie_generation",
    PcieGenMax = "pcie_generation_max",
    PcieLanes = "pcie_lanes",
    PcieLanesMax = "pcie_lanes_max",
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

/// All facts about one rank, or the medians over several.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
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

    /// Median of each fact over those of whom it is known.
    pub fn medians(of: &[Facts]) -> Facts {
        let mut medians = Facts::default();
        let mut scratch = Vec::with_capacity(of.len());
        for (index, median) in medians.values.iter_mut().enumerate() {
            scratch.clear();
            scratch.extend(of.iter().filter_map(|facts| facts.values[index]));
            *median = stats::median(&mut scratch);
        }
        medians.provenance = of
            .iter()
            .map(|facts| facts.provenance)
            .fold(Provenance::Live, Provenance::max);
        medians
    }

    /// Those of `facts` that are known, beside the peers'.
    pub fn evidence(&self, facts: &[Fact], peers: &Facts) -> Vec<Evidence> {
        let piece = |fact: &Fact| {
            Some(Evidence {
                what: NAMES[*fact as usize].into(),
                value: self.of(*fact)?,
                peers: peers.of(*fact),
                entries: self.entries,
            })
        };
        facts.iter().filter_map(piece).collect()
    }
}
