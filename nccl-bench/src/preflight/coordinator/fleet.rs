//! All nodes from the leader's point of view: real ones over sealed streams, or simulated.

use std::collections::BTreeMap;
use std::time::Duration;

use paceline_health::id::NodeId;
use paceline_health::preflight::{Metric, Place, Report, Sample};

use crate::preflight::measurement::conditions;
use crate::preflight::message::Found;
use crate::preflight::transport_choice::TransportChoice;

/// One task for a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Task {
    /// Read the node's properties.
    Snapshot,
    /// Measure its GPUs, or its CPU.
    Work {
        /// 0, or the number of the repeat.
        round: u32,
    },
    /// All-reduce inside the node.
    Local {
        /// 0, or the number of the repeat.
        round: u32,
        /// The transport.
        over: TransportChoice,
    },
    /// Prepare the data that the other nodes of an NCCL group need.
    Open {
        /// The group's transport.
        over: TransportChoice,
    },
    /// Measure as part of a group.
    Group {
        /// Its nodes, in rank order.
        nodes: Vec<NodeId>,
        /// The rank of the node with the task.
        rank: usize,
        /// The round of pairs; `None`: all nodes together.
        pair_round: Option<u32>,
        /// The transport.
        over: TransportChoice,
    },
}

impl Task {
    /// A result of zero for an NCCL measurement that did not finish, comparable with the others. `node` leads.
    pub(super) fn nothing(&self, node: &NodeId) -> Option<Sample> {
        let (place, metric, round, over) = match self {
            Task::Local { round, over } => (
                Place::Node { node: node.clone() },
                Metric::LocalBusbw,
                *round,
                over,
            ),
            Task::Group {
                nodes,
                rank: 0,
                pair_round: Some(round),
                over,
            } => (
                Place::pair(nodes.first()?, nodes.get(1)?),
                Metric::PairBusbw,
                *round,
                over,
            ),
            Task::Group {
                rank: 0,
                pair_round: None,
                over,
                ..
            } => (Place::Job, Metric::AllBusbw, 0, over),
            _ => return None,
        };
        let TransportChoice::Nccl(team) = over else {
            return None;
        };
        Some(Sample {
            place,
            metric,
            conditions: conditions("nccl", team.ranks(), Some(&team.version)).into(),
            rail: None,
            round,
            value: 0.0,
            spread: 0.0,
            passes: 1,
            bytes: 0,
        })
    }
}

/// Why a node failed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Fault {
    /// The error with the phase.
    pub what: String,
    /// The node that it blames.
    pub peer: Option<NodeId>,
    /// The node is lost.
    pub lost: bool,
    /// Its earlier measurements.
    pub samples: Vec<Sample>,
}

impl Fault {
    pub(super) fn of(what: String, peer: Option<NodeId>, lost: bool) -> Fault {
        let samples = Vec::new();
        Fault {
            what,
            peer,
            lost,
            samples,
        }
    }
}

/// All nodes.
pub trait Fleet {
    /// The remaining nodes, in order.
    fn nodes(&self) -> Vec<NodeId>;

    /// The address of a node for the other nodes, if known.
    fn address(&self, _node: &NodeId) -> Option<String> {
        None
    }

    /// Sends tasks, and waits for all answers, up to `limit` (plus some slack). One answer per task.
    fn ask(
        &mut self,
        phase: &str,
        tasks: Vec<(NodeId, Task)>,
        limit: Duration,
    ) -> BTreeMap<NodeId, Result<Found, Fault>>;

    /// Nodes that disconnected after their answer, since the last call. They are removed.
    fn ended(&mut self, _phase: &str) -> BTreeMap<NodeId, Fault> {
        BTreeMap::new()
    }

    /// Sends the report to all remaining nodes.
    fn done(&mut self, report: &Report);
}
