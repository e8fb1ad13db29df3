//! The ring algorithm. Each block passes through every rank. It sends the minimum number of bytes, in 2 (n - 1) steps.

use super::{Schedule, Space, block};
use crate::collective::Plan;

/// Reduces blocks on their way around the ring, then sends the results around once more.
pub(super) fn all_reduce(plan: &Plan, rank: usize) -> Schedule {
    // At the end of this phase, this rank has the sum of block `rank + 1`.
    let mut schedule = reduce(plan, rank, rank);
    let last = schedule.receives.len().checked_sub(1);
    gather(
        &mut schedule,
        plan,
        rank,
        (rank + 1) % plan.ranks,
        Space::Output,
        last,
    );
    schedule
}

/// Reduces the blocks. At the end, this rank has the sum of block `rank`.
pub(super) fn reduce_scatter(plan: &Plan, rank: usize) -> Schedule {
    reduce(plan, rank, rank + plan.ranks - 1)
}

/// Sends every block around the ring.
pub(super) fn all_gather(plan: &Plan, rank: usize) -> Schedule {
    let mut schedule = Schedule::default();
    gather(&mut schedule, plan, rank, rank, Space::Input, None);
    schedule
}

/// Sends block `first`, and forwards each preceding block after adding this rank's input to it.
fn reduce(plan: &Plan, rank: usize, first: usize) -> Schedule {
    let n = plan.ranks;
    let (next, last) = ((rank + 1) % n, (rank + n - 1) % n);
    let mut schedule = Schedule::default();
    let mut came = None;
    for step in 0..n - 1 {
        let going = block(plan, (first + n - step) % n);
        let coming = block(plan, (first + 2 * n - step - 1) % n);
        let from = if step == 0 { Space::Input } else { Space::Output };
        schedule.send(next, from, going, came);
        came = Some(schedule.receive(last, coming, Some(Space::Input)));
    }
    schedule
}

/// Sends block `first`, which the receive `after` brought, and forwards the preceding blocks.
fn gather(
    schedule: &mut Schedule,
    plan: &Plan,
    rank: usize,
    first: usize,
    from: Space,
    after: Option<usize>,
) {
    let n = plan.ranks;
    let (next, last) = ((rank + 1) % n, (rank + n - 1) % n);
    let (mut came, mut from) = (after, from);
    for step in 0..n - 1 {
        schedule.send(next, from, block(plan, (first + n - step) % n), came);
        came = Some(schedule.receive(last, block(plan, (first + 2 * n - step - 1) % n), None));
        from = Space::Output;
    }
}
