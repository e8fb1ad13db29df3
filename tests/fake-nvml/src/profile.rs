//! The readings of healthy GPUs of each model, and the readings that a model supports. Numbers are from data sheets
//! where available, and otherwise plausible values.

use std::collections::BTreeMap;

use crate::scenario::{Failure, Item};

const GIB: f64 = (1u64 << 30) as f64;
const NOT_SUPPORTED: Item = Item::Failure(Failure(3));

/// The type of a field's value, as in nvmlValueType_t.
pub const UNSIGNED: u32 = 1;
/// See [`UNSIGNED`].
pub const UNSIGNED_LONG_LONG: u32 = 3;
/// See [`UNSIGNED`].
pub const SIGNED: u32 = 5;

/// The fields, each with its name in nvml.h, its item and its type. The driver determines its number
/// ([`crate::drivers`]).
pub const FIELDS: &[(&str, &str, u32)] = &[
    ("NVML_FI_DEV_ECC_CURRENT", "ecc_enabled", UNSIGNED),
    ("NVML_FI_DEV_ECC_PENDING", "ecc_enabled_pending", UNSIGNED),
    (
        "NVML_FI_DEV_ECC_SBE_VOL_TOTAL",
        "ecc_corrected",
        UNSIGNED_LONG_LONG,
    ),
    (
        "NVML_FI_DEV_ECC_DBE_VOL_TOTAL",
        "ecc_uncorrected",
        UNSIGNED_LONG_LONG,
    ),
    (
        "NVML_FI_DEV_ECC_SBE_AGG_TOTAL",
        "ecc_corrected_aggregate",
        UNSIGNED_LONG_LONG,
    ),
    (
        "NVML_FI_DEV_ECC_DBE_AGG_TOTAL",
        "ecc_uncorrected_aggregate",
        UNSIGNED_LONG_LONG,
    ),
    ("NVML_FI_DEV_RETIRED_SBE", "retired_single", UNSIGNED),
    ("NVML_FI_DEV_RETIRED_DBE", "retired_double", UNSIGNED),
    ("NVML_FI_DEV_RETIRED_PENDING", "retired_pending", UNSIGNED),
    (
        "NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
        "nvlink_crc_flit",
        UNSIGNED_LONG_LONG,
    ),
    (
        "NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL",
        "nvlink_crc_data",
        UNSIGNED_LONG_LONG,
    ),
    (
        "NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL",
        "nvlink_replays",
        UNSIGNED_LONG_LONG,
    ),
    (
        "NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL",
        "nvlink_recoveries",
        UNSIGNED_LONG_LONG,
    ),
    (
        "NVML_FI_DEV_PERF_POLICY_POWER",
        "throttle_power_ns",
        UNSIGNED_LONG_LONG,
    ),
    (
        "NVML_FI_DEV_PERF_POLICY_THERMAL",
        "policy_thermal_ns",
        UNSIGNED_LONG_LONG,
    ),
    (
        "NVML_FI_DEV_PERF_POLICY_SYNC_BOOST",
        "throttle_sync_ns",
        UNSIGNED_LONG_LONG,
    ),
    ("NVML_FI_DEV_MEMORY_TEMP", "memory_temperature", UNSIGNED),
    (
        "NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
        "energy_mj",
        UNSIGNED_LONG_LONG,
    ),
    ("NVML_FI_DEV_NVLINK_LINK_COUNT", "nvlink_count", UNSIGNED),
    ("NVML_FI_DEV_PCIE_REPLAY_COUNTER", "pcie_replays", UNSIGNED),
    (
        "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX",
        "nvlink_sent_kib",
        UNSIGNED_LONG_LONG,
    ),
    (
        "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX",
        "nvlink_received_kib",
        UNSIGNED_LONG_LONG,
    ),
    ("NVML_FI_DEV_REMAPPED_COR", "remapped_correctable", UNSIGNED),
    ("NVML_FI_DEV_REMAPPED_UNC", "remapped_uncorrectable", UNSIGNED),
    ("NVML_FI_DEV_REMAPPED_PENDING", "remap_pending", UNSIGNED),
    ("NVML_FI_DEV_REMAPPED_FAILURE", "remap_failed", UNSIGNED),
    ("NVML_FI_DEV_NVLINK_GET_STATE", "nvlink_up", UNSIGNED),
    ("NVML_FI_DEV_POWER_AVERAGE", "power_mw", UNSIGNED),
    ("NVML_FI_DEV_POWER_INSTANT", "power_instant_mw", UNSIGNED),
    (
        "NVML_FI_DEV_POWER_DEFAULT_LIMIT",
        "power_limit_default_mw",
        UNSIGNED,
    ),
    ("NVML_FI_DEV_POWER_CURRENT_LIMIT", "power_limit_mw", UNSIGNED),
    (
        "NVML_FI_DEV_TEMPERATURE_SLOWDOWN_TLIMIT",
        "slowdown_tlimit",
        SIGNED,
    ),
    (
        "NVML_FI_DEV_PCIE_COUNT_TX_BYTES",
        "pcie_sent_bytes",
        UNSIGNED_LONG_LONG,
    ),
    (
        "NVML_FI_DEV_PCIE_COUNT_RX_BYTES",
        "pcie_received_bytes",
        UNSIGNED_LONG_LONG,
    ),
    (
        "NVML_FI_DEV_NVLINK_COUNT_MALFORMED_PACKET_ERRORS",
        "nvlink_malformed",
        UNSIGNED_LONG_LONG,
    ),
    (
        "NVML_FI_DEV_NVLINK_COUNT_BUFFER_OVERRUN_ERRORS",
        "nvlink_overruns",
        UNSIGNED_LONG_LONG,
    ),
    (
        "NVML_FI_DEV_NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS",
        "nvlink_integrity_errors",
        UNSIGNED_LONG_LONG,
    ),
    (
        "NVML_FI_DEV_NVLINK_COUNT_RCV_ERRORS",
        "nvlink_receive_errors",
        UNSIGNED_LONG_LONG,
    ),
    (
        "NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS",
        "nvlink_recoveries_failed",
        UNSIGNED_LONG_LONG,
    ),
    (
        "NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS",
        "nvlink_link_recoveries",
        UNSIGNED_LONG_LONG,
    ),
    (
        "NVML_FI_DEV_NVLINK_COUNT_SYMBOL_ERRORS",
        "nvlink_symbol_errors",
        UNSIGNED_LONG_LONG,
    ),
    ("NVML_FI_DEV_GET_GPU_RECOVERY_ACTION", "recovery_action", UNSIGNED),
    (
        "NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN",
        "throttle_thermal_sw_ns",
        UNSIGNED_LONG_LONG,
    ),
    (
        "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN",
        "throttle_thermal_hw_ns",
        UNSIGNED_LONG_LONG,
    ),
    (
        "NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN",
        "throttle_brake_ns",
        UNSIGNED_LONG_LONG,
    ),
];

