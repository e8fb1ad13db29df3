//! Mismatches between ranks in collectives.

use std::collections::BTreeMap;

use super::compare::{Finding, Pending, called, place};
use super::dump::{Dump, Entry};
use crate::id::Rank;
use crate::text::humanize::evidence::bytes;
use crate::text::humanize::{count, ranks as names};
use crate::verdict::Cause;

/// Maximum number of shapes that are reported.
const MAX_NAMED: usize = 3;
/// Collectives whose size differs between ranks by design, or for which some backends record the input and others the
/// output.
const UNEVEN: [&str; 6] = [
    "all_to_all",
    "all_to_all_single",
    "all_gather_v",
    "reduce_scatter_v",
    "scatter",
    "barrier",
];

/// The properties that must be the same on all ranks of a collective.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Shape<'a> {
    name: &'a str,
    bytes: Option<u64>,
    types: &'a str,
}

impl<'a> Shape<'a> {
    /// Returns the shape of an entry. All-gathers are compared by their output, because their inputs may differ in
    /// size. Other collectives are compared by their input, because only the root of a gather, for example, has the
    /// output.
    fn of(entry: &'a Entry) -> Shape<'a> {
        let name = &*entry.name;
        let side = match name {
            _ if UNEVEN.contains(&name) || name.ends_with("coalesced") => None,
            _ if name.starts_with("all_gather") => Some(&entry.output),
            _ => Some(&entry.input),
        };
        Shape {
            name,
            bytes: side.map(|side| side.bytes),
            types: side.map_or("", |side| &side.types),
        }
    }

    fn size(&self) -> String {
        bytes(self.bytes.unwrap_or(0) as f64)
    }
}

/// Finds ranks that have entered a collective with another operation, size or type than the others.
pub(super) fn mismatch(pending: &Pending<'_>) -> Option<Finding> {
    let mut by_shape: BTreeMap<Shape<'_>, Vec<Rank>> = BTreeMap::new();
    for (rank, entry) in &pending.entered {
        by_shape.entry(Shape::of(entry)).or_default().push(*rank);
    }
    let mut by_shape: Vec<(Shape<'_>, Vec<Rank>)> = by_shape.into_iter().collect();
    by_shape.sort_by_key(|(_, ranks)| ranks.len());
    let [rare @ .., (usual, most)] = by_shape.as_slice() else {
        return None;
    };
    let what = match rare {
        [] => return None,
        _ if rare.iter().any(|(other, _)| other.name != usual.name) => "operations",
        _ if rare.iter().any(|(other, _)| other.types != usual.types) => "types",
        _ => "sizes",
    };
    let each = by_shape.iter().rev().take(MAX_NAMED).rev().map(|(shape, ranks)| {
        let shape = match what {
            "operations" if shape.bytes.is_none() => shape.name.to_owned(),
            "operations" => format!("{} ({})", shape.name, shape.size()),
            "types" => shape.types.to_owned(),
            _ => shape.size(),
        };
        format!("{shape} on {}", names(ranks))
    });
    let each: Vec<String> = each.collect();
    let name = match what {
        "operations" => "collective",
        _ => usual.name,
    };
    let (sequence, group) = (pending.sequence, called(pending.group));
    let says = format!(
        "{what} differ in {name} #{sequence} of {group}: {}",
        each.join(", ")
    );
    // Without a majority, it is unknown which shape is wrong.
    let has_majority = most.len() * 2 > pending.entered.len();
    let mut suspects: Vec<Rank> = Vec::new();
    if has_majority {
        suspects = rare.iter().flat_map(|(_, ranks)| ranks.iter().copied()).collect();
        suspects.sort_unstable();
    }
    Some((says, suspects, Cause::CollectiveMismatch))
}

/// A rank's first pending collectives of two groups.
struct FirstTwo<'a> {
    rank: Rank,
    dump: &'a Dump,
    entries: [&'a Entry; 2],
}

/// Finds two groups that some ranks have entered in one order and others in the opposite order. If they run on separate
/// streams, the order may not matter.
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
