//! The collectives that ranks which do not move have enqueued last, as evidence: who is missing in one that others have
//! entered, and whose differs from the others'. It finds nothing by itself.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::stacks::names;
use crate::detect::comm::communicators::Comms;
use crate::event::{Entered, LastCollective};
use crate::id::Rank;
use crate::text::humanize::count;
use crate::text::humanize::evidence::bytes;
use crate::time::Time;
use crate::verdict::Cause;

/// The latest answer of each rank, by communicator.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct EnteredEvidence {
    comms: BTreeMap<u64, BTreeMap<Rank, Taken>>,
    /// Counts answers that said something new.
    version: u64,
    /// When the latest answer came.
    latest: Time,
}

/// What a rank had enqueued last in one communicator, and when it said so.
#[derive(Debug, Serialize, Deserialize)]
struct Taken {
    at: Time,
    /// Communicators in which it has enqueued something since.
    later: usize,
    each: Vec<LastCollective>,
}

/// A collective that some have entered and others have not.
#[derive(Debug, PartialEq, Eq)]
struct Gap {
    comm: u64,
    /// The first one that those furthest behind have not entered.
    next: LastCollective,
    missing: Vec<Rank>,
    entered: Vec<Rank>,
}

impl EnteredEvidence {
    /// Takes the answer of a member.
    pub fn take(&mut self, at: Time, told: &Entered) {
        for (later, comm) in told.comms.iter().enumerate() {
            let taken = Taken {
                at,
                later,
                each: comm.each.clone(),
            };
            let ranks = self.comms.entry(comm.comm).or_default();
            let before = ranks.insert(told.rank, taken);
            self.version +=
                u64::from(before.is_none_or(|before| (before.later, &before.each) != (later, &comm.each)));
        }
        self.latest = at;
    }

    /// Changes with what is said of a silence that began `since`; zero: nothing was.
    pub fn version(&self, since: Time) -> u64 {
        u64::from(self.latest >= since) * self.version
    }

    /// What `rank` has not entered in a silence that began `since`, or has entered with another size: `has not entered
    /// all_reduce 8812 of dp (64 MiB), 3 other ranks have`; with the cause.
    pub fn says_of(&self, rank: Rank, since: Time, comms: &Comms) -> Option<(String, Cause)> {
        let gaps = self.gaps(since);
        let own = gaps.iter().filter(|gap| gap.missing.contains(&rank));
        if let Some(gap) = own.max_by_key(|gap| gap.entered.len()) {
            let (says, cause) = gap.says(&gaps, comms);
            return Some((format!("has {says}"), cause));
        }
        let (few, says) = self.sizes(since, comms)?;
        few.contains(&rank).then_some((says, Cause::CollectiveMismatch))
    }

    /// Who is missing where, of all ranks, whose collective differs, or that none is missing; with the cause.
    pub fn says_of_all(&self, since: Time, comms: &Comms) -> Option<(String, Cause)> {
        let gaps = self.gaps(since);
        let of_few = gaps.iter().filter(|gap| gap.missing.len() <= gap.entered.len());
        if let Some(gap) = of_few.min_by_key(|gap| gap.order()) {
            let (says, cause) = gap.says(&gaps, comms);
            return Some((format!("{} {says}", have(&gap.missing)), cause));
        }
        let differs = || Some(self.sizes(since, comms)?.1);
        if let Some(says) = differs().or_else(|| self.order(since, comms).filter(|_| gaps.is_empty())) {
            return Some((says, Cause::CollectiveMismatch));
        }
        if let Some(gap) = gaps.iter().min_by_key(|gap| gap.entered.len()) {
            let (entered, missing) = (have(&gap.entered), others(gap.missing.len()));
            let named = place(&gap.next, gap.comm, comms);
            return Some((
                format!("{entered} entered {named}, {missing} not"),
                Cause::Unknown,
            ));
        }
        let (comm, ranks) = self
            .comms
            .iter()
            .max_by_key(|(_, ranks)| latest_of(ranks, since))?;
        let fresh = || ranks.values().filter(|taken| taken.at >= since);
        let last = fresh().next()?.each.first()?;
        let is_same = fresh().all(|taken| taken.each.first() == Some(last));
        let all = fresh().count();
        (is_same && all > 1).then(|| {
            let named = place(last, *comm, comms);
            (format!("all {all} ranks have entered {named}"), Cause::Unknown)
        })
    }

