//! NCCL's RAS reports: ranks that have launched fewer collectives, and unresponsive ranks.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::id::Rank;

/// See [`crate::event::Event::Ras`]: an answer of NCCL's RAS service. Each process of the job can report on all
/// communicators (<https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/ras.html>). Launch counts
/// identify lagging ranks only while the job is stalled, because in a running job they differ all the time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RasReport {
    /// Whether the service answered.
    pub state: RasAccess,
    /// True if the query was sent because ranks are stalled. Counts are meaningful only then; otherwise only dead ranks
    /// and errors are reported.
    pub still: bool,
    /// Version of NCCL. Empty if not known.
    pub nccl: Arc<str>,
    /// Number of communicators in the answer.
    pub comms: u32,
    /// Number of communicators in the answer that have missing ranks or whose ranks have launched different numbers of
    /// collectives.
    pub uneven: u32,
    /// Ranks of the largest communicator.
    pub size: u32,
    /// Conspicuous ranks, worst first.
    pub ranks: Vec<RasRank>,
    /// Number of further conspicuous ranks.
    pub more: u32,
    /// Unusable answers since monitoring began.
    pub errors: u64,
    /// Why there is no answer, as text for people.
    pub text: Arc<str>,
}

/// Whether the service answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RasAccess {
    /// The service answers.
    Answered,
    /// Nothing listens on the port, either because no NCCL (2.24 or later) runs here or because its service is off.
    Absent,
    /// The port is open, but no understandable answer came in time.
    Failing,
}

/// A conspicuous rank of one communicator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RasRank {
    /// Its state.
    pub state: RasState,
    /// Its rank in the largest communicator, which is the global rank if that one contains all ranks of the job. `None`
    /// if it is not a member or if the answer does not contain its rank.
    pub rank: Option<Rank>,
    /// The communicator. Zero if not known.
    pub comm: u64,
    /// The address by which NCCL identifies its host. Empty if not known.
    pub host: Arc<str>,
    /// Its process on that host. Zero if not known.
    pub pid: u32,
    /// The collective with a launch count different from that of its peers. Empty if there is none.
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
    /// It has launched more collectives than most. The ranks do not run the same code.
    Ahead,
}
