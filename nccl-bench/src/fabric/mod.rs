//! A simulated fabric. It models bandwidths and delays of links between GPUs and nodes, both healthy and with faults.
//! The preflight's fleet and the bench's transport use the same model, whose results are always marked as simulated.
//!
//! The model has no algorithms, switches or congestion.

mod dice;
mod script;

use std::time::Duration;

pub(crate) use dice::Dice;
pub use script::{SimError, SimFault};

/// Bus bandwidth of an all-reduce of large messages inside a node, between two nodes, and over more nodes, in GB/s. The
/// values are about those of machines with eight H100s and eight 400 Gb/s ports. They are not used as a reference,
/// because a fleet is compared with itself.
const INSIDE: f64 = 480.0;
const PAIR: f64 = 365.0;
const MANY: f64 = 340.0;
/// Bandwidth of a single rail, in GB/s.
const RAIL: f64 = 46.0;
/// Delay of an empty collective inside a node, and the increase with each doubling of nodes, in seconds.
const BEGIN: f64 = 12e-6;
const HOP: f64 = 9e-6;
/// Additional delay of messages to or from a node with delayed messages, in seconds.
const LATE: f64 = 5e-3;
/// Packet loss of a bad node.
const LOST: f64 = 0.01;

/// The simulated fabric; see the module documentation. Nodes and GPUs are numbered from 1.
#[derive(Clone, Debug, PartialEq)]
pub struct Fabric {
    nodes: u32,
    gpus: u32,
    seed: u64,
    faults: Vec<SimFault>,
}

impl Fabric {
    /// Returns the number of nodes.
    pub fn nodes(&self) -> u32 {
        self.nodes
    }

    /// Returns the number of GPUs per node.
    pub fn gpus(&self) -> u32 {
        self.gpus
    }

    /// Returns the seed of all random numbers.
    pub(crate) fn seed(&self) -> u64 {
        self.seed
    }

    /// Returns the fabric's faults.
    pub fn faults(&self) -> &[SimFault] {
        &self.faults
    }

    /// Returns the name of a node.
    pub fn name(&self, node: u32) -> String {
        let width = self.nodes.to_string().len();
        format!("sim{node:0width$}")
    }

    pub(crate) fn any(&self, wanted: impl Fn(&SimFault) -> bool) -> bool {
        self.faults.iter().any(wanted)
    }

    /// Returns true if a node never responds.
    pub(crate) fn is_absent(&self, node: u32) -> bool {
        self.any(|fault| *fault == SimFault::Absent(node))
    }

    /// Returns the factor by which a GPU is slower.
    pub(crate) fn slowness(&self, node: u32, gpu: u32) -> f64 {
        let of = |fault: &SimFault| match fault {
            SimFault::SlowGpu(at, index, factor) if (*at, *index) == (node, gpu) => Some(*factor),
            _ => None,
        };
        self.faults.iter().find_map(of).unwrap_or(1.0)
    }

    /// Returns the bus bandwidth of large messages among these nodes, in GB/s.
    pub(crate) fn busbw(&self, nodes: &[u32]) -> f64 {
        let is_half = |fault: &SimFault| match fault {
            SimFault::HalfNic(at) => nodes.len() > 1 && nodes.contains(at),
            // With more than two nodes, most traffic is between neighbors, so only neighbors are checked.
            SimFault::HalfWay(a, b) => nodes.windows(2).any(|two| two == [*a, *b] || two == [*b, *a]),
            _ => false,
        };
        let well = match nodes.len() {
            ..=1 => INSIDE,
            2 => PAIR,
            _ => MANY,
        };
        if self.any(is_half) { well / 2.0 } else { well }
    }

    /// Returns the bus bandwidth of one rail (numbered from 0) between two nodes. If a node has a slow port, it is the
    /// first one.
    pub(crate) fn rail_busbw(&self, a: u32, b: u32, rail: u32) -> f64 {
        let is_half = |fault: &SimFault| match fault {
            SimFault::HalfNic(at) => rail == 0 && [a, b].contains(at),
            SimFault::HalfWay(one, other) => (*one, *other) == (a, b) || (*other, *one) == (a, b),
            _ => false,
        };
        if self.any(is_half) { RAIL / 2.0 } else { RAIL }
    }

    /// Returns the additional round-trip delay among these nodes, in seconds.
    pub(crate) fn delay(&self, nodes: &[u32]) -> f64 {
        let is_late = |fault: &SimFault| matches!(fault, SimFault::Delay(at) if nodes.contains(at));
        if nodes.len() > 1 && self.any(is_late) {
            2.0 * LATE
        } else {
            0.0
        }
    }

    /// Returns the packet loss among these nodes.
    pub(crate) fn loss(&self, nodes: &[u32]) -> f64 {
        let is_bad = |fault: &SimFault| matches!(fault, SimFault::Loss(at) if nodes.contains(at));
        if self.any(is_bad) { LOST } else { 0.0 }
    }

    /// Returns the duration of a collective that sends this many bytes over each rank's link.
    pub(crate) fn time(&self, nodes: &[u32], carried: f64) -> Duration {
        let hops = (nodes.len().max(1) as f64).log2().ceil();
        let begin = BEGIN + HOP * hops + self.delay(nodes);
        Duration::from_secs_f64(begin + carried / (self.busbw(nodes) * 1e9))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_costs_those_who_meet_it() {
        let fabric = Fabric::parse("nodes=4 half-nic=2 delay=3 loss=4 slow-gpu=1.2x1.5").unwrap();
        assert_eq!(
            (fabric.busbw(&[1, 2]), fabric.busbw(&[1, 3]), fabric.busbw(&[2])),
            (182.5, 365.0, 480.0)
        );
        assert_eq!(
            (fabric.rail_busbw(2, 3, 0), fabric.rail_busbw(2, 3, 1)),
            (23.0, 46.0)
        );
        assert_eq!(
            (fabric.delay(&[1, 3]), fabric.delay(&[3]), fabric.delay(&[1, 2])),
            (0.01, 0.0, 0.0)
        );
        assert_eq!((fabric.loss(&[1, 4]), fabric.loss(&[1, 2])), (0.01, 0.0));
        assert_eq!((fabric.slowness(1, 2), fabric.slowness(1, 1)), (1.5, 1.0));
        assert!(fabric.time(&[1, 2], 1e9) > fabric.time(&[1, 4], 1e9));
        assert!(
            fabric.time(&[1, 3], 8.0) > fabric.time(&[1, 2], 8.0),
            "the delayed one is late even with nothing to carry"
        );
        let way = Fabric::parse("nodes=4 half-way=2-3").unwrap();
        assert_eq!(
            (way.busbw(&[2, 3]), way.busbw(&[1, 2, 3, 4]), way.busbw(&[1, 2])),
            (182.5, 170.0, 365.0)
        );
    }
}
