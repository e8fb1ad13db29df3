//! Recursive doubling. In each step, each rank exchanges its whole sum with a partner, at twice the distance of the
//! step before. This takes the fewest steps.

use super::{Piece, Schedule, Space, space};
use crate::collective::Plan;

/// Returns a rank's part of an all-reduce. Ranks past the largest power of two first send their input to a partner, and
/// finally get the result from it.
pub(super) fn all_reduce(plan: &Plan, rank: usize) -> Schedule {
    let whole = Piece::whole(space(plan));
    let inner = 1 << plan.ranks.ilog2();
    let mut schedule = Schedule::default();
    if rank >= inner {
        let send = schedule.send(rank - inner, Space::Input, whole, None);
        let result = schedule.receive(rank - inner, whole, None);
        schedule.receives[result].behind = Some(send);
        return schedule;
    }
    let outer = Some(rank + inner).filter(|outer| *outer < plan.ranks);
    let mut came = outer.map(|outer| schedule.receive(outer, whole, Some(Space::Input)));
    let mut distance = 1;
    while distance < inner {
        let own = if came.is_none() {
            Space::Input
        } else {
            Space::Output
        };
        let send = schedule.send(rank ^ distance, own, whole, came);
        let receive = schedule.receive(rank ^ distance, whole, Some(own));
        schedule.receives[receive].behind = Some(send);
        came = Some(receive);
        distance *= 2;
    }
    if let Some(outer) = outer {
        schedule.send(outer, Space::Output, whole, came);
    }
    schedule
}
