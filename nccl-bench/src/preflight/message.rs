//! What the first node asks of the others, and what they answer. JSON over sealed streams.

use std::net::SocketAddr;
use std::sync::Arc;

use paceline_health::id::NodeId;
use paceline_health::preflight::{Fact, Report, Sample};
use serde::{Deserialize, Serialize};

use super::mode::Mode;
use super::transport_choice::{Nccl, TransportChoice};
use crate::transport::nccl::Id;

/// Version of these messages. Nodes of different versions do not measure together.
pub const PROTOCOL: u32 = 2;

/// The seal's purpose of the stream to the first node.
pub const CONTROL: &str = "paceline preflight control";

/// The seal's purpose of streams over which is measured.
pub const DATA: &str = "paceline preflight data";

/// Longest message taken from a node: 8 GPUs with all facts and samples are some 20 KB.
pub const MOST_BYTES: usize = 4 << 20;

/// Longest report: 4,096 nodes with all samples.
pub const MOST_REPORT: usize = 256 << 20;

/// A node's first words.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Hello {
    /// See [`PROTOCOL`].
    pub protocol: u32,
    /// Version of its program.
    pub paceline: Arc<str>,
    /// Its name.
    pub node: NodeId,
    /// The job.
    pub job: Arc<str>,
    /// Port on which it would lead the next group.
    pub port: u16,
}

/// The first node's answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Welcome {
    /// It takes part.
    Come {
        /// How thorough the first node wants it.
        mode: Mode,
    },
    /// It does not.
    Refused {
        /// Why.
        why: String,
    },
}

/// One thing to do.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Ask {
    /// Answers carry it.
    pub id: u32,
    /// The phase, for errors.
    pub phase: Arc<str>,
    /// How long it may take.
    pub limit_ms: u64,
    /// What to do.
    pub order: Order,
}

/// What can be asked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
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
    /// Make what the other nodes of a group over NCCL must know before they can join.
    Open {
        /// The group's.
        over: TransportChoice,
    },
    /// Measure in a group of nodes.
    Group(Group),
    /// It is over; this came of it.
    Done(Box<Report>),
}

/// A group that measures together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Group {
    /// Different for each group of a run.
    pub id: u64,
    /// Where its first node listens.
    pub leader: SocketAddr,
    /// Its nodes, in order of their ranks.
    pub nodes: Vec<NodeId>,
    /// The rank of the node that is asked.
    pub rank: usize,
    /// Which round of pairs; `None`: all nodes together.
    pub pair_round: Option<u32>,
    /// Over what.
    pub over: TransportChoice,
    /// What its first node made for NCCL.
    #[serde(default)]
    pub opened: Option<Opened>,
}

/// What all ranks of a group over NCCL must know. It travels in sealed streams only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opened {
    /// Where the first rank listens, on the first node.
    pub port: u16,
    /// Of all ranks' communicator, then of each rail's.
    pub ids: Vec<Id>,
}

/// An answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Answer {
    /// Of which [`Ask`].
    pub id: u32,
    /// What came of it.
    pub result: Result<Found, Failed>,
    /// Port on which it would lead the next group.
    pub port: u16,
}

/// What a node found.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Found {
    /// Model of its GPUs, or of its CPU.
    #[serde(default)]
    pub model: Arc<str>,
    /// Its GPUs.
    #[serde(default)]
    pub gpus: u32,
    /// What it read.
    #[serde(default)]
    pub facts: Vec<Fact>,
    /// What it measured.
    #[serde(default)]
    pub samples: Vec<Sample>,
    /// What it could not do, and why, without failing.
    #[serde(default)]
    pub notes: Vec<String>,
    /// Whether its GPUs can be measured over NCCL, if it looked.
    #[serde(default)]
    pub nccl: Option<Nccl>,
    /// What it made for a group over NCCL.
    #[serde(default)]
    pub opened: Option<Opened>,
}

/// Why it could not.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Failed {
    /// In words.
    pub what: String,
    /// The node that it blames.
    #[serde(default)]
    pub peer: Option<NodeId>,
    /// What it had measured before: of a way too bad for large messages, that it loses small ones.
    #[serde(default)]
    pub samples: Vec<Sample>,
}
