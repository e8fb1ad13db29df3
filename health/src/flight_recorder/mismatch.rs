//! What ranks have entered differently.

use std::collections::{BTreeMap, BTreeSet};

use super::compare::{Finding, History, called, place};
use super::dump::{Dump, Entry};
use crate::id::Rank;
use crate::text::humanize::evidence::bytes;
use crate::text::humanize::{count, ranks as names};
use crate::verdict::Cause;

/// Shapes that are named.
const MAX_NAMED: usize = 3;
/// Collectives whose size differs between ranks by design.
const UNEVEN: [&str; 4] = [
    "all_to_all",
    "all_to_all_single",
    "all_gather_v",
    "reduce_scatter_v",
];

/// What must be the same on all ranks of a collective.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Shape<'a> {
    name: &'a str,
    bytes: (u64, u64),
    types: &'a str,
}

impl Shape<'_> {
    fn size(&self) -> String {
        bytes(self.bytes.0.max(self.bytes.1) as f64)
    }
}

/// The first collective that ranks have entered with another operation, size or type than others.
pub(super) fn mismatch(history: &History<'_>) -> Option<Finding> {
    let sequences = history.ranks.values().flat_map(|entries| entries.keys().copied());
    let sequences: BTreeSet<u64> = sequences.collect();
    sequences
        .into_iter()
        .find_map(|sequence| mismatch_of(history, sequence))
}

fn mismatch_of(history: &History<'_>, sequence: u64) -> Option<Finding> {
    let entries = history.ranks.iter();
    let entries: Vec<(Rank, &Entry)> = entries
        .filter_map(|(rank, entries)| Some((*rank, *entries.get(&sequence)?)))
        .collect();
    if entries.iter().all(|(_, entry)| entry.is_completed) {
        return None;
    }
    let mut by_shape: BTreeMap<Shape<'_>, Vec<Rank>> = BTreeMap::new();
    for (rank, entry) in &entries {
        by_shape.entry(shape(entry)).or_default().push(*rank);
    }
    let mut by_shape: Vec<(Shape<'_>, Vec<Rank>)> = by_shape.into_iter().collect();
    by_shape.sort_by_key(|(_, ranks)| ranks.len());
    let [(first, minority), others @ ..] = by_shape.as_slice() else {
        return None;
    };
    let what = match others {
        [] => return None,
        _ if others.iter().any(|(other, _)| other.name != first.name) => "operations",
        _ if others.iter().any(|(other, _)| other.types != first.types) => "types",
        _ => "sizes",
    };
    let each = by_shape.iter().take(MAX_NAMED).map(|(shape, ranks)| {
        let shape = match what {
            "operations" if shape.bytes == (0, 0) => shape.name.to_owned(),
            "operations" => format!("{} ({})", shape.name, shape.size()),
            "types" => shape.types.to_owned(),
            _ => shape.size(),
        };
        format!("{shape} on {}", names(ranks))
    });
    let each: Vec<String> = each.collect();
    let name = match what {
        "operations" => "collective",
        _ => first.name,
    };
    let group = called(history.group);
    let says = format!(
        "{what} differ in {name} #{sequence} of {group}: {}",
        each.join(", ")
    );
    // Of two halves neither is the one that differs.
    let is_minority = minority.len() * 2 < entries.len();
    let suspects = if is_minority { minority.clone() } else { Vec::new() };
    Some((says, suspects, Cause::CollectiveMismatch))
}

fn shape(entry: &Entry) -> Shape<'_> {
    let bytes = match &*entry.name {
        name if UNEVEN.contains(&name) => (0, 0),
        // One backend sends an element for it.
        "barrier" => (0, 0),
        "gather" => (entry.bytes.0, 0),
        "scatter" => (0, entry.bytes.1),
        _ => entry.bytes,
    };
    Shape {
        name: &entry.name,
        bytes,
        types: &entry.types,
    }
}

/// The first collectives of two groups that a rank has entered and not ended.
struct FirstTwo<'a> {
    rank: Rank,
    dump: &'a Dump,
    entries: [&'a Entry; 2],
}

/// Two groups of which some ranks have entered one first, and others the other. Where they run on streams of their own,
/// the order need not matter.
pub(super) fn order_mismatch(dumps: &BTreeMap<Rank, Dump>) -> Option<Finding> {
    let mut by_pair: BTreeMap<[&str; 2], [Vec<FirstTwo<'_>>; 2]> = BTreeMap::new();
    for (rank, dump) in dumps {
        let mut entries = dump
            .entries
            .iter()
            .filter(|entry| !entry.is_completed && entry.message.is_none());
        let Some(first) = entries.next() else { continue };
        let Some(second) = entries.find(|entry| entry.group != first.group) else {
            continue;
        };
        let mut pair = [&*first.group, &*second.group];
        pair.sort_unstable();
        let is_reversed = pair.first() != Some(&&*first.group);
        let sides = by_pair.entry(pair).or_default();
        sides[usize::from(is_reversed)].push(FirstTwo {
            rank: *rank,
            dump,
            entries: [first, second],
        });
    }
    let mut sides = by_pair
        .into_values()
        .find(|sides| sides.iter().all(|side| !side.is_empty()))?;
    sides.sort_by_key(Vec::len);
    let [minority, majority] = sides;
    let FirstTwo { dump, entries, .. } = minority.first()?;
    let [first, second] = entries.map(|entry| {
        let group = dump.groups.get(&entry.group)?;
        Some(place(group, entry.sequence, entry))
    });
    let ranks: Vec<Rank> = minority.iter().map(|side| side.rank).collect();
    let says = format!(
        "{} entered {} before {}, {} after it",
        names(&ranks),
        first?,
        second?,
        count(majority.len() as u64, "other rank")
    );
    let suspects = if ranks.len() < majority.len() {
        ranks
    } else {
        Vec::new()
    };
    Some((says, suspects, Cause::Unknown))
}
