//! Searches for a collective that occurs once per repetition.
//!
//! A candidate is a short run of large collectives in one communicator (or one small collective), by kind. It cuts the
//! sequence into pieces. The candidate is valid if the pieces contain the same large collectives, by communicator and
//! function. Sizes may vary, as those of activations do with sequence length. A layer repeats within a micro-batch, and
//! a micro-batch within a step, but a step has collectives that layers and micro-batches lack. The search therefore
//! takes the valid candidate whose pieces have the most kinds of collectives. If several have equally many, it takes
//! the one with the shortest pieces. Evaluations, even regular ones, are not mistaken for steps, because they only
//! repeat parts of steps.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use super::operations::{Operation, Operations, hash};
use super::{ALL_REDUCE, DEEPEST, Led, REDUCE_SCATTER};

/// The number of pieces that are compared; how many of them must be alike; and how many out of every four.
const PIECES: usize = 8;
const ALIKE: usize = 5;
const OF_FOUR: usize = 3;
/// The sizes of a communicator and function count as varying if there are more different sizes than this.
const VARIED: usize = 8;
/// Lengths of the runs of collectives.
const DEPTHS: [usize; 6] = [0, 1, 2, 4, 8, DEEPEST];

/// The end of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    pub context: u64,
    /// The number of collectives in the run. Zero means one small collective.
    pub depth: u8,
    /// How many steps ended, and the position of the last end.
    pub ends: u64,
    pub last: usize,
    /// Collectives in a step, and those with the function and communicator of the one that ends it.
    pub items: u32,
    pub each: u16,
    /// Hash of the large collectives of a step.
    pub usual: u64,
    /// The communicator with the most ranks in a step.
    pub led: Led,
}

/// A valid candidate.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    depth: usize,
    context: u64,
    ends: usize,
    /// The range of a typical piece.
    from: usize,
    to: usize,
    first: usize,
    last: usize,
    usual: u64,
    heavy: usize,
}

/// Finds the collective that ends steps. Returns `None` if there is none, or if it is not clear yet.
pub fn search(items: &[u16], operations: &Operations) -> Option<Cut> {
    let of = |item: &u16| operations.of(*item);
    // Prefix sums: the classes of the large collectives, and their count.
    let mut sums = vec![(0u64, 0usize)];
    let mut so_far = (0u64, 0usize);
    for kind in items.iter().map(of) {
        if kind.is_heavy {
            so_far = (so_far.0.wrapping_add(kind.class), so_far.1 + 1);
        }
        sums.push(so_far);
    }
    let mut large: BTreeMap<(usize, u64), Candidate> = BTreeMap::new();
    let mut small: Option<Candidate> = None;
    for depth in DEPTHS {
        for (context, places) in contexts(items, operations, depth) {
            let Some(found) = candidate(depth, context, &places, &sums) else {
                continue;
            };
            let is_better =
                |known: Candidate| rank(&found, items, operations) > rank(&known, items, operations);
            if depth == 0 {
                small = Some(small.filter(|known| !is_better(*known)).unwrap_or(found));
            } else {
                let known = large.entry((found.heavy, found.usual)).or_insert(found);
                if is_better(*known) {
                    *known = found;
                }
            }
        }
    }
    // A longer repetition is the step if it has kinds that a shorter one lacks.
    let rank = |found: &Candidate| (regular_kinds(found, items, operations), Reverse(found.heavy));
    let best = large.into_values().max_by_key(rank).or(small);
    let best = best.filter(|best| !is_too_soon(best, items, operations))?;
    let piece = &items[best.from..best.to];
    let end = of(&items[best.last]);
    let each = |kind: &Operation| (kind.comm, kind.function) == (end.comm, end.function);
    let mut led: Option<Operation> = None;
    for kind in piece.iter().map(of) {
        if led.is_none_or(|led| kind.ranks > led.ranks) {
            led = Some(kind);
        }
    }
    let of_led = |kind: &Operation| led.is_some_and(|led| kind.comm == led.comm);
    Some(Cut {
        context: best.context,
        depth: best.depth as u8,
        ends: best.ends as u64,
        last: best.last,
        items: piece.len() as u32,
        each: piece
            .iter()
            .map(of)
            .filter(each)
            .count()
            .min(usize::from(u16::MAX)) as u16,
        usual: best.usual,
        led: Led {
            comm: led.map_or(0, |led| led.comm),
            of_step: piece.iter().map(of).filter(of_led).count() as u32,
        },
    })
}