/// The prefix of fields that share one item, and that item. Power smoothing is off, at the lowest privilege level.
pub const POWER_SMOOTHING: (&str, &str) = ("NVML_FI_PWR_SMOOTHING_", "power_smoothing");
/// The item of every other field that the driver defines.
pub const OTHER_FIELDS: &str = "other_fields";

/// GPM metrics in percent, each with its number and item.
pub const METRICS: [(u32, &str); 5] = [
    (1, "gpm_graphics"),
    (2, "gpm_sm"),
    (3, "gpm_occupancy"),
    (5, "gpm_tensor"),
    (10, "gpm_dram"),
];

/// Items that read zero on a healthy GPU.
const ZERO: &[&str] = &[
    "ecc_corrected",
    "ecc_uncorrected",
    "ecc_corrected_aggregate",
    "ecc_uncorrected_aggregate",
    "nvlink_crc_flit",
    "nvlink_crc_data",
    "nvlink_replays",
    "nvlink_recoveries",
    "nvlink_malformed",
    "nvlink_overruns",
    "nvlink_integrity_errors",
    "nvlink_receive_errors",
    "nvlink_recoveries_failed",
    "nvlink_link_recoveries",
    "nvlink_symbol_errors",
    "throttle_power_ns",
    "throttle_sync_ns",
    "policy_thermal_ns",
    POWER_SMOOTHING.1,
    "throttle_thermal_sw_ns",
    "throttle_thermal_hw_ns",
    "throttle_brake_ns",
    "pcie_replays",
    "remapped_correctable",
    "remapped_uncorrectable",
    "remap_pending",
    "remap_failed",
    "recovery_action",
    "clock_reasons",
    "remap_high",
    "remap_partial",
    "remap_low",
    "remap_none",
    "sram_exceeded",
    "fabric_status",
];

