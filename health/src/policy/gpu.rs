//! Thresholds of the GPU rules.

use serde::{Deserialize, Serialize};

/// The values of `policy/gpu.toml`. That file gives the meaning and source of each value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct GpuThresholds {
    pub throttle_thermal_ratio: f64,
    pub throttle_window_s: f64,
    pub throttle_power_ratio: f64,
    pub throttle_power_peers_ratio: f64,
    pub slowdown_events: u32,
    pub slowdown_window_s: f64,
    pub brake_readings: u32,
    pub temperature_warning_c: f64,
    pub temperature_warning_s: f64,
    pub temperature_critical_c: f64,
    pub temperature_critical_s: f64,
    pub corrected_warning_per_s: f64,
    pub corrected_critical_per_s: f64,
    pub corrected_window_s: f64,
    pub remapped_rows_max: u32,
    pub retired_pages_max: u32,
    pub retired_double_bit_max: u32,
    pub pcie_busy_ratio: f64,
    pub pcie_readings: u32,
    pub pcie_replays: u32,
    pub pcie_replays_window_s: f64,
    pub nvlink_down_readings: u32,
    pub nvlink_training_s: f64,
    pub clear_readings: u32,
    pub xid_follows_s: f64,
    pub xid_burst_s: f64,
    pub xid_recurrence: u32,
    pub xid_recurrence_h: f64,
    pub xid_application_recurrence: u32,
    pub xid_reboots: u32,
    pub xid_quiet_s: f64,
    pub straggler_quiet_s: f64,
    pub breaker_nodes: u32,
    pub breaker_ratio: f64,
    pub breaker_s: f64,
    pub memory_full_ratio: f64,
    pub memory_full_s: f64,
    pub idle_s: f64,
    pub idle_memory_ratio: f64,
}