/// Returns the positions at which each run of `depth` large collectives of one communicator ends, by the run's hash.
/// For a depth of 0, a run is a single small collective.
fn contexts(items: &[u16], operations: &Operations, depth: usize) -> BTreeMap<u64, Vec<usize>> {
    let mut places: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    let mut runs: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for (at, item) in items.iter().enumerate() {
        let kind = operations.of(*item);
        if kind.is_heavy == (depth == 0) {
            continue;
        }
        if depth == 0 {
            places.entry(kind.hash).or_default().push(at);
            continue;
        }
        let run = runs.entry(kind.comm).or_default();
        if run.len() == depth {
            run.remove(0);
        }
        run.push(kind.hash);
        if run.len() == depth {
            places.entry(hash(run.iter())).or_default().push(at);
        }
    }
    places
}

fn candidate(depth: usize, context: u64, places: &[usize], sums: &[(u64, usize)]) -> Option<Candidate> {
    let latest = &places[places.len().saturating_sub(PIECES + 1)..];
    let pieces: Vec<(usize, usize, u64)> = latest
        .windows(2)
        .map(|pair| {
            let (from, to) = (pair[0] + 1, pair[1] + 1);
            (from, to, sums[to].0.wrapping_sub(sums[from].0))
        })
        .collect();
    let alike = |sum: u64| pieces.iter().filter(|piece| piece.2 == sum).count();
    let &(from, to, usual) = pieces.iter().rev().max_by_key(|piece| alike(piece.2))?;
    let is_regular = alike(usual) >= ALIKE && alike(usual) * 4 >= pieces.len() * OF_FOUR;
    // The repetition must continue to the end of the sequence.
    let (first, last) = (*places.first()?, *places.last()?);
    let is_alive = sums.len() - 1 - last <= 2 * (to - from) + 8;
    (is_regular && is_alive).then_some(Candidate {
        depth,
        context,
        ends: places.len(),
        from,
        to,
        first,
        last,
        usual,
        heavy: sums[to].1 - sums[from].1,
    })
}

/// Returns the key by which candidates are ordered. The best candidate is a collective of gradients, because
/// evaluations have none. Further criteria, in this order, are a short run, a large communicator and an early position;
/// among small collectives, the most frequent one is best. Nothing depends on a communicator's id, because ids differ
/// between groups that do the same work.
fn rank(candidate: &Candidate, items: &[u16], operations: &Operations) -> impl Ord {
    let end = operations.of(items[candidate.last]);
    let span = if candidate.depth == 0 {
        candidate.to - candidate.from
    } else {
        0
    };
    (
        Reverse(span),
        gradients(end.function),
        Reverse(candidate.depth),
        end.ranks,
        end.bytes,
        Reverse(candidate.first),
    )
}

/// Returns how likely it is that a collective carries gradients. Reduce-scatter is the likeliest, then all-reduce, then
/// any other.
fn gradients(function: u8) -> u8 {
    match function {
        REDUCE_SCATTER => 2,
        ALL_REDUCE => 1,
        _ => 0,
    }
}

/// Counts the kinds of large collectives that occur in most pieces.
fn regular_kinds(candidate: &Candidate, items: &[u16], operations: &Operations) -> usize {
    let size = candidate.to - candidate.from;
    let mut seen: BTreeMap<u16, usize> = BTreeMap::new();
    let pieces = items[..=candidate.last].rchunks(size).take(PIECES);
    let of_pieces = pieces.len().min(PIECES);
    for piece in pieces {
        let of_piece: BTreeSet<u16> = piece.iter().copied().collect();
        for item in of_piece.into_iter().filter(|item| operations.of(*item).is_heavy) {
            *seen.entry(item).or_default() += 1;
        }
    }
    seen.values()
        .filter(|times| **times * 4 >= of_pieces * OF_FOUR)
        .count()
}

/// Returns true if a recent large collective occurs in no piece. A longer repetition may become visible soon in that
/// case.
fn is_too_soon(best: &Candidate, items: &[u16], operations: &Operations) -> bool {
    let of = |item: &u16| operations.of(*item);
    let piece = || items[best.from..best.to].iter().map(of);
    let hashes: BTreeSet<u64> = piece().map(|kind| kind.hash).collect();
    let classes: BTreeSet<u64> = piece().map(|kind| kind.class).collect();
    let mut others: BTreeMap<u64, BTreeMap<u64, Vec<usize>>> = BTreeMap::new();
    for (at, kind) in items.iter().map(of).enumerate().skip(items.len() / 3) {
        if !kind.is_heavy || hashes.contains(&kind.hash) {
            continue;
        }
        if !classes.contains(&kind.class) {
            return true;
        }
        others
            .entry(kind.class)
            .or_default()
            .entry(kind.hash)
            .or_default()
            .push(at);
    }
    others.values().any(|class| {
        // Where sizes vary, some sizes occur twice by chance.
        let least = if class.len() <= VARIED { 2 } else { 3 };
        class.values().any(|places| {
            let gaps = || places.windows(2).map(|pair| pair[1] - pair[0]);
            let (short, long) = (gaps().min().unwrap_or(0), gaps().max().unwrap_or(0));
            (least..ALIKE).contains(&places.len()) && long - short <= short / 10 + 2
        })
    })
}
