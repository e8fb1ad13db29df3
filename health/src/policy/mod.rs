//! The policy is data: the tables in `policy/`, which are read once. The code detects conditions, and the tables decide
//! what they mean and what to do.

pub(crate) mod bounds;
mod gpu;
mod gpu_prices;
mod port;
mod values;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use self::gpu::GpuThresholds;
pub use self::gpu_prices::Prices;
pub use self::port::PortThresholds;
pub use self::values::PolicyError;
use crate::fault::FaultTables;
use crate::verdict::{Cause, Finding, Severity};

/// Three files, which are parsed as one table.
const DETECTOR: &str = concat!(
    include_str!("../../policy/detector.toml"),
    "\n",
    include_str!("../../policy/gpu.toml"),
    "\n",
    include_str!("../../policy/port.toml")
);
const FINDINGS: &str = include_str!("../../policy/findings.toml");

/// The active tables.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Policy {
    /// Thresholds of the rules.
    pub detector: Thresholds,
    /// The rows of findings as shipped. Like the XID tables, they do not change while a job runs.
    #[serde(skip, default = "shipped_findings")]
    findings: BTreeMap<Finding, FindingRow>,
    /// Findings that are reported without alerts.
    observed: BTreeSet<Finding>,
    /// Prices of a GPU-hour.
    prices: Prices,
    /// The XID tables.
    #[serde(skip)]
    faults: Arc<FaultTables>,
}

