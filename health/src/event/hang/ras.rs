//! NCCL's RAS reports: ranks that have launched fewer collectives, and unresponsive ranks.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::id::Rank;

/// See [`crate::event::Event::Ras`]: an answer of NCCL's RAS service. Each process of the job can report on all
/// communicators (<https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/ras.html>). Counts
/// identify lagging ranks only while the job is stalled: in a running job they differ all the time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RasReport {
    /// Whether the service answered.
    pub state: RasAccess,
    /// The query was sent because ranks are stalled: counts are meaningful. Otherwise only dead ranks and errors are
    /// reported.
    pub still: bool,
    /// Version of NCCL; empty: not known.
    pub nccl: Arc<str>,
    /// Number of communicators in the answer.
    pub comms: u32,
    /// Of these, the ones whose ranks have launched different numbers of collectives, or with missing ranks.
    pub uneven: u32,
    /// Ranks of the largest communicator.
    pub size: u32,
    /// Conspicuous ranks, worst first.
    pub ranks: Vec<RasRank>,
    /// Number of further conspicuous ranks.
    pub more: u32,
    /// Unusable answers since monitoring began.
    pub errors: u64,
    /// Why there is no answer, for people.
    pub text: Arc<str>,
}

/// Whether the service answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RasAccess {
    /// It answers.
    Answered,
    /// Nothing listens on the port: no NCCL (2.24 or later) runs here, or its service is off.
    Absent,
    /// The port is open, but no understandable answer came in time.
    Failing,
}

/// A conspicuous rank of one communicator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RasRank {
    /// Its state.
    pub state: RasState,
    /// Its rank in the largest communicator, which is the global rank if that one contains all ranks of the job;
    /// `None`: it is not a member, or the answer does not contain it.
    pub rank: Option<Rank>,
    /// The communicator; zero: not known.
    pub comm: u64,
    /// Its host as NCCL names it, an address; empty: not known.
    pub host: Arc<str>,
    /// Its process on that host; zero: not known.
    pub pid: u32,
    /// The collective with a launch count different from its peers'; empty: none.
    pub collective: Arc<str>,
    /// Its launch count.
    pub launched: u64,
    /// The launch count of its peers.
    pub others: u64,
}

/// The state of a conspicuous rank, worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RasState {
    /// NCCL considers its process dead.
    Dead,
    /// Its process did not respond to its peers.
    Unresponsive,
    /// NCCL reports an error on it.
    Failed,
    /// The application has aborted the communicator on it.
    Aborted,
    /// It has launched fewer collectives than most.
    Behind,
    /// It has launched more than most: the ranks do not run the same code.
    Ahead,
}
