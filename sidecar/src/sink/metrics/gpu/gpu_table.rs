//! The GPU readings on the metrics page, and their names there.

use paceline_health::event::GpuSignal;

/// A family of the page.
pub(in crate::sink::metrics) struct Family {
    pub name: &'static str,
    pub help: &'static str,
    /// True if the value only increases until the driver is reloaded.
    pub is_counter: bool,
    /// The label that distinguishes its rows, if there are several.
    pub label: Option<&'static str>,
    pub rows: &'static [Row],
}

/// A signal, and the label value that the family uses for it.
pub(in crate::sink::metrics) struct Row {
    pub signal: GpuSignal,
    pub label: &'static str,
    /// The factor that converts the signal to base units.
    pub unit: f64,
}

const fn one(signal: GpuSignal) -> Row {
    scaled(signal, "", 1.0)
}

const fn labelled(signal: GpuSignal, label: &'static str) -> Row {
    scaled(signal, label, 1.0)
}

const fn scaled(signal: GpuSignal, label: &'static str, unit: f64) -> Row {
    Row { signal, label, unit }
}

pub(in crate::sink::metrics) const FAMILIES: &[Family] = &[
    Family {
        name: "paceline_gpu_temperature_celsius",
        help: "Core temperature.",
        is_counter: false,
        label: None,
        rows: &[one(GpuSignal::TemperatureC)],
    },
    Family {
        name: "paceline_gpu_margin_celsius",
        help: "Degrees left before the hardware slows down.",
        is_counter: false,
        label: None,
        rows: &[one(GpuSignal::MarginC)],
    },
    Family {
        name: "paceline_gpu_memory_temperature_celsius",
        help: "Temperature of the memory.",
        is_counter: false,
        label: None,
        rows: &[one(GpuSignal::MemoryTemperatureC)],
    },
    Family {
        name: "paceline_gpu_sm_clock_hertz",
        help: "SM clock.",
        is_counter: false,
        label: None,
        rows: &[scaled(GpuSignal::SmClockMhz, "", 1e6)],
    },
    Family {
        name: "paceline_gpu_memory_clock_hertz",
        help: "Memory clock.",
        is_counter: false,
        label: None,
        rows: &[scaled(GpuSignal::MemoryClockMhz, "", 1e6)],
    },
    Family {
        name: "paceline_gpu_power_watts",
        help: "Power.",
        is_counter: false,
        label: None,
        rows: &[one(GpuSignal::PowerW)],
    },
    Family {
        name: "paceline_gpu_power_limit_watts",
        help: "Enforced power limit.",
        is_counter: false,
        label: None,
        rows: &[one(GpuSignal::PowerLimitW)],
    },
    Family {
        name: "paceline_gpu_energy_joules_total",
        help: "Energy used since the driver was loaded.",
        is_counter: true,
        label: None,
        rows: &[one(GpuSignal::EnergyJ)],
    },
    Family {
        name: "paceline_gpu_utilization_ratio",
        help: "Share of time with a kernel.",
        is_counter: false,
        label: None,
        rows: &[one(GpuSignal::UtilizationRatio)],
    },
    Family {
        name: "paceline_gpu_activity_ratio",
        help: "Utilization of a part of the GPU: engine, sm, occupancy (of warps), tensor, dram (Hopper and later).",
        is_counter: false,
        label: Some("part"),
        rows: &[
            labelled(GpuSignal::GraphicsActiveRatio, "engine"),
            labelled(GpuSignal::SmActiveRatio, "sm"),
            labelled(GpuSignal::SmOccupancyRatio, "occupancy"),
            labelled(GpuSignal::TensorActiveRatio, "tensor"),
            labelled(GpuSignal::DramActiveRatio, "dram"),
        ],
    },
    Family {
        name: "paceline_gpu_memory_used_bytes",
        help: "Memory in use.",
        is_counter: false,
        label: None,
        rows: &[one(GpuSignal::MemoryUsedBytes)],
    },
    Family {
        name: "paceline_gpu_memory_size_bytes",
        help: "Total memory.",
        is_counter: false,
        label: None,
        rows: &[one(GpuSignal::MemoryTotalBytes)],
    },
    Family {
        name: "paceline_gpu_pcie_bytes_total",
        help: "Bytes over PCIe.",
        is_counter: true,
        label: Some("direction"),
        rows: &[
            labelled(GpuSignal::PcieSentBytes, "sent"),
            labelled(GpuSignal::PcieReceivedBytes, "received"),
        ],
    },
    Family {
        name: "paceline_gpu_nvlink_bytes_total",
        help: "Bytes over all NVLinks.",
        is_counter: true,
        label: Some("direction"),
        rows: &[
            labelled(GpuSignal::NvlinkSentBytes, "sent"),
            labelled(GpuSignal::NvlinkReceivedBytes, "received"),
        ],
    },
    Family {
        name: "paceline_gpu_pcie_replays_total",
        help: "Retransmitted PCIe packets.",
        is_counter: true,
        label: None,
        rows: &[one(GpuSignal::PcieReplays)],
    },
    Family {
        name: "paceline_gpu_nvlink_errors_total",
        help: "Errors of all NVLinks, by kind.",
        is_counter: true,
        label: Some("kind"),
        rows: &[
            labelled(GpuSignal::NvlinkCrcErrors, "crc"),
            labelled(GpuSignal::NvlinkReplays, "replay"),
            labelled(GpuSignal::NvlinkRecoveries, "recovery"),
            labelled(GpuSignal::NvlinkErrors, "link"),
            labelled(GpuSignal::NvlinkSymbolErrors, "symbol"),
            labelled(GpuSignal::NvlinkRecoveriesFailed, "recovery_failed"),
        ],
    },
    Family {
        name: "paceline_gpu_ecc_errors_total",
        help: "ECC errors since the driver was loaded.",
        is_counter: true,
        label: Some("kind"),
        rows: &[
            labelled(GpuSignal::EccCorrected, "corrected"),
            labelled(GpuSignal::EccUncorrected, "uncorrected"),
        ],
    },
    Family {
        name: "paceline_gpu_rows_remapped_total",
        help: "Remapped memory rows, by type of error.",
        is_counter: true,
        label: Some("kind"),
        rows: &[
            labelled(GpuSignal::RowsRemappedCorrectable, "corrected"),
            labelled(GpuSignal::RowsRemappedUncorrectable, "uncorrected"),
        ],
    },
    Family {
        name: "paceline_gpu_row_remap",
        help: "Whether a row remap is pending (needs a reset), or failed.",
        is_counter: false,
        label: Some("state"),
        rows: &[
            labelled(GpuSignal::RemapPending, "pending"),
            labelled(GpuSignal::RemapFailed, "failed"),
        ],
    },
    Family {
        name: "paceline_gpu_throttled_seconds_total",
        help: "Time in which the GPU was slowed down, by reason.",
        is_counter: true,
        label: Some("reason"),
        rows: &[
            scaled(GpuSignal::ThrottleThermalSwNs, "thermal_sw", 1e-9),
            scaled(GpuSignal::ThrottleThermalHwNs, "thermal_hw", 1e-9),
            scaled(GpuSignal::ThrottlePowerNs, "power", 1e-9),
            scaled(GpuSignal::ThrottleBrakeNs, "brake", 1e-9),
        ],
    },
];
