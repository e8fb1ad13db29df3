//! What was last read of each GPU.

use std::collections::BTreeMap;

use paceline_health::event::{GpuReading, GpuSignal};
use paceline_health::frame::{Frame, Provenance};
use paceline_health::id::{GpuId, NodeId};
use prometheus::Registry;

use super::families::{counters, gauges};

/// The last reading of each GPU, the node that made it, and whether it is real.
pub(super) type Gpus = BTreeMap<GpuId, (NodeId, Provenance, GpuReading)>;

/// Takes a reading. It may hold only what has changed.
pub(super) fn observe(gpus: &mut Gpus, frame: &Frame, reading: &GpuReading) {
    match gpus.get_mut(&reading.gpu) {
        Some((node, provenance, known)) => {
            (*node, *provenance) = (frame.node.clone(), frame.provenance);
            let news = reading.readings.iter();
            known
                .readings
                .extend(news.map(|(signal, reading)| (*signal, reading.clone())));
        }
        None => {
            let seen = (frame.node.clone(), frame.provenance, reading.clone());
            gpus.insert(reading.gpu.clone(), seen);
        }
    }
}

/// The families of every GPU that was read.
pub(super) fn families(registry: &Registry, gpus: &Gpus) {
    let info = gpus.iter().map(|(gpu, (node, provenance, reading))| {
        let source = match provenance {
            Provenance::Live => "live",
            Provenance::Replay => "replay",
            Provenance::Injected => "injected",
            Provenance::Sim => "sim",
        };
        let labels = [
            gpu.to_string(),
            node.to_string(),
            reading.model.to_string(),
            reading.pci.to_string(),
        ];
        let [gpu, node, model, pci] = labels;
        ([gpu, node, model, pci, source.to_owned()], 1.0)
    });
    let labels = ["gpu_uuid", "node", "model", "pci_bus_id", "provenance"];
    gauges(
        registry,
        "paceline_gpu_info",
        "A GPU, and whether it is real.",
        labels,
        info,
    );
    let values = |signal: GpuSignal, unit: f64| {
        let read = gpus.iter().filter_map(move |(gpu, (_, _, reading))| {
            Some((gpu, reading.readings.get(&signal)?.value()? * unit))
        });
        read.map(|(gpu, value)| ([gpu.to_string()], value))
    };
    let plain = [
        (
            "paceline_gpu_temperature_celsius",
            "Core temperature.",
            GpuSignal::TemperatureC,
            1.0,
        ),
        (
            "paceline_gpu_margin_celsius",
            "Degrees left before hardware slows down.",
            GpuSignal::MarginC,
            1.0,
        ),
        (
            "paceline_gpu_sm_clock_hertz",
            "SM clock.",
            GpuSignal::SmClockMhz,
            1e6,
        ),
        ("paceline_gpu_power_watts", "Power.", GpuSignal::PowerW, 1.0),
        (
            "paceline_gpu_power_limit_watts",
            "Enforced power limit.",
            GpuSignal::PowerLimitW,
            1.0,
        ),
        (
            "paceline_gpu_utilization_ratio",
            "Share of time with a kernel.",
            GpuSignal::UtilizationRatio,
            1.0,
        ),
    ];
    for (name, help, signal, unit) in plain {
        gauges(registry, name, help, ["gpu_uuid"], values(signal, unit));
    }
    let reasons = [
        ("thermal_sw", GpuSignal::ThrottleThermalSwNs),
        ("thermal_hw", GpuSignal::ThrottleThermalHwNs),
        ("power", GpuSignal::ThrottlePowerNs),
    ];
    let throttled = reasons.into_iter().flat_map(|(reason, signal)| {
        values(signal, 1e-9).map(move |([gpu], seconds)| ([gpu, reason.to_owned()], seconds))
    });
    let help = "Time slowed down, by reason.";
    counters(
        registry,
        "paceline_gpu_throttled_seconds_total",
        help,
        ["gpu_uuid", "reason"],
        throttled,
    );
}
