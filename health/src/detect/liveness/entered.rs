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

    /// What `rank` has not entered in a silence that began `since`: `has not entered all_reduce 8812 of dp (64 MiB),
    /// 3 other ranks have`.
    pub fn says_of(&self, rank: Rank, since: Time, comms: &Comms) -> Option<String> {
        let gaps = self.gaps(since).into_iter();
        let gaps = gaps.filter(|gap| gap.missing.contains(&rank));
        let gap = gaps.max_by_key(|gap| gap.entered.len())?;
        let (named, others) = (place(&gap.next, gap.comm, comms), others(gap.entered.len()));
        Some(format!("has not entered {named}, {others}"))
    }

    /// Who is missing where, of all ranks, whose collective differs, or that none is missing; with the cause.
    pub fn says_of_all(&self, since: Time, comms: &Comms) -> Option<(String, Cause)> {
        let gaps = self.gaps(since);
        if let Some(gap) = gaps
            .iter()
            .filter(|gap| gap.is_of_few())
            .min_by_key(|gap| gap.order())
        {
            let (ranks, named) = (names(&gap.missing), place(&gap.next, gap.comm, comms));
            let (has, it) = match gap.missing.len() {
                1 => ("has", "it has"),
                _ => ("have", "they have"),
            };
            let mut says = format!("{ranks} {has} not entered {named}, {}", others(gap.entered.len()));
            let instead = gaps.iter().find(|other| other.is_instead_of(gap));
            if let Some(instead) = instead {
                let named = place(&instead.next, instead.comm, comms);
                says += &format!("; {it} entered {named} instead");
            }
            let cause = instead.map_or(Cause::Unknown, |_| Cause::CollectiveMismatch);
            return Some((says, cause));
        }
        let differs = self.sizes(since, comms);
        if let Some(says) = differs.or_else(|| self.order(since, comms).filter(|_| gaps.is_empty())) {
            return Some((says, Cause::CollectiveMismatch));
        }
        let (comm, ranks) = self
            .comms
            .iter()
            .max_by_key(|(_, ranks)| latest_of(ranks, since))?;
        let fresh = || ranks.values().filter(|taken| taken.at >= since);
        let last = fresh().next()?.each.first()?;
        let is_same = gaps.is_empty() && fresh().all(|taken| taken.each.first() == Some(last));
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
                let at = |rank: &Rank| last.get(rank).map(|last| last.sequence);
                let (Some(least), Some(most)) =
                    (last.keys().filter_map(at).min(), last.keys().filter_map(at).max())
                else {
                    continue;
                };
                if least == most {
                    continue;
                }
                let (missing, entered): (Vec<Rank>, Vec<Rank>) =
                    last.keys().partition(|rank| at(rank) == Some(least));
                let next = last.values().find(|last| last.sequence == least + 1);
                let next = next.copied().unwrap_or(LastCollective {
                    function,
                    sequence: least + 1,
                    bytes: 0,
                });
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

    /// One collective that ranks have entered with different sizes: `sizes differ in all_reduce 8812 of dp: 4 B on rank 2,
    /// 64 MiB on ranks 0-1, 3`.
    fn sizes(&self, since: Time, comms: &Comms) -> Option<String> {
        self.comms.iter().find_map(|(comm, ranks)| {
            last_of_each(ranks, since).into_values().find_map(|last| {
                let mut by_size: BTreeMap<u64, Vec<Rank>> = BTreeMap::new();
                for (rank, last) in &last {
                    by_size.entry(last.bytes).or_default().push(*rank);
                }
                let each = last.values().next().filter(|_| by_size.len() > 1)?;
                let size = |(size, ranks): (&u64, &Vec<Rank>)| {
                    format!("{} on {}", bytes(*size as f64), names(ranks))
                };
                let sizes: Vec<String> = by_size.iter().map(size).collect();
                let named = place(&LastCollective { bytes: 0, ..*each }, *comm, comms);
                Some(format!("sizes differ in {named}: {}", sizes.join(", ")))
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

/// By function, the last collective of each rank that answered since.
fn last_of_each(ranks: &BTreeMap<Rank, Taken>, since: Time) -> BTreeMap<u8, BTreeMap<Rank, LastCollective>> {
    let mut all: BTreeMap<u8, BTreeMap<Rank, LastCollective>> = BTreeMap::new();
    for (rank, taken) in ranks.iter().filter(|(_, taken)| taken.at >= since) {
        for last in &taken.each {
            all.entry(last.function).or_default().insert(*rank, *last);
        }
    }
    all
}

impl Gap {
    /// Fewer are missing than have entered.
    fn is_of_few(&self) -> bool {
        self.missing.len() <= self.entered.len()
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
mod tests {
    use super::*;
    use crate::event::CommEntered;

    const ALL_REDUCE: u8 = 1;
    const ALL_GATHER: u8 = 3;

    /// Ranks with the last collectives `(communicator, function, sequence, bytes)` of each.
    fn evidence(ranks: &[&[(u64, u8, u64, u64)]]) -> EnteredEvidence {
        let mut evidence = EnteredEvidence::default();
        for (rank, last) in (0..).map(Rank).zip(ranks) {
            let mut comms: BTreeMap<u64, Vec<LastCollective>> = BTreeMap::new();
            for (comm, function, sequence, bytes) in *last {
                comms
                    .entry(*comm)
                    .or_default()
                    .push((*function, *sequence, *bytes).into());
            }
            let comms = comms.into_iter().map(|(comm, each)| CommEntered { comm, each });
            let told = Entered {
                rank,
                restart: 0,
                comms: comms.collect(),
            };
            evidence.take(Time(5), &told);
        }
        evidence
    }

    fn says(evidence: &EnteredEvidence) -> Option<(String, Cause)> {
        evidence.says_of_all(Time(5), &Comms::default())
    }

    #[test]
    fn one_is_missing() {
        let [before, after] = [[(7, ALL_REDUCE, 99, 8)], [(7, ALL_REDUCE, 100, 4096)]];
        let all = evidence(&[&after, &after, &before, &after]);
        let expected = "rank 2 has not entered all_reduce 100 (4.0 KiB), 3 other ranks have";
        assert_eq!(says(&all), Some((expected.to_owned(), Cause::Unknown)));
        let one = all.says_of(Rank(2), Time(5), &Comms::default());
        assert_eq!(
            one.as_deref(),
            Some("has not entered all_reduce 100 (4.0 KiB), 3 other ranks have")
        );
        assert_eq!(all.says_of(Rank(1), Time(5), &Comms::default()), None);
        // Of an earlier silence.
        assert_eq!(all.says_of_all(Time(6), &Comms::default()), None);
        assert_eq!(all.version(Time(6)), 0);
    }

    #[test]
    fn two_call_in_another_order() {
        let first = [(7, ALL_REDUCE, 5, 8), (9, ALL_REDUCE, 4, 8)];
        let second = [(7, ALL_REDUCE, 4, 8), (9, ALL_REDUCE, 5, 8)];
        let all = evidence(&[&first, &first, &second, &first]);
        let expected = "rank 2 has not entered all_reduce 5 (8 B), 3 other ranks have; it has entered all_reduce 5 (8 B) \
                        instead";
        assert_eq!(says(&all), Some((expected.to_owned(), Cause::CollectiveMismatch)));
    }

    #[test]
    fn two_are_entered_by_all_in_another_order() {
        let told = |rank: u32, order: [u64; 2]| Entered {
            rank: Rank(rank),
            restart: 0,
            comms: order
                .map(|comm| CommEntered {
                    comm,
                    each: vec![(ALL_REDUCE, comm, 8).into()],
                })
                .to_vec(),
        };
        let mut all = EnteredEvidence::default();
        for rank in [0, 1, 3] {
            all.take(Time(5), &told(rank, [9, 7]));
        }
        all.take(Time(5), &told(2, [7, 9]));
        let expected = "rank 2 entered all_reduce 9 (8 B) before all_reduce 7 (8 B), 3 other ranks after it";
        assert_eq!(says(&all), Some((expected.to_owned(), Cause::CollectiveMismatch)));
    }

    #[test]
    fn another_function_and_another_size() {
        let gather = [(7, ALL_GATHER, 51, 8), (7, ALL_REDUCE, 99, 8)];
        let reduce = [(7, ALL_REDUCE, 100, 8), (7, ALL_GATHER, 50, 8)];
        let (text, cause) = says(&evidence(&[&gather, &reduce, &gather])).unwrap();
        assert_eq!(cause, Cause::CollectiveMismatch);
        assert!(text.starts_with("rank 1 has not entered all_gather 51"), "{text}");
        assert!(
            text.ends_with("it has entered all_reduce 100 (8 B) instead"),
            "{text}"
        );
        let (text, cause) = says(&evidence(&[
            &[(7, ALL_REDUCE, 99, 8)],
            &[(7, ALL_REDUCE, 99, 8)],
            &[(7, ALL_REDUCE, 99, 4)],
        ]))
        .unwrap();
        assert_eq!(cause, Cause::CollectiveMismatch);
        assert_eq!(
            text,
            "sizes differ in all_reduce 99: 4 B on rank 2, 8 B on ranks 0-1"
        );
    }

    #[test]
    fn none_is_missing() {
        let last = [(7, ALL_REDUCE, 99, 8)];
        let expected = (
            "all 2 ranks have entered all_reduce 99 (8 B)".to_owned(),
            Cause::Unknown,
        );
        assert_eq!(says(&evidence(&[&last, &last])), Some(expected));
        assert_eq!(says(&evidence(&[&last])), None);
        assert_eq!(says(&EnteredEvidence::default()), None);
    }
}
