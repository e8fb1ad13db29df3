//! What differs between the dumps of a job's ranks.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::dump::{Dump, Entry, Group};
use super::mismatch::{mismatch, order_mismatch};
use crate::id::Rank;
use crate::text::humanize::evidence::bytes;
use crate::text::humanize::{count, ranks as names};
use crate::verdict::Cause;

/// Collectives with missing ranks that are named.
const MAX_NAMED: usize = 3;

/// Why a job hangs, by the dumps of its ranks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Comparison {
    /// One sentence.
    pub says: String,
    /// Collective-mismatch, or unknown.
    pub cause: Cause,
    /// Ranks that others wait for, or whose collective differs.
    pub suspects: Vec<Rank>,
    /// Ranks whose dump was read.
    pub ranks: Vec<Rank>,
    /// Members of their groups that left none.
    pub without_dump: Vec<Rank>,
    /// Where each rank is; those of the suspects first.
    pub positions: Vec<Position>,
}

/// The collective that ranks are in, or that they finished last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Position {
    /// Whose it is.
    pub ranks: Vec<Rank>,
    /// It has not ended.
    pub is_pending: bool,
    /// `all_reduce #151 of dp (16.2 KiB)`.
    pub collective: String,
    /// The line of the user's code, `train.py:88 in step`; empty: not recorded, as in a backward pass.
    pub at: String,
}

/// The collectives of a group, by rank and number.
pub(super) struct History<'a> {
    pub(super) group: &'a Group,
    pub(super) ranks: BTreeMap<Rank, BTreeMap<u64, &'a Entry>>,
}

/// A collective that some ranks have not entered.
struct Gap<'a> {
    group: &'a Group,
    sequence: u64,
    entry: &'a Entry,
    missing: Vec<Rank>,
    entered: Vec<Rank>,
}

/// A message whose other end has not been entered.
struct OneSided<'a> {
    waits: Rank,
    peer: Rank,
    group: &'a Group,
    entry: &'a Entry,
}

/// What is said, of whom, and the cause.
pub(super) type Finding = (String, Vec<Rank>, Cause);

impl Comparison {
    /// Of the dumps of one hang, by global rank.
    pub fn of(dumps: &BTreeMap<Rank, Dump>) -> Comparison {
        let histories = histories(dumps);
        let members = histories.iter().flat_map(|history| &history.group.members);
        let mut without_dump: Vec<Rank> = members
            .filter(|rank| !dumps.contains_key(rank))
            .copied()
            .collect();
        without_dump.sort_unstable();
        without_dump.dedup();
        let gaps: Vec<Gap<'_>> = histories.iter().filter_map(gap).collect();
        let messages = one_sided(dumps);
        let differs = histories.iter().find_map(mismatch);
        let found = differs
            .or_else(|| missing(&gaps, &messages))
            .or_else(|| awaited(&gaps, &messages))
            .or_else(|| wait_for_each_other(&gaps))
            .or_else(|| order_mismatch(dumps));
        let (mut says, suspects, cause) =
            found.unwrap_or_else(|| (none_missing(&histories, dumps.len()), Vec::new(), Cause::Unknown));
        if !without_dump.is_empty() {
            says += &format!("; {} left no dump", names(&without_dump));
        }
        Comparison {
            says,
            cause,
            positions: positions(dumps, &suspects),
            suspects,
            ranks: dumps.keys().copied().collect(),
            without_dump,
        }
    }
}

/// Ranks whose recorder has forgotten what they did in a group are left out.
fn histories(dumps: &BTreeMap<Rank, Dump>) -> Vec<History<'_>> {
    let mut groups: BTreeMap<&Group, BTreeMap<Rank, BTreeMap<u64, &Entry>>> = BTreeMap::new();
    for (rank, dump) in dumps {
        for group in dump.groups.values() {
            let entries = dump.entries.iter();
            let of_group: BTreeMap<u64, &Entry> = entries
                .filter(|entry| entry.group == group.name && entry.message.is_none())
                .map(|entry| (entry.sequence, entry))
                .collect();
            let is_member = group.members.is_empty() || group.members.contains(rank);
            if !of_group.is_empty() || (dump.is_whole && is_member) {
                groups.entry(group).or_default().insert(*rank, of_group);
            }
        }
    }
    let histories = groups.into_iter();
    histories.map(|(group, ranks)| History { group, ranks }).collect()
}