/// Items with another value on a healthy H100 SXM.
const H100: &[(&str, f64)] = &[
    ("ecc_enabled", 1.0),
    ("ecc_enabled_pending", 1.0),
    ("memory_temperature", 52.0),
    ("energy_mj", 5e9),
    ("nvlink_count", 18.0),
    ("nvlink_up", 18.0),
    ("nvlink_sent_kib", 4e9),
    ("nvlink_received_kib", 4e9),
    ("power_mw", 612_300.0),
    ("power_instant_mw", 598_000.0),
    ("power_limit_mw", 700_000.0),
    ("power_limit_default_mw", 700_000.0),
    ("slowdown_tlimit", -2.0),
    ("pcie_sent_bytes", 7e11),
    ("pcie_received_bytes", 9e11),
    ("temperature", 48.0),
    ("margin", 39.0),
    ("sm_clock", 1980.0),
    ("memory_clock", 2619.0),
    ("sm_clock_max", 1980.0),
    ("memory_clock_max", 2619.0),
    ("sm_clock_set", 1980.0),
    ("utilization", 98.0),
    ("memory_utilization", 41.0),
    ("memory_used", 61.0 * GIB),
    ("memory_total", 80.0 * GIB),
    ("pcie_gen", 5.0),
    ("pcie_width", 16.0),
    ("pcie_gen_max", 5.0),
    ("pcie_width_max", 16.0),
    ("remap_max", 640.0),
    ("fabric_state", 3.0),
    // These values mean not degraded, no recovery needed, and a correct configuration.
    ("fabric_health", 426.0),
    ("gpm_graphics", 97.0),
    ("gpm_sm", 88.5),
    ("gpm_occupancy", 31.0),
    ("gpm_tensor", 54.25),
    ("gpm_dram", 42.0),
];

/// Items that an H100 does not support.
const NOT_H100: &[&str] = &[
    "retired_single",
    "retired_double",
    "retired_pending",
    "threshold_slowdown",
    "threshold_mem_max",
    "threshold_gpu_max",
];

/// Per-link counters that are new in Blackwell.
const BLACKWELL: &[&str] = &[
    "nvlink_malformed",
    "nvlink_overruns",
    "nvlink_integrity_errors",
    "nvlink_receive_errors",
    "nvlink_recoveries_failed",
    "nvlink_link_recoveries",
    "nvlink_symbol_errors",
];

/// Returns the name of a model.
pub fn model(profile: &str) -> &'static str {
    match profile {
        "a100" => "NVIDIA A100-SXM4-80GB",
        "h200" => "NVIDIA H200",
        "b200" => "NVIDIA B200",
        _ => "NVIDIA H100 80GB HBM3",
    }
}

/// Returns all readings of a healthy GPU of this model.
pub fn items(profile: &str) -> Option<BTreeMap<&'static str, Item>> {
    let mut items: BTreeMap<&str, Item> = ZERO.iter().map(|name| (*name, Item::Number(0.0))).collect();
    items.extend(H100.iter().map(|(name, value)| (*name, Item::Number(*value))));
    items.extend(NOT_H100.iter().map(|name| (*name, NOT_SUPPORTED)));
    items.insert(OTHER_FIELDS, NOT_SUPPORTED);
    if profile != "b200" {
        items.extend(BLACKWELL.iter().map(|name| (*name, NOT_SUPPORTED)));
    }
    let mut set = |changes: &[(&'static str, f64)]| {
        items.extend(changes.iter().map(|(name, value)| (*name, Item::Number(*value))));
    };
    match profile {
        "h100" => {}
        "h200" => set(&[
            ("memory_total", 141.0 * GIB),
            ("memory_clock", 3201.0),
            ("memory_clock_max", 3201.0),
        ]),
        "b200" => {
            set(&[
                ("memory_total", 180.0 * GIB),
                ("power_limit_mw", 1e6),
                ("power_limit_default_mw", 1e6),
            ]);
            for name in [
                "nvlink_crc_flit",
                "nvlink_crc_data",
                "nvlink_replays",
                "nvlink_recoveries",
            ] {
                items.insert(name, NOT_SUPPORTED);
            }
        }
        "a100" => {
            set(&[
                ("nvlink_count", 12.0),
                ("nvlink_up", 12.0),
                ("pcie_gen", 4.0),
                ("pcie_gen_max", 4.0),
                ("sm_clock", 1410.0),
                ("sm_clock_max", 1410.0),
                ("sm_clock_set", 1410.0),
                ("power_mw", 371_000.0),
                ("power_limit_mw", 400_000.0),
                ("power_limit_default_mw", 400_000.0),
                ("threshold_slowdown", 92.0),
                ("threshold_gpu_max", 87.0),
                ("threshold_mem_max", 95.0),
            ]);
            let lacks = [
                "margin",
                "slowdown_tlimit",
                "fabric_state",
                "fabric_status",
                "fabric_health",
            ];
            let lacks = lacks.into_iter().chain(METRICS.map(|(_, name)| name));
            items.extend(lacks.map(|name| (name, NOT_SUPPORTED)));
        }
        _ => return None,
    }
    Some(items)
}
