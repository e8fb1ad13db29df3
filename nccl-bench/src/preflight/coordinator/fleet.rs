//! All nodes from the leader's point of view. They are either real nodes over sealed streams, or simulated.

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
    /// Measure the node's GPUs, or its CPU.
    Work {
        /// Number of the repeat, or 0 for the first measurement.
        round: u32,
    },
    /// Run an all-reduce inside the node.
    Local {
        /// Number of the repeat, or 0 for the first measurement.
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
        /// The group's nodes, in rank order.
        nodes: Vec<NodeId>,
        /// The rank of the node that gets the task.
        rank: usize,
        /// The round of pairs, or `None` if all nodes measure together.
        pair_round: Option<u32>,
        /// The transport.
        over: TransportChoice,
    },
}

impl Task {
    /// Returns a result of zero for an NCCL measurement that did not finish, so that it is compared with the others.
    /// `node` is the leader of the measurement.
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
    /// The error, including the phase.
    pub what: String,
    /// The node that the failed node blames.
    pub peer: Option<NodeId>,
    /// True if the node is lost.
    pub lost: bool,
    /// Measurements that the node took before the failure.
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

/// All nodes of a preflight.
pub trait Fleet {
    /// Returns the remaining nodes, in order.
    fn nodes(&self) -> Vec<NodeId>;

    /// Returns the address of a node for the other nodes, if known.
    fn address(&self, _node: &NodeId) -> Option<String> {
        None
    }

    /// Sends tasks, and waits for all answers up to `limit` (plus some slack). Returns one answer per task.
    fn ask(
        &mut self,
        phase: &str,
        tasks: Vec<(NodeId, Task)>,
        limit: Duration,
    ) -> BTreeMap<NodeId, Result<Found, Fault>>;

    /// Removes and returns the nodes that disconnected after their answer, since the last call.
    fn ended(&mut self, _phase: &str) -> BTreeMap<NodeId, Fault> {
        BTreeMap::new()
    }

    /// Sends the report to all remaining nodes.
    fn done(&mut self, report: &Report);
}
