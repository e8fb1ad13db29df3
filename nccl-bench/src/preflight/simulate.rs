//! A fleet that is simulated: the same phases and judgement on machines that are not there. Everything it says is marked
//! as simulated, and nothing of it is kept.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use paceline_health::id::{GpuId, NodeId};
use paceline_health::preflight::{Fact, Metric, Place, Report, Sample};

use super::fleet::{Fault, Fleet, Task};
use super::message::Found;

/// Nodes that can be simulated at most.
const MOST_NODES: u32 = 16_384;
/// GPUs of a node at most.
const MOST_GPUS: u32 = 16;
const PASSES: u32 = 8;
/// How much chips of one model differ, and how much a median of passes does: what people see of H100s.
const CHIPS: f64 = 0.008;
const PASS: f64 = 0.006;

/// What is wrong with one machine. Nodes and GPUs count from 1, as their names do.
#[derive(Clone, Debug, PartialEq)]
pub enum SimFault {
    /// A GPU computes so many times slower.
    SlowGpu(u32, u32, f64),
    /// A GPU's slot has half its lanes.
    NarrowSlot(u32, u32),
    /// One of a node's ports has half its rate; the slowest bounds all-reduce.
    HalfNic(u32),
    /// Messages to and from a node take 5 ms longer.
    Delay(u32),
    /// A node loses 1 % of its packets.
    Loss(u32),
    /// Only the way between two is at half.
    HalfWay(u32, u32),
    /// A node never answers.
    Absent(u32),
}

/// A fleet to simulate.
#[derive(Clone, Debug, PartialEq)]
pub struct SimFleet {
    nodes: u32,
    gpus: u32,
    seed: u64,
    faults: Vec<SimFault>,
    lost: BTreeSet<NodeId>,
}

/// Why a script is not understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{word}\": {what}")]
pub struct SimError {
    /// The word.
    pub word: String,
    /// What is wrong with it.
    pub what: &'static str,
}

