//! What NCCL says of itself: who has launched fewer collectives, and who does not answer.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::id::Rank;

/// See [`crate::event::Event::Ras`]: an answer of NCCL's RAS service, of which any process of the job knows all
/// communicators (<https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/ras.html>). Counts say who
/// is behind only where the job stands still: in one that runs they differ at every moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RasReport {
    /// Whether it answered.
    pub state: RasAccess,
    /// It was asked since ranks stand still: counts mean something. Else only who is dead or has an error is told.
    pub still: bool,
    /// Version of NCCL; empty: not told.
    pub nccl: Arc<str>,
    /// Communicators of which it told.
    pub comms: u32,
    /// Of these, the ones whose ranks have launched different numbers of collectives, or are not all there.
    pub uneven: u32,
    /// Ranks of the largest communicator.
    pub size: u32,
    /// Ranks that stand out, the worst first.
    pub ranks: Vec<RasRank>,
    /// How many more stand out.
    pub more: u32,
    /// Answers that were none, since the watch began.
    pub errors: u64,
    /// Why there is no answer, for people.
    pub text: Arc<str>,
}

/// Whether the service answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RasAccess {
    /// It does.
    Answered,
    /// Nobody listens there: no NCCL (of 2.24 or later) runs here, or its service is off.
    Absent,
    /// Somebody listens, and gave no answer that could be understood in time.
    Failing,
}

/// One rank of one communicator that stands out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RasRank {
    /// How.
    pub state: RasState,
    /// Its number in the largest communicator, which is the global rank where all of the job's ranks are in that one;
    /// `None`: it is not in it, or the answer does not say.
    pub rank: Option<Rank>,
    /// The communicator; zero: not told.
    pub comm: u64,
    /// Its host as NCCL names it, an address; empty: not told.
    pub host: Arc<str>,
    /// Its process there; zero: not told.
    pub pid: u32,
    /// The collective of which it launched another number than the others; empty: none.
    pub collective: Arc<str>,
    /// How many it launched.
    pub launched: u64,
    /// How many the others launched.
    pub others: u64,
}

/// How a rank stands out. The order is from worst to least.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RasState {
    /// NCCL takes its process for dead.
    Dead,
    /// Its process did not answer the others.
    Unresponsive,
    /// NCCL has an error there.
    Failed,
    /// The application has aborted the communicator there.
    Aborted,
    /// It has launched fewer collectives than most.
    Behind,
    /// It has launched more than most: the code of the ranks is not the same.
    Ahead,
}
