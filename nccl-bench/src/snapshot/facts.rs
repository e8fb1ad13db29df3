//! Facts of a snapshot that are compared between nodes, with their names in the policy table.

use paceline_health::event::{GpuSignal, Reading};
use paceline_health::id::NodeId;
use paceline_health::preflight::Fact;

use super::{GpuState, Nic, Snapshot, Text};

/// Returns the facts of a node. A fact that could not be read has no value and is not judged.
pub fn facts(snapshot: &Snapshot, node: &NodeId) -> Vec<Fact> {
    let of_node = |name: &str, value: Option<String>| Fact {
        node: node.clone(),
        gpu: None,
        port: None,
        name: name.into(),
        value: value.map(Into::into),
    };
    let (host, gpus) = (&snapshot.host, &snapshot.gpus);
    // Count only whole GPUs, because MIG instances are parts of GPUs. Without a driver, the number of GPUs is unknown.
    let whole = || {
        gpus.list.iter().filter(|gpu| {
            !gpu.uuid
                .as_ref()
                .is_some_and(|uuid| uuid.as_str().starts_with("MIG-"))
        })
    };
    let count =
        (gpus.access == paceline_health::event::Access::Readable).then(|| whole().count().to_string());
    let mut facts = vec![
        of_node("gpu_count", count),
        of_node("driver", text(&gpus.driver)),
        of_node("cuda", text(&host.cuda)),
        of_node("nccl", text(&host.nccl)),
        of_node("memlock", text(&host.memlock)),
        of_node("shm", number(Some(&host.shm_bytes))),
        of_node("cpu_limit", number(Some(&host.cpu_limit))),
        of_node("socket_fallback", Some(snapshot.socket_fallback.join("; "))),
    ];
    for gpu in whole() {
        let of_gpu = |(name, value): (&str, Option<String>)| Fact {
            gpu: gpu.uuid.clone(),
            ..of_node(name, value)
        };
        facts.extend(gpu_facts(gpu).map(of_gpu));
    }
    for nic in &snapshot.nics {
        let of_port = |(name, value): (&str, Option<String>)| Fact {
            port: Some(nic.name.as_str().into()),
            ..of_node(name, value)
        };
        facts.extend(nic_facts(nic).map(of_port));
    }
    facts
}

fn text(text: &Text) -> Option<String> {
    text.text().map(str::to_owned)
}

fn number(reading: Option<&Reading>) -> Option<String> {
    reading.and_then(Reading::value).map(|value| value.to_string())
}

fn gpu_facts(gpu: &GpuState) -> [(&'static str, Option<String>); 8] {
    let signal = |signal| number(gpu.signals.get(&signal));
    let clock = signal(GpuSignal::SmClockSetMhz).or_else(|| signal(GpuSignal::SmClockMaxMhz));
    [
        (
            "gpu_model",
            Some(gpu.model.clone()).filter(|model| !model.is_empty()),
        ),
        ("ecc_mode", signal(GpuSignal::EccEnabled)),
        ("ecc_uncorrected", signal(GpuSignal::EccUncorrected)),
        ("remap_failed", signal(GpuSignal::RemapFailed)),
        ("remap_pending", signal(GpuSignal::RemapPending)),
        ("clock_limit", clock),
        ("pcie_reduced", pcie_reduced(gpu)),
        ("nvlinks", signal(GpuSignal::NvlinkUp)),
    ]
}

/// Returns a reduced PCIe width, such as `x8 of x16`. The generation is ignored, because an idle GPU lowers it to save
/// power.
fn pcie_reduced(gpu: &GpuState) -> Option<String> {
    let of_signal = |signal| gpu.signals.get(&signal).and_then(Reading::value);
    let now = of_signal(GpuSignal::PcieWidth).or(gpu.place.width.value())?;
    let most = of_signal(GpuSignal::PcieWidthMax).or(gpu.place.width_max.value())?;
    Some(if now < most {
        format!("x{now} of x{most}")
    } else {
        "no".into()
    })
}

fn nic_facts(nic: &Nic) -> [(&'static str, Option<String>); 3] {
    [
        ("nic_state", text(&nic.state)),
        ("nic_rate", number(Some(&nic.rate_bps))),
        ("nic_mtu", number(Some(&nic.mtu))),
    ]
}