/// The values of `policy/detector.toml`, `policy/gpu.toml` and `policy/port.toml`. Those files give the meaning and
/// source of each value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct Thresholds {
    pub straggler: StragglerThresholds,
    pub impact: ImpactThresholds,
    pub silence: SilenceThresholds,
    pub blind: BlindThresholds,
    pub arrivals: ArrivalThresholds,
    pub thermal: ThermalThresholds,
    pub causes: CauseThresholds,
    pub link: LinkThresholds,
    pub kinds: KindThresholds,
    pub shares: ShareThresholds,
    pub gpu: GpuThresholds,
    pub port: PortThresholds,
    pub shift: ShiftThresholds,
    pub occasions: OccasionThresholds,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct StragglerThresholds {
    pub tolerated_ratio: f64,
    pub alternatives: Vec<f64>,
    pub false_alarms_per_day: f64,
    pub sigma_floor: f64,
    pub min_steps: u32,
    pub min_peers: u32,
    pub warm_up_max_steps: u32,
    pub warm_up_sigma: f64,
    pub noise_window_steps: u32,
    pub consistency_wait_ratio: f64,
    pub correlated_ratio: f64,
    pub correlated_min_ranks: u32,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct ImpactThresholds {
    pub warning_ratio: f64,
    pub critical_ratio: f64,
}

impl ImpactThresholds {
    /// Returns the severity of losing this share of step time.
    pub fn severity(&self, share: f64) -> Severity {
        if share >= self.critical_ratio {
            Severity::Critical
        } else if share >= self.warning_ratio {
            Severity::Warning
        } else {
            Severity::Info
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct SilenceThresholds {
    pub suspect_p99: f64,
    pub confirmed_p99: f64,
    pub confirmed_min_s: f64,
    pub suspect_min_s: f64,
    pub unknown_p99_s: f64,
    pub patience_ratio: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct BlindThresholds {
    pub beat_missing_s: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct ArrivalThresholds {
    pub warning_s: f64,
    pub critical_s: f64,
    pub loading_s: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct ThermalThresholds {
    pub throttled_ratio: f64,
    pub clock_ratio: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct CauseThresholds {
    pub explained_share: f64,
    pub contributing_share: f64,
    pub min_readings: u32,
    pub agreeing_ratio: f64,
    pub power_points: f64,
    pub power_limit_ratio: f64,
    pub power_clock_ratio: f64,
    pub stuck_clock_ratio: f64,
    pub busy_ratio: f64,
    pub error_ratio: f64,
    pub ecc_corrected_per_s: f64,
    pub ecc_corrected_ratio: f64,
    pub pcie_phase_share: f64,
    pub pcie_replays: f64,
    pub nvlink_errors: f64,
    pub net_errors_per_s: f64,
    pub net_rate_ratio: f64,
    pub contention_points: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct KindThresholds {
    pub jump_ratio: f64,
    pub jump_sigmas: f64,
    pub ranks_ratio: f64,
    pub lasting_steps: u32,
    pub recurrences: u32,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct LinkThresholds {
    pub slow_ratio: f64,
    pub elsewhere_ratio: f64,
    pub clear_ratio: f64,
    pub min_steps: u32,
    pub window_steps: u32,
    pub settle_steps: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct ShareThresholds {
    pub window_steps: u32,
    pub data_warning_ratio: f64,
    pub data_critical_ratio: f64,
    pub transfer_warning_ratio: f64,
    pub transfer_critical_ratio: f64,
    pub spread_ratio: f64,
    pub explained_ratio: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct ShiftThresholds {
    pub change_ratio: f64,
    pub change_sigmas: f64,
    pub held_steps: u32,
    pub transfer_held_steps: u32,
    pub reference_steps: u32,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct OccasionThresholds {
    pub checkpoint_ratio: f64,
    pub checkpoints: u32,
    pub warm_up_s: f64,
    pub warm_up_long_s: f64,
    pub warm_up_ratio: f64,
    pub warm_up_steps: f64,
}

/// Who receives the alerts of a finding.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Urgency {
    /// The person on call, if the finding is critical.
    #[default]
    Page,
    /// The owner of the job, during working hours, because the cause is in the job itself.
    Ticket,
}

impl Urgency {
    /// Returns its name in labels.
    pub fn name(self) -> &'static str {
        match self {
            Urgency::Page => "page",
            Urgency::Ticket => "ticket",
        }
    }

    /// Limits the severity of a finding. A finding of urgency `Ticket` is at most a warning, whatever it costs.
    pub fn bound(self, severity: Severity) -> Severity {
        match self {
            Urgency::Page => severity,
            Urgency::Ticket => severity.min(Severity::Warning),
        }
    }
}

/// One row of `policy/findings.toml`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FindingRow {
    /// The finding in a few words.
    pub title: Arc<str>,
    /// What it means for the job.
    pub means: Arc<str>,
    /// What to check.
    pub look: Arc<str>,
    /// Who receives its alerts.
    #[serde(default)]
    pub urgency: Urgency,
    action: BTreeMap<Cause, Arc<str>>,
    /// Actions for a job with one rank.
    #[serde(default)]
    alone: BTreeMap<Cause, Arc<str>>,
}

impl Default for Policy {
    /// Returns the tables as shipped.
    fn default() -> Policy {
        // The texts are compiled in and covered by a test, so parsing them cannot fail on a user's machine.
        Policy {
            detector: toml::from_str(DETECTOR).expect("policy/detector.toml is tested"),
            findings: shipped_findings(),
            observed: BTreeSet::new(),
            prices: Prices::default(),
            faults: Arc::default(),
        }
    }
}

fn shipped_findings() -> BTreeMap<Finding, FindingRow> {
    // This cannot fail either, for the same reason.
    toml::from_str(FINDINGS).expect("policy/findings.toml is tested")
}

impl Policy {
    /// Returns the XID tables.
    pub fn faults(&self) -> &Arc<FaultTables> {
        &self.faults
    }

    /// Returns the row of a finding.
    pub fn finding(&self, finding: Finding) -> &FindingRow {
        // A test over Finding::ALL checks that every finding has a row.
        &self.findings[&finding]
    }

    /// Returns true if `finding` is only observed, which means that it is reported as info without alerts.
    pub fn observes_only(&self, finding: Finding) -> bool {
        self.observed.contains(&finding)
    }

    /// Returns the price of a GPU-hour of `model` (the driver's name for it), if configured.
    pub fn gpu_hour_price(&self, model: Option<&str>) -> Option<f64> {
        self.prices.of(model)
    }

    /// Returns the table's action for `finding` with `cause` in a job with one rank.
    pub fn action_alone(&self, finding: Finding, cause: Cause) -> Arc<str> {
        let alone = &self.finding(finding).alone;
        let action = alone.get(&cause).or_else(|| alone.get(&Cause::Unknown)).cloned();
        action.unwrap_or_else(|| self.action(finding, cause))
    }

    /// Returns the table's action for `finding` with `cause`.
    pub fn action(&self, finding: Finding, cause: Cause) -> Arc<str> {
        let actions = &self.finding(finding).action;
        actions
            .get(&cause)
            .or_else(|| actions.get(&Cause::Unknown))
            .cloned()
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_design_of_a_job_pages_nobody() {
        let policy = Policy::default();
        let tickets = Finding::ALL.iter().copied();
        let tickets: Vec<Finding> = tickets
            .filter(|finding| policy.finding(*finding).urgency == Urgency::Ticket)
            .collect();
        for design in [
            Finding::StageImbalance,
            Finding::SequenceImbalance,
            Finding::ExpertImbalance,
            Finding::DataLoading,
            Finding::CommunicationBound,
        ] {
            assert!(tickets.contains(&design), "{design}");
        }
        for broken in [Finding::Straggler, Finding::JobHang, Finding::GpuLost] {
            assert!(!tickets.contains(&broken), "{broken}");
        }
        let ticket = |severity| Urgency::Ticket.bound(severity);
        assert_eq!(ticket(Severity::Critical), Severity::Warning);
        assert_eq!(ticket(Severity::Info), Severity::Info);
        assert_eq!(Urgency::Page.bound(Severity::Critical), Severity::Critical);
    }

    #[test]
    fn the_tables_are_whole() {
        let policy = Policy::default();
        for finding in Finding::ALL.iter().copied() {
            let row = policy.finding(finding);
            assert!(!row.title.is_empty() && !row.means.is_empty() && !row.look.is_empty());
            for cause in Cause::ALL.iter().copied() {
                assert!(
                    !policy.action(finding, cause).is_empty(),
                    "{finding} {}",
                    cause.name()
                );
            }
        }
    }
}
