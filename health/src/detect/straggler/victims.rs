//! Inherited lateness: a rank that waits elsewhere is late for its peers although it is not slow.
//!
//! A hook may see a wait as work, because the receives of a pipeline run inside the forward pass. A rank that was
//! delayed in one communicator is late for another one, and looks slow there. Its time in the communicator that delayed
//! it decides: a slow rank waits less there than its peers do, and a victim waits more. A victim waits for the member
//! that waits least.

use crate::detect::comm::communicator::Comm;
use crate::detect::comm::communicators::Comms;
use crate::detect::step::plan::Plan;
use crate::id::Rank;
use crate::stats;

/// Maximum number of peers that are compared.
const PEERS: usize = 64;
/// A rank counts as a victim only if it spends at least this share of its excess waiting.
const MOST: f64 = 0.5;
/// Maximum number of stages through which lateness is traced.
const MAX_HOPS: usize = 16;

impl Comms {
    /// Returns the rank for which a rank waits if it works `excess_s` longer per step than its peers, as far as
    /// lateness can be traced. Returns `None` if the rank waits no longer than its peers do, which means that it is
    /// late on its own.
    pub fn victim_of(&self, rank: Rank, excess_s: f64, plan: &Plan) -> Option<Rank> {
        let mut culprit = None;
        let mut at = rank;
        for _ in 0..MAX_HOPS {
            let Some(next) = self.waits_for(at, excess_s, plan) else {
                break;
            };
            if next == rank || Some(next) == culprit {
                break;
            }
            culprit = Some(next);
            at = next;
        }
        culprit
    }

    /// Returns the member for which a rank waits in the communicator with the longest wait beyond its peers, if that
    /// wait is most of the rank's excess.
    fn waits_for(&self, rank: Rank, excess_s: f64, plan: &Plan) -> Option<Rank> {
        let (_, comm, waits_s) = self
            .of(rank)
            .filter_map(|(id, comm)| Some((id, comm, self.beyond_peers(rank, comm, plan)?)))
            .max_by(|a, b| a.2.total_cmp(&b.2).then(b.0.cmp(&a.0)))?;
        if excess_s <= 0.0 || waits_s < MOST * excess_s {
            return None;
        }
        let others = comm.members.iter().copied().filter(|member| *member != rank);
        others
            .filter_map(|member| Some((member, self.beyond_peers(member, comm, plan)?)))
            .min_by(|a, b| a.1.total_cmp(&b.1).then(a.0.cmp(&b.0)))
            .map(|(member, _)| member)
    }

    /// Returns how many seconds longer a rank is in a communicator than its peers are in theirs of the same kind.
    fn beyond_peers(&self, rank: Rank, comm: &Comm, plan: &Plan) -> Option<f64> {
        let own_s = comm.own_s(rank)?;
        let role = &plan.roles[plan.place(rank)?.role as usize].members;
        let stride = role.len().div_ceil(PEERS).max(1);
        let in_theirs = |peer: Rank| {
            let theirs = self.of(peer).map(|(_, theirs)| theirs);
            theirs
                .filter(|theirs| theirs.is_like(comm))
                .find_map(|theirs| theirs.own_s(peer))
        };
        let peers = role.iter().step_by(stride).filter(|peer| **peer != rank);
        let mut peers_s: Vec<f64> = peers.filter_map(|peer| in_theirs(*peer)).collect();
        Some(own_s - stats::median(&mut peers_s)?)
    }
}
