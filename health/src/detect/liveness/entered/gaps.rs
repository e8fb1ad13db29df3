//! Differences between ranks in the collectives that they enqueued last.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Taken;
use crate::event::LastCollective;
use crate::id::Rank;
use crate::time::Time;

/// A collective counts only if it was enqueued at most this long before the silence began. An older one belongs to a
/// communicator that is no longer used.
const RECENT: Duration = Duration::from_secs(60);
/// Maximum number of pairs of communicators whose order is compared.
const MAX_PAIRS: usize = 1024;

/// The last collectives of each rank, by communicator and rank.
pub(super) type ByComm = BTreeMap<u64, BTreeMap<Rank, Taken>>;

/// A collective that some ranks have entered and others have not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Gap {
    pub(super) comm: u64,
    /// The first collective that the ranks furthest behind have not entered.
    pub(super) next: LastCollective,
    pub(super) missing: Vec<Rank>,
    pub(super) entered: Vec<Rank>,
}

impl Gap {
    /// Returns the sort key of the gap. Gaps with the fewest missing ranks come first, and among them those with the
    /// most waiting ranks.
    pub(super) fn order(&self) -> (usize, std::cmp::Reverse<usize>, u64) {
        (
            self.missing.len(),
            std::cmp::Reverse(self.entered.len()),
            self.comm,
        )
    }

    pub(super) fn is_of_minority(&self) -> bool {
        self.missing.len() <= self.entered.len()
    }

    /// Returns true if the ranks missing in `other` have entered this collective, and some ranks that entered `other`
    /// have not.
    pub(super) fn is_instead_of(&self, other: &Gap) -> bool {
        let entered: BTreeSet<&Rank> = self.entered.iter().collect();
        other.missing.iter().all(|rank| entered.contains(rank))
            && other.entered.iter().any(|rank| self.missing.contains(rank))
    }
}

/// Returns the collectives that some ranks have not entered, by communicator and function, in a silence since `since`.
pub(super) fn gaps(comms: &ByComm, since: Time) -> Vec<Gap> {
    let recent = Time(since.0.saturating_sub(RECENT.as_nanos() as u64));
    let mut gaps = Vec::new();
    for (comm, ranks) in comms {
        for (function, last) in last_of_each(ranks) {
            let number = |last: &Option<LastCollective>| last.map(|last| last.sequence);
            let least = last.values().map(number).min().flatten();
            let next = least.map_or(0, |least| least.saturating_add(1));
            let (missing, entered): (Vec<Rank>, Vec<Rank>) = last
                .keys()
                .partition(|rank| last.get(rank).and_then(number) == least);
            let is_recent = |rank: &Rank| ranks.get(rank).is_some_and(|taken| taken.entered_at >= recent);
            if missing.is_empty() || !entered.iter().any(is_recent) {
                continue;
            }
            let is_next = |last: &&LastCollective| last.sequence == next;
            let bytes = last.values().flatten().find(is_next).map_or(0, |last| last.bytes);
            let next = LastCollective {
                function,
                sequence: next,
                bytes,
            };
            gaps.push(Gap {
                comm: *comm,
                next,
                missing,
                entered,
            });
        }
    }
    gaps
}

/// Returns the gaps whose missing ranks are a minority and wait for no other rank, those with the fewest missing ranks
/// first.
pub(super) fn roots(gaps: &[Gap]) -> Vec<usize> {
    let waiting: BTreeSet<Rank> = gaps.iter().flat_map(|gap| gap.entered.iter().copied()).collect();
    let is_root = |gap: &Gap| gap.is_of_minority() && !gap.missing.iter().any(|rank| waiting.contains(rank));
    let mut roots: Vec<usize> = (0..gaps.len()).filter(|index| is_root(&gaps[*index])).collect();
    roots.sort_by_key(|index| gaps[*index].order());
    roots
}

/// Returns the last collective of each rank, by function. It is `None` if the rank has entered none. This is known only
/// if everything that the rank enqueued was seen and the others have entered only their first collective.
fn last_of_each(ranks: &BTreeMap<Rank, Taken>) -> BTreeMap<u8, BTreeMap<Rank, Option<LastCollective>>> {
    let mut all: BTreeMap<u8, BTreeMap<Rank, Option<LastCollective>>> = BTreeMap::new();
    for (rank, taken) in ranks {
        for last in &taken.each {
            all.entry(last.function).or_default().insert(*rank, Some(*last));
        }
    }
    for last in all.values_mut() {
        if last.values().flatten().all(|last| last.sequence == 0) {
            for (rank, _) in ranks.iter().filter(|(_, taken)| taken.is_whole) {
                last.entry(*rank).or_default();
            }
        }
    }
    all
}

/// Returns a collective that ranks entered with different sizes: its communicator, and the ranks by size.
pub(super) fn sizes(comms: &ByComm) -> Option<(u64, LastCollective, BTreeMap<u64, Vec<Rank>>)> {
    comms.iter().find_map(|(comm, ranks)| {
        last_of_each(ranks).into_values().find_map(|last| {
            let mut by_size: BTreeMap<u64, Vec<Rank>> = BTreeMap::new();
            let first = (*last.values().next()?)?;
            for (rank, last) in &last {
                let last = last.filter(|last| last.sequence == first.sequence)?;
                by_size.entry(last.bytes).or_default().push(*rank);
            }
            (by_size.len() > 1).then_some((*comm, first, by_size))
        })
    })
}

/// Two communicators that some ranks entered last in one order, and other ranks in the opposite order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct OrderMismatch {
    /// The collectives that the minority of the ranks entered first and second.
    pub(super) first: (u64, LastCollective),
    pub(super) second: (u64, LastCollective),
    pub(super) minority: Vec<Rank>,
    /// Number of ranks that entered the two collectives in the opposite order.
    pub(super) majority: usize,
}

/// Returns the mismatch if all ranks have entered the same collectives. The two communicators must be the last two of
/// each of their members.
pub(super) fn order_mismatch(comms: &ByComm) -> Option<OrderMismatch> {
    let mut latest: BTreeMap<Rank, [Option<u64>; 2]> = BTreeMap::new();
    for (comm, ranks) in comms {
        for (rank, taken) in ranks {
            if let Some(place) = latest.entry(*rank).or_default().get_mut(taken.later) {
                *place = Some(*comm);
            }
        }
    }
    let pairs = latest.into_values().filter_map(|[a, b]| {
        let (a, b) = (a?, b?);
        Some((a.min(b), a.max(b)))
    });
    let pairs: BTreeSet<(u64, u64)> = pairs.take(MAX_PAIRS).collect();
    pairs.into_iter().find_map(|(a, b)| {
        let (in_a, in_b) = (comms.get(&a)?, comms.get(&b)?);
        let mut a_first = Vec::new();
        let mut b_first = Vec::new();
        for (rank, of_a) in in_a {
            let Some(of_b) = in_b.get(rank) else { continue };
            match (of_a.later, of_b.later) {
                (1, 0) => a_first.push(*rank),
                (0, 1) => b_first.push(*rank),
                _ => return None,
            }
        }
        let some = a_first.first().zip(b_first.first())?.0;
        let of_a = (a, *in_a.get(some)?.each.first()?);
        let of_b = (b, *in_b.get(some)?.each.first()?);
        let (minority, majority, first, second) = match a_first.len() <= b_first.len() {
            true => (a_first, b_first, of_a, of_b),
            false => (b_first, a_first, of_b, of_a),
        };
        Some(OrderMismatch {
            first,
            second,
            minority,
            majority: majority.len(),
        })
    })
}
