//! Messages between the first node and the others. They are JSON over sealed streams.

use std::net::SocketAddr;
use std::sync::Arc;

use paceline_health::id::NodeId;
use paceline_health::preflight::{Fact, Report, Sample};
use serde::{Deserialize, Serialize};

use super::mode::Mode;
use super::transport_choice::{Nccl, TransportChoice};
use crate::transport::nccl::Id;

/// Version of these messages. Nodes with different versions do not measure together.
pub const PROTOCOL: u32 = 2;

/// The purpose of the sealed stream to the first node.
pub const CONTROL: &str = "paceline preflight control";

/// The purpose of sealed streams for measurements.
pub const DATA: &str = "paceline preflight data";

/// Size limit of a node's message. A message about 8 GPUs with all facts and samples has about 20 KB.
pub const MOST_BYTES: usize = 4 << 20;

/// Size limit of a report. It allows 4,096 nodes with all samples.
pub const MOST_REPORT: usize = 256 << 20;

/// A node's first message.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Hello {
    /// The node's version of the messages, [`PROTOCOL`].
    pub protocol: u32,
    /// Version of the node's program.
    pub paceline: Arc<str>,
    /// The node's name.
    pub node: NodeId,
    /// The job.
    pub job: Arc<str>,
    /// Port of the node's listener for the next group that it leads.
    pub port: u16,
}

/// The first node's answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Welcome {
    /// The node takes part.
    Come {
        /// How thorough the preflight is, as set on the first node.
        mode: Mode,
    },
    /// The node is rejected.
    Refused {
        /// The reason.
        why: String,
    },
}

/// One task.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Ask {
    /// Id of the task, which is repeated in the answer.
    pub id: u32,
    /// The phase, for error messages.
    pub phase: Arc<str>,
    /// Time limit in milliseconds.
    pub limit_ms: u64,
    /// The task.
    pub order: Order,
}

/// Tasks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
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
    /// Prepare the data that the other nodes of an NCCL group need to join.
    Open {
        /// The group's transport.
        over: TransportChoice,
    },
    /// Measure as part of a group of nodes.
    Group(Group),
    /// The preflight is complete. The value is its report.
    Done(Box<Report>),
}

/// A group that measures together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Group {
    /// Id of the group, which is unique among the groups of a run.
    pub id: u64,
    /// Address of the group's first node.
    pub leader: SocketAddr,
    /// The group's nodes, in rank order.
    pub nodes: Vec<NodeId>,
    /// The rank of the node that gets the task.
    pub rank: usize,
    /// The round of pairs, or `None` if all nodes measure together.
    pub pair_round: Option<u32>,
    /// The transport.
    pub over: TransportChoice,
    /// The first node's data for NCCL, if the transport is NCCL.
    #[serde(default)]
    pub opened: Option<Opened>,
}

/// The data that all ranks of an NCCL group need. It is sent only in sealed streams.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opened {
    /// Port of the first rank, on the first node.
    pub port: u16,
    /// Id of the communicator of all ranks, followed by the ids of each rail.
    pub ids: Vec<Id>,
}

/// A node's answer to a task.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Answer {
    /// The id of the [`Ask`].
    pub id: u32,
    /// The result.
    pub result: Result<Found, Failed>,
    /// Port of the node's listener for the next group that it leads.
    pub port: u16,
}

/// Results of a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Found {
    /// Model of the node's GPUs, or of its CPU.
    #[serde(default)]
    pub model: Arc<str>,
    /// Number of GPUs.
    #[serde(default)]
    pub gpus: u32,
    /// The node's facts.
    #[serde(default)]
    pub facts: Vec<Fact>,
    /// The node's measurements.
    #[serde(default)]
    pub samples: Vec<Sample>,
    /// Measurements that the node skipped without failing, with the reasons.
    #[serde(default)]
    pub notes: Vec<String>,
    /// Whether the node's GPUs can be measured over NCCL, if this was checked.
    #[serde(default)]
    pub nccl: Option<Nccl>,
    /// The node's data for an NCCL group, if it leads one.
    #[serde(default)]
    pub opened: Option<Opened>,
}

/// Why a task failed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Failed {
    /// The error.
    pub what: String,
    /// The node that the failed node blames.
    #[serde(default)]
    pub peer: Option<NodeId>,
    /// Earlier measurements. A link that is too bad for large messages may still have a loss that was measured with
    /// small ones.
    #[serde(default)]
    pub samples: Vec<Sample>,
}
