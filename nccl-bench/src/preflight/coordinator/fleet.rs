//! All nodes as who leads a preflight sees them: real ones over sealed streams, or simulated.

use std::collections::BTreeMap;
use std::time::Duration;

use paceline_health::id::NodeId;
use paceline_health::preflight::{Metric, Place, Report, Sample};

use crate::preflight::measurement::conditions;
use crate::preflight::message::Found;
use crate::preflight::transport_choice::TransportChoice;

/// One thing that a node is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Task {
    /// Read what the node is.
    Snapshot,
    /// Let its GPUs, or its CPU, work.
    Work {
        /// 0, or which repeat.
        round: u32,
    },
    /// All-reduce inside the node.
    Local {
        /// 0, or which repeat.
        round: u32,
        /// Over what.
        over: TransportChoice,
    },
    /// Make what the other nodes of a group over NCCL must know.
    Open {
        /// The group's.
        over: TransportChoice,
    },
    /// Measure in a group.
    Group {
        /// Its nodes, in order of their ranks.
        nodes: Vec<NodeId>,
        /// The asked node's rank.
        rank: usize,
        /// Which round of pairs; `None`: all nodes together.
        pair_round: Option<u32>,
        /// Over what.
        over: TransportChoice,
    },
}

impl Task {
    /// Where NCCL did not come to an end nothing was carried, which can be compared with what was elsewhere. `node` leads.
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

/// Why a node did not do it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Fault {
    /// In words, with the phase.
    pub what: String,
    /// The node that it blames.
    pub peer: Option<NodeId>,
    /// It takes no part any more.
    pub lost: bool,
    /// What it had measured before.
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
    /// Those still there, in their order.
    fn nodes(&self) -> Vec<NodeId>;

    /// How the other nodes reach a node, if that is known.
    fn address(&self, _node: &NodeId) -> Option<String> {
        None
    }

    /// Asks, and waits for all answers, no longer than `limit` (and a little). One for each task's node.
    fn ask(
        &mut self,
        phase: &str,
        tasks: Vec<(NodeId, Task)>,
        limit: Duration,
    ) -> BTreeMap<NodeId, Result<Found, Fault>>;

    /// Those that ended after they had answered, since this was last asked. They are not there any more.
    fn ended(&mut self, _phase: &str) -> BTreeMap<NodeId, Fault> {
        BTreeMap::new()
    }

    /// Tells all that are left what came of it.
    fn done(&mut self, report: &Report);
}
