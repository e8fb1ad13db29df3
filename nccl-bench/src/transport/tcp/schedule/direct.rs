//! Direct exchange between all ranks. Each rank starts with its successor, so that the load is even.

use super::{Piece, Schedule, Space, block};
use crate::collective::Plan;

pub(super) fn all_gather(plan: &Plan, rank: usize) -> Schedule {
    everybody(plan, rank, |_| block(plan, rank))
}

pub(super) fn all_to_all(plan: &Plan, rank: usize) -> Schedule {
    everybody(plan, rank, |peer| block(plan, peer))
}

fn everybody(plan: &Plan, rank: usize, given: impl Fn(usize) -> Piece) -> Schedule {
    let mut schedule = Schedule::default();
    for step in 1..plan.ranks {
        let (to, from) = (
            (rank + step) % plan.ranks,
            (rank + plan.ranks - step) % plan.ranks,
        );
        schedule.send(to, Space::Input, given(to), None);
        schedule.receive(from, block(plan, from), None);
    }
    schedule
}
