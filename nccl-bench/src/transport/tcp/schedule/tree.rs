//! Broadcasts from the root, with a binomial tree for small sizes and a pipelined chain for large ones.

use super::{Piece, Schedule, Space, space};
use crate::collective::Plan;

/// Returns a rank's part of a chain. Each rank forwards data as it arrives, so every link transfers the bytes once, and
/// all links work at the same time.
pub(super) fn chain(plan: &Plan, rank: usize) -> Schedule {
    let place = (rank + plan.ranks - plan.root) % plan.ranks;
    let parent = (place > 0).then(|| place - 1);
    let child = (place + 1 < plan.ranks).then_some(place + 1);
    family(plan, parent, child)
}

/// Returns a rank's part of a binomial tree. In each of log n steps, all ranks that have the data send it to one more
/// rank, the farthest first.
pub(super) fn binomial(plan: &Plan, rank: usize) -> Schedule {
    let place = (rank + plan.ranks - plan.root) % plan.ranks;
    let parent = (place > 0).then(|| place & (place - 1));
    let reach = if place == 0 {
        plan.ranks.next_power_of_two()
    } else {
        1 << place.trailing_zeros()
    };
    let mut children = Vec::new();
    let mut distance = reach / 2;
    while distance > 0 {
        children.extend(Some(place + distance).filter(|child| *child < plan.ranks));
        distance /= 2;
    }
    family(plan, parent, children)
}

/// Returns the schedule of a rank with this parent and these children. Positions are relative to the root.
fn family(plan: &Plan, parent: Option<usize>, children: impl IntoIterator<Item = usize>) -> Schedule {
    let rank_at = |place| (place + plan.root) % plan.ranks;
    let whole = Piece::whole(space(plan));
    let mut schedule = Schedule::default();
    let came = parent.map(|parent| schedule.receive(rank_at(parent), whole, None));
    let from = if came.is_none() {
        Space::Input
    } else {
        Space::Output
    };
    for child in children {
        schedule.send(rank_at(child), from, whole, came);
    }
    schedule
}