    /// Collectives that some have not entered, by communicator and function.
    fn gaps(&self, since: Time) -> Vec<Gap> {
        let mut gaps = Vec::new();
        for (comm, ranks) in &self.comms {
            for (function, last) in last_of_each(ranks, since) {
                let number = |last: &Option<LastCollective>| last.map(|last| last.sequence);
                let least = last.values().map(number).min().flatten();
                let next = least.map_or(0, |least| least + 1);
                let (missing, entered): (Vec<Rank>, Vec<Rank>) = last
                    .keys()
                    .partition(|rank| last.get(rank).and_then(number) == least);
                if missing.is_empty() || entered.is_empty() {
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

    /// One collective that ranks have entered with different sizes, and those with the rarest: `sizes differ in all_reduce
    /// 8812 of dp: 4 B on rank 2, 64 MiB on ranks 0-1, 3`.
    fn sizes(&self, since: Time, comms: &Comms) -> Option<(Vec<Rank>, String)> {
        self.comms.iter().find_map(|(comm, ranks)| {
            last_of_each(ranks, since).into_values().find_map(|last| {
                let mut by_size: BTreeMap<u64, Vec<Rank>> = BTreeMap::new();
                let first = (*last.values().next()?)?;
                for (rank, last) in &last {
                    let last = last.filter(|last| last.sequence == first.sequence)?;
                    by_size.entry(last.bytes).or_default().push(*rank);
                }
                let few = by_size.values().min_by_key(|ranks| ranks.len())?.clone();
                let size = |(size, ranks): (&u64, &Vec<Rank>)| {
                    format!("{} on {}", bytes(*size as f64), names(ranks))
                };
                let sizes: Vec<String> = by_size.iter().map(size).collect();
                let named = place(&LastCollective { bytes: 0, ..first }, *comm, comms);
                (sizes.len() > 1).then(|| (few, format!("sizes differ in {named}: {}", sizes.join(", "))))
            })
        })
    }

    /// Two communicators in which all have entered the same, some in one order and some in the other: `rank 2 entered
    /// all_reduce 5 of tp before all_reduce 9 of dp, 3 other ranks after it`.
    fn order(&self, since: Time, comms: &Comms) -> Option<String> {
        let mut latest: BTreeMap<Rank, [Option<u64>; 2]> = BTreeMap::new();
        for (comm, ranks) in &self.comms {
            for (rank, taken) in ranks.iter().filter(|(_, taken)| taken.at >= since) {
                if let Some(place) = latest.entry(*rank).or_default().get_mut(taken.later) {
                    *place = Some(*comm);
                }
            }
        }
        let pairs = latest.into_values().filter_map(|[a, b]| {
            let (a, b) = (a?, b?);
            Some((a.min(b), a.max(b)))
        });
        pairs.collect::<BTreeSet<_>>().into_iter().find_map(|(a, b)| {
            let (in_a, in_b) = (self.comms.get(&a)?, self.comms.get(&b)?);
            let both = in_a
                .iter()
                .filter_map(|(rank, taken)| Some((*rank, taken, in_b.get(rank)?)));
            let both: Vec<(Rank, &Taken, &Taken)> = both
                .filter(|(_, in_a, in_b)| in_a.at >= since && in_b.at >= since)
                .collect();
            let (_, of_a, of_b) = both.first()?;
            let (of_a, of_b) = (of_a.each.first()?, of_b.each.first()?);
            let is_a_first = |(_, a, b): &(Rank, &Taken, &Taken)| a.later > b.later;
            let (a_first, b_first): (Vec<_>, Vec<_>) = both.iter().copied().partition(is_a_first);
            if a_first.is_empty() || b_first.is_empty() {
                return None;
            }
            let of_a = place(of_a, a, comms);
            let of_b = place(of_b, b, comms);
            let (few, many, first, second) = match a_first.len() <= b_first.len() {
                true => (a_first, b_first, of_a, of_b),
                false => (b_first, a_first, of_b, of_a),
            };
            let few: Vec<Rank> = few.into_iter().map(|(rank, ..)| rank).collect();
            let others = count(many.len() as u64, "other rank");
            Some(format!(
                "{} entered {first} before {second}, {others} after it",
                names(&few)
            ))
        })
    }
}

/// Ranks for which this is the communicator that they entered last.
fn latest_of(ranks: &BTreeMap<Rank, Taken>, since: Time) -> usize {
    let is_latest = |taken: &&Taken| taken.at >= since && taken.later == 0;
    ranks.values().filter(is_latest).count()
}

/// By function, the last collective of each rank that answered since. `None`: it has entered none, as is known where the
/// others have entered only their first one; of a rank whose earlier ones were not seen nothing is said.
fn last_of_each(
    ranks: &BTreeMap<Rank, Taken>,
    since: Time,
) -> BTreeMap<u8, BTreeMap<Rank, Option<LastCollective>>> {
    let mut all: BTreeMap<u8, BTreeMap<Rank, Option<LastCollective>>> = BTreeMap::new();
    let fresh = || ranks.iter().filter(|(_, taken)| taken.at >= since);
    for (rank, taken) in fresh() {
        for last in &taken.each {
            all.entry(last.function).or_default().insert(*rank, Some(*last));
        }
    }
    for last in all.values_mut() {
        if last.values().flatten().all(|last| last.sequence == 0) {
            for (rank, _) in fresh() {
                last.entry(*rank).or_default();
            }
        }
    }
    all
}

impl Gap {
    /// `not entered all_reduce 8812 of dp (64 MiB), 3 other ranks have; it entered all_gather 51 of dp instead`, and the cause.
    fn says(&self, gaps: &[Gap], comms: &Comms) -> (String, Cause) {
        let named = place(&self.next, self.comm, comms);
        let says = format!("not entered {named}, {}", others(self.entered.len()));
        let Some(instead) = gaps.iter().find(|other| other.is_instead_of(self)) else {
            return (says, Cause::Unknown);
        };
        let it = if self.missing.len() == 1 { "it" } else { "they" };
        let named = place(&instead.next, instead.comm, comms);
        (
            format!("{says}; {it} entered {named} instead"),
            Cause::CollectiveMismatch,
        )
    }

    /// The fewest missing first, and of those the most that wait.
    fn order(&self) -> (usize, std::cmp::Reverse<usize>, u64) {
        (
            self.missing.len(),
            std::cmp::Reverse(self.entered.len()),
            self.comm,
        )
    }

    /// Whether those that are missing there have entered this one, which the others have not.
    fn is_instead_of(&self, other: &Gap) -> bool {
        let entered: BTreeSet<&Rank> = self.entered.iter().collect();
        other.missing.iter().all(|rank| entered.contains(rank))
            && other.entered.iter().any(|rank| self.missing.contains(rank))
    }
}

/// `rank 2 has`.
fn have(ranks: &[Rank]) -> String {
    let have = if ranks.len() == 1 { "has" } else { "have" };
    format!("{} {have}", names(ranks))
}

fn others(count: usize) -> String {
    match count {
        1 => "1 other rank has".to_owned(),
        _ => format!("{count} other ranks have"),
    }
}

/// `all_reduce 8812 of dp (64 MiB)`.
fn place(last: &LastCollective, comm: u64, comms: &Comms) -> String {
    let of = match comms.get(comm) {
        // PyTorch numbers the groups that have no name.
        Some(comm) if comm.name.parse::<u32>().is_ok() => format!(" of group {}", comm.name),
        Some(comm) if !comm.name.is_empty() => format!(" of {}", comm.name),
        Some(comm) => format!(" of a communicator of {} ranks", comm.size),
        None => String::new(),
    };
    let size = match last.bytes {
        0 => String::new(),
        size => format!(" ({})", bytes(size as f64)),
    };
    format!("{} {}{of}{size}", last.name(), last.sequence)
}

#[cfg(test)]
#[path = "entered_tests.rs"]
mod tests;