/// The first collective that those furthest behind have not entered, if others have and have not ended it.
fn gap<'a>(history: &History<'a>) -> Option<Gap<'a>> {
    let last = |entries: &BTreeMap<u64, &Entry>| entries.keys().next_back().copied().unwrap_or(0);
    let least = history.ranks.values().map(last).min()?;
    let (missing, entered): (Vec<Rank>, Vec<Rank>) = history
        .ranks
        .keys()
        .partition(|rank| history.ranks.get(rank).map(last) == Some(least));
    let sequence = least.saturating_add(1);
    let of_entered = entered
        .iter()
        .filter_map(|rank| history.ranks.get(rank)?.get(&sequence));
    let pending = of_entered.copied().find(|entry| !entry.is_completed)?;
    Some(Gap {
        group: history.group,
        sequence,
        entry: pending,
        missing,
        entered,
    })
}

fn largest((input, output): (u64, u64)) -> f64 {
    input.max(output) as f64
}

/// Messages that have not ended and whose other rank has entered none like it.
fn one_sided(dumps: &BTreeMap<Rank, Dump>) -> Vec<OneSided<'_>> {
    let pending = |dump: &'_ Dump, message: (usize, usize), group: &str| {
        let entries = dump.entries.iter();
        let mut alike = entries.filter(|entry| entry.message == Some(message) && entry.group == group);
        alike.any(|entry| !entry.is_completed)
    };
    let mut found = Vec::new();
    for (rank, dump) in dumps {
        for entry in dump.entries.iter().filter(|entry| !entry.is_completed) {
            let Some((message, group)) = entry.message.zip(dump.groups.get(&entry.group)) else {
                continue;
            };
            let ends = [message.0, message.1].map(|end| group.members.get(end));
            let peer = ends.into_iter().flatten().find(|end| *end != rank);
            let Some((peer, of_peer)) = peer.and_then(|peer| Some((*peer, dumps.get(peer)?))) else {
                continue;
            };
            if !pending(of_peer, message, &entry.group) {
                found.push(OneSided {
                    waits: *rank,
                    peer,
                    group,
                    entry,
                });
            }
        }
    }
    found
}

/// Ranks that are missing in a collective and wait in none, nor for a message: the fewest first.
fn missing(gaps: &[Gap<'_>], messages: &[OneSided<'_>]) -> Option<Finding> {
    let waiting = waiting(gaps, messages);
    let is_root = |gap: &&Gap<'_>| {
        gap.missing.len() <= gap.entered.len() && !gap.missing.iter().any(|rank| waiting.contains(rank))
    };
    let mut roots: Vec<&Gap<'_>> = gaps.iter().filter(is_root).collect();
    roots.sort_by_key(|gap| (gap.missing.len(), std::cmp::Reverse(gap.entered.len())));
    let mut named: Vec<&Gap<'_>> = Vec::new();
    for gap in roots {
        if named.len() < MAX_NAMED && named.iter().all(|known| known.missing != gap.missing) {
            named.push(gap);
        }
    }
    let suspects: BTreeSet<Rank> = named.iter().flat_map(|gap| gap.missing.iter().copied()).collect();
    let each: Vec<String> = named.iter().map(|gap| says_of_gap(gap)).collect();
    (!each.is_empty()).then(|| (each.join("; "), suspects.into_iter().collect(), Cause::Unknown))
}

/// A rank whose message others wait for, and that waits for none.
fn awaited(gaps: &[Gap<'_>], messages: &[OneSided<'_>]) -> Option<Finding> {
    let waiting = waiting(gaps, messages);
    let first = messages.iter().find(|message| !waiting.contains(&message.peer))?;
    let says = format!(
        "rank {} waits in {} of {}, and rank {} has not entered it",
        first.waits,
        first.entry.name,
        called(first.group),
        first.peer
    );
    Some((says, vec![first.peer], Cause::Unknown))
}

