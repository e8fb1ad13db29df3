//! GPU readings with the names, units and labels of NVIDIA's dcgm-exporter, for existing dashboards
//! (<https://github.com/NVIDIA/dcgm-exporter/blob/main/etc/default-counters.csv>).

use std::collections::BTreeMap;

use paceline_health::event::GpuSignal;
use paceline_health::id::NodeId;

use super::super::format::families::{Families, counters, gauges};
use super::gpus::{Gpu, Gpus};

const LABELS: [&str; 6] = ["gpu", "UUID", "pci_bus_id", "device", "modelName", "Hostname"];
const MIB: f64 = 1.0 / 1_048_576.0;

/// A field: its name, its help, whether it is a counter, our signal for it, and the factor to DCGM's unit.
type Field = (&'static str, &'static str, bool, GpuSignal, f64);

const FIELDS: &[Field] = &[
    (
        "DCGM_FI_DEV_SM_CLOCK",
        "SM clock frequency (in MHz).",
        false,
        GpuSignal::SmClockMhz,
        1.0,
    ),
    (
        "DCGM_FI_DEV_MEM_CLOCK",
        "Memory clock frequency (in MHz).",
        false,
        GpuSignal::MemoryClockMhz,
        1.0,
    ),
    (
        "DCGM_FI_DEV_MEMORY_TEMP",
        "Memory temperature (in C).",
        false,
        GpuSignal::MemoryTemperatureC,
        1.0,
    ),
    (
        "DCGM_FI_DEV_GPU_TEMP",
        "GPU temperature (in C).",
        false,
        GpuSignal::TemperatureC,
        1.0,
    ),
    (
        "DCGM_FI_DEV_POWER_USAGE",
        "Power draw (in W).",
        false,
        GpuSignal::PowerW,
        1.0,
    ),
    (
        "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION",
        "Energy since the driver was loaded (in mJ).",
        true,
        GpuSignal::EnergyJ,
        1e3,
    ),
    (
        "DCGM_FI_DEV_PCIE_REPLAY_COUNTER",
        "Retransmitted PCIe packets.",
        true,
        GpuSignal::PcieReplays,
        1.0,
    ),
    (
        "DCGM_FI_DEV_GPU_UTIL",
        "Share of time with a kernel (in %).",
        false,
        GpuSignal::UtilizationRatio,
        100.0,
    ),
    (
        "DCGM_FI_DEV_MEM_COPY_UTIL",
        "Share of time in which memory was read or written (in %).",
        false,
        GpuSignal::MemoryBusyRatio,
        100.0,
    ),
    (
        "DCGM_FI_DEV_FB_USED",
        "Memory in use (in MiB).",
        false,
        GpuSignal::MemoryUsedBytes,
        MIB,
    ),
    (
        "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL",
        "Corrected ECC errors since the driver was loaded.",
        true,
        GpuSignal::EccCorrected,
        1.0,
    ),
    (
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
        "Uncorrectable ECC errors since the driver was loaded.",
        true,
        GpuSignal::EccUncorrected,
        1.0,
    ),
    (
        "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL",
        "Corrected ECC errors over the life of the board.",
        true,
        GpuSignal::EccCorrectedAggregate,
        1.0,
    ),
    (
        "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL",
        "Uncorrectable ECC errors over the life of the board.",
        true,
        GpuSignal::EccUncorrectedAggregate,
        1.0,
    ),
    (
        "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS",
        "Rows remapped after correctable errors.",
        true,
        GpuSignal::RowsRemappedCorrectable,
        1.0,
    ),
    (
        "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
        "Rows remapped after uncorrectable errors.",
        true,
        GpuSignal::RowsRemappedUncorrectable,
        1.0,
    ),
    (
        "DCGM_FI_DEV_ROW_REMAP_FAILURE",
        "Whether a row could not be remapped.",
        false,
        GpuSignal::RemapFailed,
        1.0,
    ),
    (
        "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
        "Share of time in which the compute engine was busy.",
        false,
        GpuSignal::GraphicsActiveRatio,
        1.0,
    ),
    (
        "DCGM_FI_PROF_SM_ACTIVE",
        "Share of SMs that had work.",
        false,
        GpuSignal::SmActiveRatio,
        1.0,
    ),
    (
        "DCGM_FI_PROF_SM_OCCUPANCY",
        "Share of warps that were resident.",
        false,
        GpuSignal::SmOccupancyRatio,
        1.0,
    ),
    (
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
        "Share of time in which tensor cores worked.",
        false,
        GpuSignal::TensorActiveRatio,
        1.0,
    ),
    (
        "DCGM_FI_PROF_DRAM_ACTIVE",
        "Share of DRAM bandwidth in use.",
        false,
        GpuSignal::DramActiveRatio,
        1.0,
    ),
];

/// Adds the families of every GPU with readings. A GPU's number is its position among the GPUs of its node when sorted
/// by PCI address, like NVML's numbering.
pub(in crate::sink::metrics) fn families(out: &mut Families<'_>, gpus: &Gpus) {
    let mut of_nodes: BTreeMap<&NodeId, Vec<(&str, &str, &Gpu)>> = BTreeMap::new();
    for (id, gpu) in gpus {
        let of_node = of_nodes.entry(gpu.node()).or_default();
        of_node.push((gpu.pci(), id.as_str(), gpu));
    }
    let mut all = Vec::with_capacity(gpus.len());
    for (node, mut of_node) in of_nodes {
        of_node.sort_unstable_by_key(|(pci, id, _)| (*pci, *id));
        for (index, (pci, id, gpu)) in of_node.into_iter().enumerate() {
            let labels = [
                index.to_string(),
                id.to_owned(),
                dcgm_address(pci),
                format!("nvidia{index}"),
                gpu.model().to_owned(),
                node.to_string(),
            ];
            all.push((labels, gpu));
        }
    }
    for (name, help, is_counter, signal, unit) in FIELDS {
        let values = all
            .iter()
            .filter_map(|(labels, gpu)| Some((labels.clone(), gpu.value(*signal)? * unit)));
        if *is_counter {
            counters(out, name, help, LABELS, values);
        } else {
            gauges(out, name, help, LABELS, values);
        }
    }
    let free = all.iter().filter_map(|(labels, gpu)| {
        let free = gpu.value(GpuSignal::MemoryTotalBytes)? - gpu.value(GpuSignal::MemoryUsedBytes)?;
        Some((labels.clone(), free * MIB))
    });
    gauges(
        out,
        "DCGM_FI_DEV_FB_FREE",
        "Memory that is free (in MiB).",
        LABELS,
        free,
    );
    let links = all.iter().filter_map(|(labels, gpu)| {
        let sent = gpu.value(GpuSignal::NvlinkSentBytes)?;
        Some((labels.clone(), sent + gpu.value(GpuSignal::NvlinkReceivedBytes)?))
    });
    let help = "Bytes over all NVLinks.";
    counters(out, "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", help, LABELS, links);
    let xids = all
        .iter()
        .map(|(labels, gpu)| (labels.clone(), f64::from(gpu.last_xid())));
    let help = "The last reported XID; 0: none.";
    gauges(out, "DCGM_FI_DEV_XID_ERRORS", help, LABELS, xids);
}

/// Converts an address such as `0000:b3:00.0` to DCGM's format, which has a domain of eight digits, and capitals.
fn dcgm_address(pci: &str) -> String {
    match pci.split_once(':') {
        Some((domain, rest)) => format!("{domain:0>8}:{}", rest.to_uppercase()),
        None => pci.to_owned(),
    }
}
