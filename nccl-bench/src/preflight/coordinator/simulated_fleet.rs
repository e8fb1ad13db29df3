//! A simulated fleet. It goes through the same phases and judgment, but on simulated machines. All results are marked
//! as simulated and are not stored.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use paceline_health::id::{GpuId, NodeId};
use paceline_health::preflight::{Fact, Metric, Place, Report, Sample};

use super::fleet::{Fault, Fleet, Task};
use crate::fabric::{Dice, Fabric, SimError, SimFault};
use crate::preflight::message::Found;
use crate::preflight::transport_choice::{Nccl, TransportChoice};

const PASSES: u32 = 8;
/// Variation between chips of one model, and variation of a median of passes. The values are typical for H100s.
const CHIPS: f64 = 0.008;
const PASS: f64 = 0.006;
/// Variation of a link's value between measurements.
const LINK: f64 = 0.01;

/// A fleet to simulate.
#[derive(Clone, Debug, PartialEq)]
pub struct SimFleet {
    fabric: Fabric,
    lost: BTreeSet<NodeId>,
}

impl SimFleet {
    /// Parses a script such as `nodes=64 gpus=8 seed=3 slow-gpu=12.3x1.2 narrow-slot=5.1 half-nic=7 half-way=3-4
    /// delay=9 loss=2 absent=4`.
    pub fn parse(script: &str) -> Result<SimFleet, SimError> {
        Ok(SimFleet {
            fabric: Fabric::parse(script)?,
            lost: BTreeSet::new(),
        })
    }

    /// Returns the number of nodes.
    pub fn len(&self) -> u32 {
        self.fabric.nodes()
    }

    /// Returns false, because there is always at least one node.
    pub fn is_empty(&self) -> bool {
        self.fabric.nodes() == 0
    }

    fn gpu(node: u32, gpu: u32) -> GpuId {
        let number = u128::from(node) << 32 | u128::from(gpu);
        GpuId::from_uuid_bytes((0x51b0_u128 << 112 | number).to_be_bytes())
    }

    fn is_narrow(&self, node: u32, gpu: u32) -> bool {
        self.fabric.any(|fault| *fault == SimFault::NarrowSlot(node, gpu))
    }

    fn snapshot(&self, at: u32, node: &NodeId) -> Found {
        let half = self.fabric.any(|fault| *fault == SimFault::HalfNic(at));
        let gpus = self.fabric.gpus();
        let fact = |name: &str, gpu: Option<GpuId>, port: Option<&str>, value: &str| Fact {
            node: node.clone(),
            gpu,
            port: port.map(Into::into),
            name: name.into(),
            value: Some(value.into()),
        };
        let mut facts = vec![
            fact("gpu_count", None, None, &gpus.to_string()),
            fact("driver", None, None, "570.86.15"),
            fact("nic_rate", None, Some("mlx5_0"), if half { "200" } else { "400" }),
            fact("nic_rate", None, Some("mlx5_1"), "400"),
        ];
        for gpu in 1..=gpus {
            let reduced = if self.is_narrow(at, gpu) { "x8 of x16" } else { "0" };
            facts.push(fact("pcie_reduced", Some(Self::gpu(at, gpu)), None, reduced));
        }
        Found {
            model: "simulated H100".into(),
            gpus,
            facts,
            ..Found::default()
        }
    }

    fn work(&self, at: u32, node: &NodeId, round: u32) -> Found {
        let mut samples = Vec::new();
        let seed = self.fabric.seed();
        for gpu in 1..=self.fabric.gpus() {
            let place = Place::Gpu {
                node: node.clone(),
                gpu: Self::gpu(at, gpu),
            };
            let lanes = if self.is_narrow(at, gpu) { 0.5 } else { 1.0 };
            for (metric, value) in [
                (Metric::Gemm, 660.0 / self.fabric.slowness(at, gpu)),
                (Metric::GpuMemory, 2700.0),
                (Metric::HostToDevice, 55.0 * lanes),
                (Metric::DeviceToHost, 54.0 * lanes),
            ] {
                let words = [seed, u64::from(at), u64::from(gpu), metric as u64];
                let dice = |last: u64| Dice::of(&[words[0], words[1], words[2], words[3], last]).normal();
                let value = value * (1.0 + CHIPS * dice(99)) * (1.0 + PASS * dice(u64::from(round)));
                samples.push(sample(place.clone(), metric, round, value, PASS));
            }
        }
        Found {
            samples,
            nccl: Some(Nccl::Ready {
                version: "simulated".into(),
                gpus: self.fabric.gpus(),
            }),
            ..Found::default()
        }
    }

