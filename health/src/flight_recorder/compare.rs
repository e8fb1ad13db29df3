//! Compares the dumps of a job's ranks to find the rank that the others wait for.

use std::collections::BTreeMap;

use serde::Serialize;

use super::dump::{Dump, Entry, Group};
use super::messages::{self, OneSided};
use super::mismatch::{mismatch, order_mismatch};
use crate::id::Rank;
use crate::text::humanize::evidence::bytes;
use crate::text::humanize::{count, has, other_ranks_have, ranks as names};
use crate::verdict::Cause;

/// Maximum number of collectives with missing ranks that are reported.
const MAX_NAMED: usize = 3;
/// Maximum number of characters of a group's name that are reported. The name may be a long hash.
const MAX_NAME: usize = 12;

/// The reason for a hang according to the dumps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Comparison {
    /// One-sentence summary.
    pub says: String,
    /// The cause: a collective mismatch, or unknown.
    pub cause: Cause,
    /// Ranks that block others without waiting in an operation, or whose collective differs from that of most ranks.
    pub suspects: Vec<Rank>,
    /// Ranks with a dump.
    pub ranks: Vec<Rank>,
    /// Members of these ranks' groups that have no dump.
    pub without_dump: Vec<Rank>,
    /// The position of each rank, with suspects first.
    pub positions: Vec<Position>,
}

/// What some ranks are doing: their pending operation, or the last one they finished.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Position {
    /// The ranks.
    pub ranks: Vec<Rank>,
    /// True if the operation is pending.
    pub is_pending: bool,
    /// The operation, for example `all_reduce #151 of group 3 "dp" (16.2 KiB)`.
    pub operation: String,
    /// The line of the user's code, for example `train.py:88 in step`. Empty if not recorded, as in a backward pass.
    pub at: String,
}

/// The first pending collective of a group.
pub(super) struct Pending<'a> {
    pub(super) group: &'a Group,
    pub(super) sequence: u64,
    entry: &'a Entry,
    /// The ranks that have entered the collective, with their entries.
    pub(super) entered: Vec<(Rank, &'a Entry)>,
    /// Ranks that have not entered the collective, according to their dumps.
    missing: Vec<Rank>,
    /// Number of members without a dump.
    unknown: usize,
}

/// Summary, suspects and cause.
pub(super) type Finding = (String, Vec<Rank>, Cause);

impl Comparison {
    /// Compares the dumps of one hang, by global rank.
    pub fn of(dumps: &BTreeMap<Rank, Dump>) -> Comparison {
        let groups = by_group(dumps);
        let mut without_dump: Vec<Rank> = groups.keys().flat_map(|group| group.members.clone()).collect();
        without_dump.retain(|rank| !dumps.contains_key(rank));
        without_dump.sort_unstable();
        without_dump.dedup();
        let pending: Vec<Pending<'_>> = groups
            .iter()
            .filter_map(|(group, ranks)| first_pending(group, ranks, dumps))
            .collect();
        let messages = messages::one_sided(dumps);
        let found = pending.iter().find_map(mismatch);
        let found = found
            .or_else(|| missing(&pending, dumps))
            .or_else(|| messages::missing(&messages, dumps))
            .or_else(|| order_mismatch(dumps));
        let (mut says, suspects, cause) = found.unwrap_or_else(|| {
            (
                none_missing(&pending, &messages, dumps),
                Vec::new(),
                Cause::Unknown,
            )
        });
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

/// The collectives of a rank in a group, by sequence number.
type History<'a> = BTreeMap<u64, &'a Entry>;

/// Returns the collectives of each rank by group. Omits ranks whose recorder has overwritten their operations in a
/// group.
fn by_group(dumps: &BTreeMap<Rank, Dump>) -> BTreeMap<&Group, BTreeMap<Rank, History<'_>>> {
    let mut groups: BTreeMap<&Group, BTreeMap<Rank, History<'_>>> = BTreeMap::new();
    for (rank, dump) in dumps {
        let mut histories: BTreeMap<&str, History<'_>> = BTreeMap::new();
        for entry in dump.entries.iter().filter(|entry| entry.message.is_none()) {
            histories
                .entry(&entry.group)
                .or_default()
                .insert(entry.sequence, entry);
        }
        for group in dump.groups.values() {
            let history = histories.remove(&*group.name).unwrap_or_default();
            let is_member = group.members.is_empty() || group.members.contains(rank);
            if !history.is_empty() || (dump.is_whole && is_member) {
                groups.entry(group).or_default().insert(*rank, history);
            }
        }
    }
    groups
}

/// Returns the first collective of a group that is pending on some rank.
fn first_pending<'a>(
    group: &'a Group,
    ranks: &BTreeMap<Rank, History<'a>>,
    dumps: &BTreeMap<Rank, Dump>,
) -> Option<Pending<'a>> {
    let pending = ranks.values().flat_map(|history| history.iter());
    let pending = pending.filter(|(_, entry)| !entry.is_completed);
    let (sequence, entry) = pending.min_by_key(|(sequence, _)| **sequence)?;
    let is_missing = |history: &History<'_>| history.keys().next_back().is_none_or(|last| last < sequence);
    let missing = ranks.iter().filter(|(_, history)| is_missing(history));
    let entered = ranks.iter();
    let entered = entered.filter_map(|(rank, history)| Some((*rank, *history.get(sequence)?)));
    let unknown = group.members.iter().filter(|rank| !dumps.contains_key(rank));
    Some(Pending {
        group,
        sequence: *sequence,
        entry,
        entered: entered.collect(),
        missing: missing.map(|(rank, _)| *rank).collect(),
        unknown: unknown.count(),
    })
}

