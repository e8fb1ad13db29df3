//! The last readings of each GPU.

use std::collections::BTreeMap;
use std::sync::Arc;

use paceline_health::event::{
    Access, FaultSource, GpuAccess, GpuFault, GpuFaultKind, GpuReading, GpuSignal, Reading,
};
use paceline_health::frame::{Frame, Provenance};
use paceline_health::id::{GpuId, NodeId};
use serde::{Deserialize, Serialize};

use super::super::format::families::{Families, counters, gauges};
use super::gpu_table;

/// The state of each GPU.
pub(in crate::sink) type Gpus = BTreeMap<GpuId, Arc<Gpu>>;

/// One GPU, with its access state and its last readings.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::sink) struct Gpu {
    node: NodeId,
    provenance: Provenance,
    pci: Arc<str>,
    model: Arc<str>,
    access: Option<Access>,
    readings: BTreeMap<GpuSignal, Reading>,
    /// The number of reports of each XID: first those by the kernel, then those by NVML. Both report the same fault.
    xids: BTreeMap<u32, [u64; 2]>,
    last_xid: u32,
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
            xids: BTreeMap::new(),
            last_xid: 0,
        }
    }

    /// Returns the XID that was reported last, or zero if there was none.
    pub(in crate::sink::metrics) fn last_xid(&self) -> u32 {
        self.last_xid
    }

    pub(in crate::sink) fn node(&self) -> &NodeId {
        &self.node
    }

    /// Returns the PCI bus ID.
    pub(in crate::sink) fn pci(&self) -> &Arc<str> {
        &self.pci
    }

    pub(in crate::sink) fn model(&self) -> &str {
        &self.model
    }

    /// Returns the last reading, if it is a value.
    pub(in crate::sink) fn value(&self, signal: GpuSignal) -> Option<f64> {
        self.readings.get(&signal)?.value()
    }

    pub(in crate::sink) fn is_readable(&self) -> bool {
        matches!(self.access, None | Some(Access::Readable | Access::NoEvents))
    }
}

/// Applies a reading, which may contain only changes.
pub(in crate::sink::metrics) fn observe(gpus: &mut Gpus, frame: &Frame, reading: &GpuReading) {
    let gpu = gpus
        .entry(reading.gpu.clone())
        .or_insert_with(|| Arc::new(Gpu::new(frame, &reading.pci)));
    let gpu = Arc::make_mut(gpu);
    (gpu.node, gpu.provenance) = (frame.node.clone(), frame.provenance);
    if gpu.model != reading.model {
        gpu.model = Arc::clone(&reading.model);
    }
    // A reading taken before the GPU was lost may arrive after the report of the loss.
    if gpu.is_readable() {
        let news = reading.readings.iter();
        gpu.readings
            .extend(news.map(|(signal, reading)| (*signal, reading.clone())));
    }
}

/// Applies an access state. The last readings of an unreadable GPU are no longer valid.
pub(in crate::sink::metrics) fn access(gpus: &mut Gpus, frame: &Frame, news: &GpuAccess) {
    let Some(id) = &news.gpu else { return };
    let gpu = gpus
        .entry(id.clone())
        .or_insert_with(|| Arc::new(Gpu::new(frame, &news.pci)));
    let gpu = Arc::make_mut(gpu);
    gpu.access = Some(news.state);
    if !gpu.is_readable() {
        gpu.readings.clear();
    }
}

/// Counts an XID of the GPU with this ID or PCI address.
pub(in crate::sink::metrics) fn fault(gpus: &mut Gpus, fault: &GpuFault) {
    let source = match fault.seen_by {
        FaultSource::Kernel => 0,
        FaultSource::Nvml => 1,
        FaultSource::KernelBefore => return,
    };
    if fault.kind != GpuFaultKind::Xid {
        return;
    }
    let id = fault.gpu.clone().or_else(|| {
        let at = gpus
            .iter()
            .find(|(_, gpu)| !fault.pci.is_empty() && gpu.pci == fault.pci);
        at.map(|(id, _)| id.clone())
    });
    if let Some(gpu) = id.and_then(|id| gpus.get_mut(&id)) {
        let gpu = Arc::make_mut(gpu);
        gpu.xids.entry(fault.xid).or_default()[source] += u64::from(fault.count);
        gpu.last_xid = fault.xid;
    }
}

/// Adds the families of every GPU with readings.
pub(in crate::sink::metrics) fn families(out: &mut Families<'_>, gpus: &Gpus) {
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
        out,
        "paceline_gpu_info",
        "Identity of a GPU, and whether it is real.",
        labels,
        info,
    );
    let access = gpus.iter().filter_map(|(id, gpu)| {
        // Use the same name as in the journal.
        let state = serde_json::to_value(gpu.access?).ok()?;
        Some(([id.to_string(), state.as_str()?.to_owned()], 1.0))
    });
    let help =
        "Whether a GPU can be read: readable and no_events mean that it can, any other state that it cannot.";
    gauges(out, "paceline_gpu_access", help, ["gpu_uuid", "state"], access);
    for family in gpu_table::FAMILIES {
        let values = family.rows.iter().flat_map(|row| {
            let read = gpus
                .iter()
                .filter_map(|(id, gpu)| Some((id, gpu.value(row.signal)?)));
            read.map(|(gpu, value)| ([gpu.to_string(), row.label.to_owned()], value * row.unit))
        });
        let (name, help) = (family.name, family.help);
        match (family.label, family.is_counter) {
            (Some(label), true) => counters(out, name, help, ["gpu_uuid", label], values),
            (Some(label), false) => gauges(out, name, help, ["gpu_uuid", label], values),
            (None, true) => counters(out, name, help, ["gpu_uuid"], values.map(first)),
            (None, false) => gauges(out, name, help, ["gpu_uuid"], values.map(first)),
        }
    }
    let faults = gpus.iter().flat_map(|(id, gpu)| {
        let of_gpu = gpu.xids.iter();
        of_gpu.map(|(xid, [kernel, nvml])| ([id.to_string(), xid.to_string()], *kernel.max(nvml) as f64))
    });
    let help = "XIDs that the driver reported for a GPU, by number.";
    counters(
        out,
        "paceline_gpu_xid_errors_total",
        help,
        ["gpu_uuid", "xid"],
        faults,
    );
}

fn first<const N: usize>((labels, value): ([String; N], f64)) -> ([String; 1], f64) {
    ([labels.into_iter().next().unwrap_or_default()], value)
}