    fn local(&self, at: u32, node: &NodeId, round: u32) -> Vec<Sample> {
        let mut dice = Dice::of(&[self.fabric.seed(), u64::from(at), u64::from(round), 5]);
        let place = Place::Node { node: node.clone() };
        let busbw = self.fabric.busbw(&[at]) * (1.0 + 0.004 * dice.normal());
        vec![sample(place, Metric::LocalBusbw, round, busbw, 0.004)]
    }

    fn pair(&self, (a, b): (u32, u32), place: Place, round: u32, rails: u32) -> Vec<Sample> {
        let words = [self.fabric.seed(), u64::from(a), u64::from(b), u64::from(round)];
        let mut dice = Dice::of(&[words[0], words[1], words[2], words[3], 7]);
        let ends = [a, b];
        let busbw = self.fabric.busbw(&ends) * (1.0 + LINK * dice.normal());
        let trip = 30e-6 * (1.0 + 0.1 * dice.normal().abs()) + self.fabric.delay(&ends);
        let lost = self.fabric.loss(&ends) * (1.0 + 0.15 * dice.normal());
        let mut samples = vec![
            sample(place.clone(), Metric::PairBusbw, round, busbw, LINK),
            sample(place.clone(), Metric::PairLatency, round, trip, 0.0),
            sample(place.clone(), Metric::PairLoss, round, lost, 0.0),
        ];
        for rail in 0..rails {
            let mut dice = Dice::of(&[words[0], words[1], words[2], words[3], 70 + u64::from(rail)]);
            let busbw = self.fabric.rail_busbw(a, b, rail) * (1.0 + LINK * dice.normal());
            samples.push(Sample {
                rail: Some(rail),
                ..sample(place.clone(), Metric::PairBusbw, round, busbw, LINK)
            });
        }
        samples
    }

    fn all(&self, nodes: &[NodeId]) -> Vec<Sample> {
        let mut dice = Dice::of(&[self.fabric.seed(), nodes.len() as u64, 13]);
        let numbers: Vec<u32> = nodes.iter().map(Self::number).collect();
        let busbw = self.fabric.busbw(&numbers) * (1.0 + LINK * dice.normal());
        vec![sample(Place::Job, Metric::AllBusbw, 0, busbw, LINK)]
    }

    fn number(node: &NodeId) -> u32 {
        node.as_str().trim_start_matches("sim").parse().unwrap_or(0)
    }

    fn answer(&self, node: &NodeId, task: &Task) -> Found {
        let at = Self::number(node);
        let samples = match task {
            Task::Snapshot => return self.snapshot(at, node),
            Task::Work { round } => return self.work(at, node, *round),
            Task::Local { round, .. } => self.local(at, node, *round),
            Task::Open { .. } => Vec::new(),
            Task::Group { rank, .. } if *rank > 0 => Vec::new(),
            Task::Group {
                nodes,
                pair_round: Some(round),
                over,
                ..
            } if nodes.len() == 2 => {
                let (a, b) = (&nodes[0], &nodes[1]);
                let rails = match over {
                    TransportChoice::Nccl(team) => team.rails().unwrap_or(0),
                    TransportChoice::Tcp => 0,
                };
                let ends = (Self::number(a), Self::number(b));
                self.pair(ends, Place::pair(a, b), *round, rails)
            }
            Task::Group { nodes, .. } => self.all(nodes),
        };
        Found {
            samples,
            ..Found::default()
        }
    }
}

fn sample(place: Place, metric: Metric, round: u32, value: f64, spread: f64) -> Sample {
    Sample {
        place,
        metric,
        conditions: "simulated".into(),
        rail: None,
        round,
        value,
        spread,
        passes: PASSES,
        bytes: 0,
    }
}

impl Fleet for SimFleet {
    fn nodes(&self) -> Vec<NodeId> {
        (1..=self.fabric.nodes())
            .map(|node| NodeId::from(&*self.fabric.name(node)))
            .filter(|node| !self.lost.contains(node))
            .collect()
    }

    fn ask(
        &mut self,
        phase: &str,
        tasks: Vec<(NodeId, Task)>,
        _: Duration,
    ) -> BTreeMap<NodeId, Result<Found, Fault>> {
        let mut answers = BTreeMap::new();
        for (node, task) in tasks {
            if self.fabric.is_absent(Self::number(&node)) {
                self.lost.insert(node.clone());
                let fault = Fault::of(format!("{phase}: no answer (simulated)"), None, true);
                answers.insert(node, Err(fault));
            } else {
                let found = self.answer(&node, &task);
                answers.insert(node, Ok(found));
            }
        }
        answers
    }

    fn done(&mut self, _: &Report) {}
}
