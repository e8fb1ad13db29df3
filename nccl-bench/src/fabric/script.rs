//! Parses the text form of a fabric of simulated machines.

use super::Fabric;

/// Limit of simulated nodes.
const MOST_NODES: u32 = 16_384;
/// Limit of GPUs per node.
const MOST_GPUS: u32 = 16;

/// A fault of one machine. Nodes and GPUs are numbered from 1, like their names.
#[derive(Clone, Debug, PartialEq)]
pub enum SimFault {
    /// A GPU is slower by this factor.
    SlowGpu(u32, u32, f64),
    /// A GPU's PCIe slot has half its lanes.
    NarrowSlot(u32, u32),
    /// One of a node's ports runs at half its rate. The slowest port limits an all-reduce.
    HalfNic(u32),
    /// Messages to and from a node take 5 ms longer.
    Delay(u32),
    /// A node loses 1 % of its packets.
    Loss(u32),
    /// Only the link between two nodes runs at half its rate.
    HalfWay(u32, u32),
    /// A node never responds.
    Absent(u32),
}

/// Why a script is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{word}\": {what}")]
pub struct SimError {
    /// The invalid word.
    pub word: String,
    /// The error.
    pub what: &'static str,
}

impl Fabric {
    /// Parses words such as `nodes=64 gpus=8 seed=3 slow-gpu=12.3x1.2 narrow-slot=5.1 half-nic=7 half-way=3-4 delay=9
    /// loss=2 absent=4`.
    pub fn parse(script: &str) -> Result<Fabric, SimError> {
        let mut fabric = Fabric {
            nodes: 4,
            gpus: 8,
            seed: 1,
            faults: Vec::new(),
        };
        for word in script.split_whitespace() {
            let wrong = |what| SimError {
                word: word.to_owned(),
                what,
            };
            let (key, value) = word.split_once('=').ok_or_else(|| wrong("words are KEY=VALUE"))?;
            fabric.set(key, value).map_err(wrong)?;
        }
        for fault in fabric.faults() {
            if !fabric.has(fault) {
                return Err(SimError {
                    word: format!("{fault:?}"),
                    what: "there is no such node or GPU in this fleet",
                });
            }
        }
        Ok(fabric)
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
}