/// Finds ranks that have not entered a collective and do not wait in another operation themselves. Collectives that
/// lack the fewest ranks are first. A rank that waits in another operation is not blamed, because it waits for another
/// rank or for its GPU.
fn missing(pending: &[Pending<'_>], dumps: &BTreeMap<Rank, Dump>) -> Option<Finding> {
    let is_idle = |rank: &&Rank| dumps.get(rank).is_some_and(|dump| !dump.is_waiting());
    let idle = |pending: &Pending<'_>| {
        pending
            .missing
            .iter()
            .filter(is_idle)
            .copied()
            .collect::<Vec<Rank>>()
    };
    let mut gaps: Vec<(Vec<Rank>, &Pending<'_>)> =
        pending.iter().map(|pending| (idle(pending), pending)).collect();
    gaps.retain(|(idle, _)| !idle.is_empty());
    gaps.sort_by_key(|(idle, pending)| (idle.len(), std::cmp::Reverse(pending.entered.len())));
    let (few, many): (Vec<_>, Vec<_>) = gaps
        .into_iter()
        .partition(|(idle, pending)| idle.len() <= pending.entered.len());
    let mut named: Vec<(Vec<Rank>, &Pending<'_>)> = Vec::new();
    for (idle, pending) in few {
        if named.len() < MAX_NAMED && named.iter().all(|(known, _)| *known != idle) {
            named.push((idle, pending));
        }
    }
    if named.is_empty() {
        let (idle, pending) = many.first()?;
        let entered: Vec<Rank> = pending.entered.iter().map(|(rank, _)| *rank).collect();
        let (who, have) = (names(&entered), has(entered.len()));
        let says = format!(
            "{who} {have} entered {}, {} not",
            pending.place(),
            other_ranks_have(idle.len())
        );
        return Some((says, Vec::new(), Cause::Unknown));
    }
    let each = named.iter().map(|(idle, pending)| {
        let (who, have) = (names(idle), has(idle.len()));
        format!(
            "{who} {have} not entered {}, {}",
            pending.place(),
            other_ranks_have(pending.entered.len())
        )
    });
    let says = each.collect::<Vec<String>>().join("; ");
    let mut suspects: Vec<Rank> = named.into_iter().flat_map(|(idle, _)| idle).collect();
    suspects.sort_unstable();
    suspects.dedup();
    Some((says, suspects, Cause::Unknown))
}

/// Describes a collective to report if no rank is known to be missing: one that all ranks have entered, in the group
/// with the fewest unknown members.
fn none_missing(pending: &[Pending<'_>], messages: &[OneSided<'_>], dumps: &BTreeMap<Rank, Dump>) -> String {
    let entered_by_all = pending.iter().filter(|pending| pending.missing.is_empty());
    let order = |pending: &&Pending<'_>| {
        let all = pending.entered.len() + pending.unknown;
        // A rank without a dump may be the missing rank.
        (pending.unknown == 0, all)
    };
    if let Some(pending) = entered_by_all.min_by_key(order).or(pending.first()) {
        let entered = pending.entered.len();
        let ended = pending
            .entered
            .iter()
            .filter(|(_, entry)| entry.is_completed)
            .count();
        let members = pending.group.members.len().max(entered);
        let who = match entered == members {
            true => format!("all {} {}", count(members as u64, "rank"), has(members)),
            false => format!("{entered} of {} {}", count(members as u64, "rank"), has(entered)),
        };
        let ended = match ended {
            0 => "none of them has finished it".to_owned(),
            ended => format!("{ended} of them {} finished it", has(ended)),
        };
        return format!("{who} entered {}, {ended}", pending.place());
    }
    if let Some(says) = messages::waiting(messages, dumps) {
        return says;
    }
    format!("no operation is pending in {}", count(dumps.len() as u64, "dump"))
}

/// Groups ranks with the same position.
fn positions(dumps: &BTreeMap<Rank, Dump>, suspects: &[Rank]) -> Vec<Position> {
    let mut alike: BTreeMap<(bool, String, String), Vec<Rank>> = BTreeMap::new();
    for (rank, dump) in dumps {
        let pending = dump.entries.iter().find(|entry| !entry.is_completed);
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
        .map(|((is_pending, operation, at), ranks)| Position {
            ranks,
            is_pending,
            operation,
            at,
        })
        .collect();
    let is_other = |position: &Position| !position.ranks.iter().any(|rank| suspects.contains(rank));
    positions.sort_by_key(|position| (is_other(position), position.ranks.first().copied()));
    positions
}

impl Pending<'_> {
    fn place(&self) -> String {
        place(self.group, self.sequence, self.entry)
    }
}

/// Describes a collective, for example `all_reduce #151 of group 3 "dp" (16.2 KiB)`. The number is PyTorch's count of
/// the group's collectives, from 1.
pub(super) fn place(group: &Group, sequence: u64, entry: &Entry) -> String {
    let number = match entry.message {
        Some(_) => String::new(),
        None => format!(" #{sequence}"),
    };
    let size = match entry.input.bytes.max(entry.output.bytes) {
        // A barrier has no size here, because one backend implements it with a tensor of one element.
        _ if entry.name == "barrier" => String::new(),
        0 => String::new(),
        size => format!(" ({})", bytes(size as f64)),
    };
    format!("{}{number} of {}{size}", entry.name, called(group))
}

/// Describes a group, for example `group 3 "dp"`. The number is needed because groups of different ranks may have the
/// same description.
pub(super) fn called(group: &Group) -> String {
    let name: String = group.name.chars().take(MAX_NAME).collect();
    match &*group.description {
        "" => format!("group {name}"),
        description => format!("group {name} \"{description}\""),
    }
}
