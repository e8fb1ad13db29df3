//! The last answer of NCCL's RAS service, as evidence. It shows which ranks are behind by launched collectives, and
//! which are dead.
//!
//! The answer raises no finding of its own. Only counts that were read after the silence began are compared. The
//! service's own list of outliers is not used, because it has named the wrong ranks
//! (<https://github.com/NVIDIA/nccl/issues/1911>).

use serde::{Deserialize, Serialize};

use crate::detect::members::roster::Roster;
use crate::event::{RasAccess, RasRank, RasReport, RasState};
use crate::frame::Provenance;
use crate::time::Time;
use crate::verdict::Evidence;

/// The latest answer of the RAS service.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct RasEvidence {
    last: Option<(Time, u64, RasReport)>,
    /// Number of answers so far that differ from the one before.
    version: u64,
    provenance: Provenance,
}

impl RasEvidence {
    /// Takes an answer. If later answers are missing, this one remains valid.
    pub fn take(&mut self, at: Time, entry: u64, report: &RasReport, provenance: Provenance) {
        // A routine query reports only trouble. An empty answer to it is ignored, because it says nothing about a
        // silence.
        let says = report.still || !report.ranks.is_empty();
        if report.state == RasAccess::Answered && says {
            let said = |(_, _, last): &(Time, u64, RasReport)| {
                (&last.ranks, last.uneven) == (&report.ranks, report.uneven)
            };
            self.version += u64::from(!self.last.as_ref().is_some_and(said));
            self.last = Some((at, entry, report.clone()));
            self.provenance = provenance;
        }
    }

    /// Returns a number that changes with the content of the answer.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Returns the provenance of the last answer.
    pub fn provenance(&self) -> Provenance {
        self.provenance
    }

    /// Returns true if the last answer is from this job and about a silence since `since`.
    pub fn speaks_of(&self, since: Time, roster: &Roster) -> bool {
        let Some((at, _, report)) = &self.last else {
            return false;
        };
        // Two jobs on a node share the port. A process that is not ours means that the other job has answered.
        let is_ours = |told: &RasRank| {
            told.rank
                .and_then(|rank| roster.member(rank))
                .is_none_or(|member| member.may_be(told.pid))
        };
        let fits = roster.world_size == 0 || report.size <= roster.world_size;
        *at >= since && fits && (!is_whole(report, roster) || report.ranks.iter().all(is_ours))
    }

    /// Returns the content of the answer for at most `most` ranks, the worst first.
    pub fn evidence(&self, most: usize, roster: &Roster) -> Vec<Evidence> {
        let Some((_, entry, report)) = &self.last else {
            return Vec::new();
        };
        let piece = |what: String, value: u64, peers: Option<u64>| Evidence {
            what: what.into(),
            value: value as f64,
            peers: peers.map(|peers| peers as f64),
            entries: Some((*entry, *entry)),
        };
        let mut told = vec![piece(
            "communicators with uneven ranks (NCCL RAS)".to_owned(),
            report.uneven.into(),
            Some(report.comms.into()),
        )];
        told.extend(report.ranks.iter().take(most).map(|rank| {
            let (value, others) = match rank.state {
                RasState::Behind | RasState::Ahead => (rank.launched, Some(rank.others)),
                _ => (1, None),
            };
            piece(words(rank, is_whole(report, roster)), value, others)
        }));
        told
    }
}

/// Returns true if all of the job's ranks are in one communicator, as far as known. The ranks in the answer are then
/// global ranks.
fn is_whole(report: &RasReport, roster: &Roster) -> bool {
    roster.world_size == 0 || report.size == roster.world_size
}

/// Returns text such as `rank 3 behind in AllReduce (NCCL RAS)`.
fn words(told: &RasRank, is_whole: bool) -> String {
    let who = match told.rank {
        Some(rank) if is_whole => format!("rank {rank}"),
        _ if told.pid == 0 => "a process".to_owned(),
        _ => format!("process {} on {}", told.pid, told.host),
    };
    let how = match told.state {
        RasState::Dead => "is dead".to_owned(),
        RasState::Unresponsive => "does not answer".to_owned(),
        RasState::Failed => "has an error".to_owned(),
        RasState::Aborted => "has aborted".to_owned(),
        RasState::Behind => format!("behind in {}", told.collective),
        RasState::Ahead => format!("ahead in {}", told.collective),
    };
    format!("{who} {how} (NCCL RAS)")
}
