//! Readings of a world's GPUs and hosts. Each source is read once a second, with the faults of the current step.

pub mod gpu;
mod hosts;
mod meters;

use self::gpu::{GpuScript, pci};
use self::hosts::HostMeter;
use self::meters::{Ill, Meter, Script, ill};
use super::fault::Fault;
use super::fault::drag::{Blow, Drag};
use super::spec::WorldSpec;
use super::spec::shape::House;
use crate::event::{GpuReading, HostReading};
use crate::time::Time;

/// All meters of a world. Sources that are not read have no meters.
#[derive(Clone, Debug)]
pub(super) struct Telemetry {
    seed: u64,
    gpus: Vec<Meter>,
    nodes: Vec<HostMeter>,
    ranks: Vec<HostMeter>,
}

impl Telemetry {
    pub fn new(spec: &WorldSpec, gpus: &GpuScript) -> Telemetry {
        let (ranks, seed) = (spec.ranks(), spec.seed);
        let read = |wanted: bool, count: u32| if wanted { 0..count } else { 0..0 };
        let hosts = spec.reads_hosts();
        Telemetry {
            seed,
            gpus: read(spec.readings, ranks)
                .map(|gpu| Meter::new(spec, gpu, gpus.gpu(gpu), pci(gpu)))
                .collect(),
            nodes: read(hosts, spec.nodes)
                .map(|node| HostMeter::new(seed, node, None))
                .collect(),
            ranks: read(hosts, ranks)
                .map(|rank| HostMeter::new(seed, 0, Some(rank)))
                .collect(),
        }
    }

    /// Reads a GPU, if GPUs are read.
    pub fn gpu(&mut self, at: Time, gpu: u32, idle: bool, drag: &Drag) -> Option<GpuReading> {
        let ills = ills(self.seed, drag, |blow, house| {
            !matches!(blow.fault, Fault::Link { .. }) && blow.on.strikes(gpu, house)
        });
        let script = Script {
            model: drag.gpus().model(),
            signals: drag.gpus().signals(gpu, at.as_secs_f64()),
        };
        Some(self.gpus.get_mut(gpu as usize)?.read(at, idle, &ills, &script))
    }

    /// Reads a host, if hosts are read.
    pub fn node(&mut self, at: Time, node: u32, drag: &Drag, wanting: f64) -> Option<HostReading> {
        let ills = ills(self.seed, drag, |blow, house| {
            let first = node * house.gpus_per_node;
            let here = (first..first + house.gpus_per_node).any(|rank| blow.on.strikes(rank, house));
            here || matches!(blow.fault, Fault::Link { peer, .. } if peer == Some(node))
        });
        Some(self.nodes.get_mut(node as usize)?.read(at, &ills, wanting))
    }

    /// Reads a rank's process, if hosts are read.
    pub fn rank(&mut self, at: Time, rank: u32, drag: &Drag, wanting: f64) -> Option<HostReading> {
        let ills = ills(self.seed, drag, |blow, house| blow.on.strikes(rank, house));
        Some(self.ranks.get_mut(rank as usize)?.read(at, &ills, wanting))
    }
}

/// Returns the active faults for which `here` is true.
fn ills(seed: u64, drag: &Drag, here: impl Fn(&Blow, &House) -> bool) -> Vec<Ill> {
    let blows = drag.blows().iter().filter(|blow| here(blow, drag.house()));
    blows
        .filter_map(|blow| ill(seed, blow.index, &blow.fault))
        .collect()
}