impl SimFleet {
    /// From words such as `nodes=64 gpus=8 seed=3 slow-gpu=12.3x1.2 narrow-slot=5.1 half-nic=7 half-way=3-4 delay=9
    /// loss=2 absent=4`.
    pub fn parse(script: &str) -> Result<SimFleet, SimError> {
        let mut fleet = SimFleet {
            nodes: 4,
            gpus: 8,
            seed: 1,
            faults: Vec::new(),
            lost: BTreeSet::new(),
        };
        for word in script.split_whitespace() {
            let wrong = |what| SimError {
                word: word.to_owned(),
                what,
            };
            let (key, value) = word.split_once('=').ok_or_else(|| wrong("words are KEY=VALUE"))?;
            fleet.set(key, value).map_err(wrong)?;
        }
        for fault in &fleet.faults {
            if !fleet.has(fault) {
                return Err(SimError {
                    word: format!("{fault:?}"),
                    what: "there is no such node or GPU in this fleet",
                });
            }
        }
        Ok(fleet)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), &'static str> {
        let number = |text: &str| text.parse::<u32>().map_err(|_| "must be a number");
        let gpu = |text: &str| {
            let (node, gpu) = text.split_once('.').ok_or("must be NODE.GPU")?;
            Ok::<_, &'static str>((number(node)?, number(gpu)?))
        };
        let fault = match key {
            "nodes" | "gpus" => {
                let (most, into) = match key {
                    "nodes" => (MOST_NODES, &mut self.nodes),
                    _ => (MOST_GPUS, &mut self.gpus),
                };
                *into = number(value)?;
                return if (1..=most).contains(into) {
                    Ok(())
                } else {
                    Err("1 to 16,384 nodes of 1 to 16 GPUs")
                };
            }
            "seed" => {
                self.seed = value.parse().map_err(|_| "must be a number")?;
                return Ok(());
            }
            "slow-gpu" => {
                let (place, factor) = value.split_once('x').unwrap_or((value, "1.2"));
                let (node, gpu) = gpu(place)?;
                let factor = factor
                    .parse::<f64>()
                    .ok()
                    .filter(|factor| (1.0..=100.0).contains(factor));
                SimFault::SlowGpu(node, gpu, factor.ok_or("the factor must be 1 to 100")?)
            }
            "narrow-slot" => {
                let (node, gpu) = gpu(value)?;
                SimFault::NarrowSlot(node, gpu)
            }
            "half-nic" => SimFault::HalfNic(number(value)?),
            "half-way" => {
                let (a, b) = value.split_once('-').ok_or("must be NODE-NODE")?;
                SimFault::HalfWay(number(a)?, number(b)?)
            }
            "delay" => SimFault::Delay(number(value)?),
            "loss" => SimFault::Loss(number(value)?),
            "absent" => SimFault::Absent(number(value)?),
            _ => {
                return Err(
                    "nodes, gpus, seed, slow-gpu, narrow-slot, half-nic, half-way, delay, loss or absent",
                );
            }
        };
        self.faults.push(fault);
        Ok(())
    }

    fn has(&self, fault: &SimFault) -> bool {
        let node = |node: u32| (1..=self.nodes).contains(&node);
        let gpu = |gpu: u32| (1..=self.gpus).contains(&gpu);
        match *fault {
            SimFault::SlowGpu(at, index, _) | SimFault::NarrowSlot(at, index) => node(at) && gpu(index),
            SimFault::HalfWay(a, b) => node(a) && node(b) && a != b,
            SimFault::HalfNic(at) | SimFault::Delay(at) | SimFault::Loss(at) | SimFault::Absent(at) => {
                node(at)
            }
        }
    }

    /// How many nodes it has.
    pub fn len(&self) -> u32 {
        self.nodes
    }

    /// Never: it has one node at least.
    pub fn is_empty(&self) -> bool {
        self.nodes == 0
    }

    fn any(&self, wanted: impl Fn(&SimFault) -> bool) -> bool {
        self.faults.iter().any(wanted)
    }

    fn gpu(node: u32, gpu: u32) -> GpuId {
        let number = u128::from(node) << 32 | u128::from(gpu);
        GpuId::from_uuid_bytes((0x51b0_u128 << 112 | number).to_be_bytes())
    }

    fn snapshot(&self, at: u32, node: &NodeId) -> Found {
        let half = self.any(|fault| *fault == SimFault::HalfNic(at));
        let fact = |name: &str, gpu: Option<GpuId>, port: Option<&str>, value: &str| Fact {
            node: node.clone(),
            gpu,
            port: port.map(Into::into),
            name: name.into(),
            value: Some(value.into()),
        };
        let mut facts = vec![
            fact("gpu_count", None, None, &self.gpus.to_string()),
            fact("driver", None, None, "570.86.15"),
            fact("nic_rate", None, Some("mlx5_0"), if half { "200" } else { "400" }),
            fact("nic_rate", None, Some("mlx5_1"), "400"),
        ];
        for gpu in 1..=self.gpus {
            let narrow = self.any(|fault| *fault == SimFault::NarrowSlot(at, gpu));
            let reduced = if narrow { "x8 of x16" } else { "0" };
            facts.push(fact("pcie_reduced", Some(Self::gpu(at, gpu)), None, reduced));
        }
        Found {
            model: "simulated H100".into(),
            gpus: self.gpus,
            facts,
            ..Found::default()
        }
    }

    fn work(&self, at: u32, node: &NodeId, round: u32) -> Vec<Sample> {
        let mut samples = Vec::new();
        for gpu in 1..=self.gpus {
            let place = Place::Gpu {
                node: node.clone(),
                gpu: Self::gpu(at, gpu),
            };
            let slow = self.faults.iter().find_map(|fault| match fault {
                SimFault::SlowGpu(n, g, factor) if (*n, *g) == (at, gpu) => Some(*factor),
                _ => None,
            });
            let narrow = self.any(|fault| *fault == SimFault::NarrowSlot(at, gpu));
            let lanes = if narrow { 0.5 } else { 1.0 };
            for (metric, value) in [
                (Metric::Gemm, 660.0 / slow.unwrap_or(1.0)),
                (Metric::GpuMemory, 2700.0),
                (Metric::HostToDevice, 55.0 * lanes),
                (Metric::DeviceToHost, 54.0 * lanes),
            ] {
                let chip = Dice::of(&[self.seed, u64::from(at), u64::from(gpu), metric as u64, 99]).normal();
                let mut dice = Dice::of(&[
                    self.seed,
                    u64::from(at),
                    u64::from(gpu),
                    metric as u64,
                    u64::from(round),
                ]);
                let value = value * (1.0 + CHIPS * chip) * (1.0 + PASS * dice.normal());
                samples.push(sample(place.clone(), metric, round, value, PASS));
            }
        }
        samples
    }

    fn pair(&self, a: u32, b: u32, place: Place, round: u32) -> Vec<Sample> {
        let either =
            |wanted: fn(u32) -> SimFault| self.any(|fault| *fault == wanted(a) || *fault == wanted(b));
        let half_way =
            self.any(|fault| *fault == SimFault::HalfWay(a, b) || *fault == SimFault::HalfWay(b, a));
        let half = half_way || either(SimFault::HalfNic);
        let mut dice = Dice::of(&[self.seed, u64::from(a), u64::from(b), u64::from(round), 7]);
        let busbw = 365.0 * if half { 0.5 } else { 1.0 } * (1.0 + 0.01 * dice.normal());
        let trip =
            30e-6 * (1.0 + 0.1 * dice.normal().abs()) + if either(SimFault::Delay) { 0.01 } else { 0.0 };
        let lost = if either(SimFault::Loss) {
            0.01 * (1.0 + 0.15 * dice.normal())
        } else {
            0.0
        };
        vec![
            sample(place.clone(), Metric::PairBusbw, round, busbw, 0.01),
            sample(place.clone(), Metric::PairLatency, round, trip, 0.0),
            sample(place, Metric::PairLoss, round, lost, 0.0),
        ]
    }

    fn all(&self, nodes: usize) -> Vec<Sample> {
        let half = self.any(|fault| matches!(fault, SimFault::HalfNic(_)));
        let mut dice = Dice::of(&[self.seed, nodes as u64, 13]);
        let busbw = 340.0 * if half { 0.5 } else { 1.0 } * (1.0 + 0.01 * dice.normal());
        vec![sample(Place::Job, Metric::AllBusbw, 0, busbw, 0.01)]
    }

    fn number(node: &NodeId) -> u32 {
        node.as_str().trim_start_matches("sim").parse().unwrap_or(0)
    }

    fn answer(&self, node: &NodeId, task: &Task) -> Found {
        let at = Self::number(node);
        let samples = match task {
            Task::Snapshot => return self.snapshot(at, node),
            Task::Work { round } => self.work(at, node, *round),
            Task::Local { round } => {
                let mut dice = Dice::of(&[self.seed, u64::from(at), u64::from(*round), 5]);
                let place = Place::Node { node: node.clone() };
                vec![sample(
                    place,
                    Metric::LocalBusbw,
                    *round,
                    480.0 * (1.0 + 0.004 * dice.normal()),
                    0.004,
                )]
            }
            Task::Group { rank, .. } if *rank > 0 => Vec::new(),
            Task::Group {
                nodes,
                pair_round: Some(round),
                ..
            } if nodes.len() == 2 => {
                let (a, b) = (&nodes[0], &nodes[1]);
                self.pair(Self::number(a), Self::number(b), Place::pair(a, b), *round)
            }
            Task::Group { nodes, .. } => self.all(nodes.len()),
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
        let width = self.nodes.to_string().len();
        (1..=self.nodes)
            .map(|n| NodeId::from(&*format!("sim{n:0width$}")))
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
            let at = Self::number(&node);
            if self.any(|fault| *fault == SimFault::Absent(at)) {
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

/// SplitMix64 (<https://prng.di.unimi.it/splitmix64.c>): the same numbers for the same words, whatever was asked before.
struct Dice(u64);

impl Dice {
    fn of(words: &[u64]) -> Dice {
        let mut dice = Dice(0);
        for word in words {
            dice.0 ^= *word;
            dice.0 = dice.next();
        }
        dice
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Standard normal, by the sum of twelve uniforms.
    fn normal(&mut self) -> f64 {
        let uniform = |dice: &mut Dice| (dice.next() >> 11) as f64 / (1_u64 << 53) as f64;
        (0..12).map(|_| uniform(self)).sum::<f64>() - 6.0
    }
}