/// Ranks that are missing in one collective and wait in another: those of the smallest minority.
fn wait_for_each_other(gaps: &[Gap<'_>]) -> Option<Finding> {
    let minorities = gaps.iter().filter(|gap| gap.missing.len() <= gap.entered.len());
    let gap = minorities.min_by_key(|gap| (gap.missing.len(), std::cmp::Reverse(gap.entered.len())));
    if let Some(gap) = gap {
        return Some((says_of_gap(gap), gap.missing.clone(), Cause::Unknown));
    }
    let gap = gaps.iter().min_by_key(|gap| gap.entered.len())?;
    let says = format!(
        "{} {} entered {}, {} not",
        names(&gap.entered),
        has(gap.entered.len()),
        of_gap(gap),
        others(gap.missing.len())
    );
    Some((says, Vec::new(), Cause::Unknown))
}

/// Where no rank is missing: the collective in which most ranks wait.
fn none_missing(histories: &[History<'_>], dumps: usize) -> String {
    let pending = histories.iter().filter_map(|history| {
        let entries = history.ranks.values().flat_map(BTreeMap::iter);
        let (sequence, entry) = entries
            .filter(|(_, entry)| !entry.is_completed)
            .min_by_key(|(at, _)| **at)?;
        Some((history, *sequence, *entry))
    });
    let Some((history, sequence, entry)) = pending.max_by_key(|(history, ..)| history.ranks.len()) else {
        return format!("no collective is pending in {}", count(dumps as u64, "dump"));
    };
    let of_rank = |entries: &BTreeMap<u64, &Entry>| entries.get(&sequence).map(|entry| entry.is_completed);
    let states: Vec<bool> = history.ranks.values().filter_map(of_rank).collect();
    let (all, ended) = (history.ranks.len(), states.iter().filter(|ended| **ended).count());
    let members = history.group.members.len().max(all);
    let who = match all == members {
        true => format!("all {members} ranks have"),
        false => format!("{all} of {members} ranks have"),
    };
    let ended = match ended {
        0 => "none of them has finished it".to_owned(),
        ended => format!("{ended} of them {} finished it", has(ended)),
    };
    format!("{who} entered {}, {ended}", place(history.group, sequence, entry))
}

/// Ranks that wait for others.
fn waiting(gaps: &[Gap<'_>], messages: &[OneSided<'_>]) -> BTreeSet<Rank> {
    let in_collectives = gaps.iter().flat_map(|gap| gap.entered.iter().copied());
    in_collectives
        .chain(messages.iter().map(|message| message.waits))
        .collect()
}

/// Ranks that are in the same place are told together.
fn positions(dumps: &BTreeMap<Rank, Dump>, suspects: &[Rank]) -> Vec<Position> {
    let mut alike: BTreeMap<(bool, String, String), Vec<Rank>> = BTreeMap::new();
    for (rank, dump) in dumps {
        // Gloo's entries have no states: of those the last one counts.
        let has_states = dump.entries.iter().any(|entry| entry.is_completed);
        let pending = dump
            .entries
            .iter()
            .find(|entry| has_states && !entry.is_completed);
        let Some(entry) = pending.or(dump.entries.last()) else {
            continue;
        };
        let Some(group) = dump.groups.get(&entry.group) else {
            continue;
        };
        let at = entry.at.as_ref().map(ToString::to_string).unwrap_or_default();
        let key = (!entry.is_completed, place(group, entry.sequence, entry), at);
        alike.entry(key).or_default().push(*rank);
    }
    let mut positions: Vec<Position> = alike
        .into_iter()
        .map(|((is_pending, collective, at), ranks)| Position {
            ranks,
            is_pending,
            collective,
            at,
        })
        .collect();
    let is_other = |position: &Position| !position.ranks.iter().any(|rank| suspects.contains(rank));
    positions.sort_by_key(|position| (is_other(position), position.ranks.first().copied()));
    positions
}

/// `rank 2 has not entered all_reduce #151 of dp (16.2 KiB), 3 other ranks have`.
fn says_of_gap(gap: &Gap<'_>) -> String {
    format!(
        "{} {} not entered {}, {}",
        names(&gap.missing),
        has(gap.missing.len()),
        of_gap(gap),
        others(gap.entered.len())
    )
}

fn of_gap(gap: &Gap<'_>) -> String {
    place(gap.group, gap.sequence, gap.entry)
}

/// `all_reduce #151 of dp (16.2 KiB)`: its number is PyTorch's, of the group's collectives, from 1.
pub(super) fn place(group: &Group, sequence: u64, entry: &Entry) -> String {
    let number = match entry.message {
        Some(_) => String::new(),
        None => format!(" #{sequence}"),
    };
    let size = match largest(entry.bytes) {
        0.0 => String::new(),
        size => format!(" ({})", bytes(size)),
    };
    format!("{}{number} of {}{size}", entry.name, called(group))
}

pub(super) fn called(group: &Group) -> String {
    if group.description.is_empty() {
        format!("group {}", group.name)
    } else {
        group.description.clone()
    }
}

/// `3 other ranks have`.
fn others(ranks: usize) -> String {
    format!("{} {}", count(ranks as u64, "other rank"), has(ranks))
}

fn has(ranks: usize) -> &'static str {
    if ranks == 1 { "has" } else { "have" }
}
