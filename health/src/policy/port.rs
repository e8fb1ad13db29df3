//! Thresholds of the network port rule.

use serde::{Deserialize, Serialize};

/// The values of `policy/port.toml`. That file gives the meaning and source of each value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)]
pub struct PortThresholds {
    pub down_s: f64,
    pub slow_s: f64,
    pub flap_window_s: f64,
    pub flaps_critical: u32,
    pub errors: f64,
    pub errors_window_s: f64,
    pub clear_s: f64,
}
