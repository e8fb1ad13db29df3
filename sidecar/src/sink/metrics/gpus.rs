//! What was last read of each GPU.

use std::collections::BTreeMap;
use std::sync::Arc;

use paceline_health::event::{Access, GpuAccess, GpuReading, GpuSignal, Reading};
use paceline_health::frame::{Frame, Provenance};
use paceline_health::id::{GpuId, NodeId};
use prometheus::Registry;
use serde::{Deserialize, Serialize};

use super::families::{counters, gauges};

/// What is known of each GPU.
pub(in crate::sink) type Gpus = BTreeMap<GpuId, Gpu>;

/// One GPU: whether it can be read, and what was read last.
#[derive(Debug, Serialize, Deserialize)]
pub(in crate::sink) struct Gpu {
    node: NodeId,
    provenance: Provenance,
    pci: Arc<str>,
    model: Arc<str>,
    access: Option<Access>,
    readings: BTreeMap<GpuSignal, Reading>,
}

impl Gpu {
    fn new(frame: &Frame, pci: &Arc<str>) -> Gpu {
        Gpu {
            node: frame.node.clone(),
            provenance: frame.provenance,
            pci: Arc::clone(pci),
            model: "".into(),
            access: None,
            readings: BTreeMap::new(),
        }
    }

    pub(in crate::sink) fn node(&self) -> &NodeId {
        &self.node
    }

    /// PCI bus id.
    pub(in crate::sink) fn pci(&self) -> &Arc<str> {
        &self.pci
    }

    pub(in crate::sink) fn model(&self) -> &str {
        &self.model
    }

    /// What was last read, if that is a value.
    pub(in crate::sink) fn value(&self, signal: GpuSignal) -> Option<f64> {
        self.readings.get(&signal)?.value()
    }

    pub(in crate::sink) fn is_readable(&self) -> bool {
        matches!(self.access, None | Some(Access::Readable | Access::NoEvents))
    }
}

/// Takes a reading. It may hold only what has changed.
pub(super) fn observe(gpus: &mut Gpus, frame: &Frame, reading: &GpuReading) {
    let gpu = gpus
        .entry(reading.gpu.clone())
        .or_insert_with(|| Gpu::new(frame, &reading.pci));
    (gpu.node, gpu.provenance) = (frame.node.clone(), frame.provenance);
    if gpu.model != reading.model {
        gpu.model = Arc::clone(&reading.model);
    }
    // One from before it was lost may come after the news of it.
    if gpu.is_readable() {
        let news = reading.readings.iter();
        gpu.readings
            .extend(news.map(|(signal, reading)| (*signal, reading.clone())));
    }
}

/// Takes whether it can be read. Of one that cannot be, what was read last says nothing.
pub(super) fn access(gpus: &mut Gpus, frame: &Frame, news: &GpuAccess) {
    let Some(id) = &news.gpu else { return };
    let gpu = gpus
        .entry(id.clone())
        .or_insert_with(|| Gpu::new(frame, &news.pci));
    gpu.access = Some(news.state);
    if !gpu.is_readable() {
        gpu.readings.clear();
    }
}

/// The families of every GPU that was read.
pub(super) fn families(registry: &Registry, gpus: &Gpus) {
    let info = gpus.iter().map(|(id, gpu)| {
        let source = match gpu.provenance {
            Provenance::Live => "live",
            Provenance::Replay => "replay",
            Provenance::Injected => "injected",
            Provenance::Sim => "sim",
        };
        let labels = [
            id.to_string(),
            gpu.node.to_string(),
            gpu.model.to_string(),
            gpu.pci.to_string(),
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
    let access = gpus.iter().filter_map(|(id, gpu)| {
        // Named as in the journal.
        let state = serde_json::to_value(gpu.access?).ok()?;
        Some(([id.to_string(), state.as_str()?.to_owned()], 1.0))
    });
    let help = "Whether a GPU can be read: its state is readable or no_events, and every other means that it cannot.";
    gauges(
        registry,
        "paceline_gpu_access",
        help,
        ["gpu_uuid", "state"],
        access,
    );
    let values = |signal: GpuSignal, unit: f64| {
        let read = gpus
            .iter()
            .filter_map(move |(id, gpu)| Some((id, gpu.readings.get(&signal)?.value()? * unit)));
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
        ("brake", GpuSignal::ThrottleBrakeNs),
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
