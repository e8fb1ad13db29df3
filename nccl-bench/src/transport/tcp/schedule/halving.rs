//! Rabenseifner's algorithm, in which halves of halves are reduced and then gathered. It sends as few bytes as the
//! ring, in 2 log n steps. It requires a power of two as the number of ranks.

use super::{Schedule, Space, block};
use crate::collective::Plan;

/// Returns a rank's part of an all-reduce. Each partner keeps one half of their common blocks, and then each block
/// returns on the same path.
pub(super) fn all_reduce(plan: &Plan, rank: usize) -> Schedule {
    let mut schedule = Schedule::default();
    // This rank is responsible for blocks from..from + width.
    let (mut from, mut width) = (0, plan.ranks);
    let mut came = None;
    while width > 1 {
        width /= 2;
        let partner = rank ^ width;
        let (kept, given) = if rank & width == 0 {
            (from, from + width)
        } else {
            (from + width, from)
        };
        let own = if came.is_none() {
            Space::Input
        } else {
            Space::Output
        };
        schedule.send(partner, own, blocks(plan, given, width), came);
        let receive = schedule.receive(partner, blocks(plan, kept, width), Some(own));
        schedule.receives[receive].onto = came;
        came = Some(receive);
        from = kept;
    }
    // For each block on this rank, the receive that brought it, in order of arrival.
    let mut here = vec![(rank, came)];
    while width < plan.ranks {
        let partner = rank ^ width;
        for (index, after) in here.clone() {
            schedule.send(partner, Space::Output, block(plan, index), after);
        }
        // The partner's blocks are this rank's blocks with that bit flipped, and the partner sends them in the same
        // order.
        for (index, _) in here.clone() {
            let came = schedule.receive(partner, block(plan, index ^ width), None);
            here.push((index ^ width, Some(came)));
        }
        width *= 2;
    }
    schedule
}

fn blocks(plan: &Plan, from: usize, width: usize) -> super::Piece {
    let (first, last) = (block(plan, from), block(plan, from + width - 1));
    super::Piece {
        at: first.at,
        len: last.range().end - first.at,
    }
}
