//! The collectives that ranks without progress enqueued last, as evidence. They show which ranks have not entered a
//! collective that others have entered, and which ranks entered a different one. They raise no finding of their own.

mod gaps;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use self::gaps::{ByComm, Gap, OrderMismatch};
use crate::detect::comm::communicators::Comms;
use crate::event::{Entered, LastCollective, MAX_ENTERED};
use crate::id::Rank;
use crate::text::humanize::evidence::bytes;
use crate::text::humanize::{count, has, other_ranks_have, ranks as names};
use crate::time::Time;
use crate::verdict::Cause;

/// Maximum number of functions kept for each communicator.
const MAX_FUNCTIONS: usize = 8;
/// Maximum number of collectives with missing ranks, and of different sizes, that are listed.
const MAX_GAPS: usize = 3;
const MAX_SIZES: usize = 4;

/// The latest answer of each rank, by communicator.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct EnteredEvidence {
    comms: ByComm,
    /// Number of answers with new content so far.
    version: u64,
    /// Time of the latest answer.
    latest: Time,
    compared: Comparison,
}

/// The last collectives that a rank enqueued in one communicator.
#[derive(Debug, Serialize, Deserialize)]
struct Taken {
    /// Time of the answer, and of the latest of these collectives.
    at: Time,
    entered_at: Time,
    /// Number of communicators in which the rank has enqueued something since these collectives.
    later: usize,
    each: Vec<LastCollective>,
    /// True if everything that the rank ever enqueued was seen.
    is_whole: bool,
}

/// The differences between the answers of one version.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Comparison {
    of: (u64, Time),
    gaps: Vec<Gap>,
    /// Indices of gaps whose missing ranks wait for no other rank, those with the fewest missing ranks first.
    roots: Vec<usize>,
    /// By missing rank: the gap in which most ranks wait for that rank.
    by_rank: BTreeMap<Rank, usize>,
    sizes: Option<(u64, LastCollective, BTreeMap<u64, Vec<Rank>>)>,
    order_mismatch: Option<OrderMismatch>,
}

impl EnteredEvidence {
    /// Takes the answer of a member of a communicator.
    pub fn take(&mut self, at: Time, answer: &Entered) {
        for (later, comm) in answer.comms.iter().take(MAX_ENTERED).enumerate() {
            let taken = Taken {
                at,
                entered_at: Time(at.0.saturating_sub(comm.ago_ns)),
                later,
                each: comm.each.iter().take(MAX_FUNCTIONS).copied().collect(),
                is_whole: answer.whole,
            };
            let ranks = self.comms.entry(comm.comm).or_default();
            let before = ranks.insert(answer.rank, taken);
            self.version +=
                u64::from(before.is_none_or(|before| (before.later, &before.each) != (later, &comm.each)));
        }
        self.latest = at;
    }

    /// Compares the answers for a silence since `since`, and drops older ones. Call it before findings are reported.
    pub fn compare(&mut self, since: Time) {
        if self.latest < since {
            self.comms.clear();
            self.compared = Comparison::default();
            return;
        }
        if self.compared.of == (self.version, since) {
            return;
        }
        self.comms.retain(|_, ranks| {
            ranks.retain(|_, taken| taken.at >= since);
            !ranks.is_empty()
        });
        let gaps = gaps::gaps(&self.comms, since);
        let mut by_rank: BTreeMap<Rank, usize> = BTreeMap::new();
        for (index, gap) in gaps.iter().enumerate() {
            for rank in &gap.missing {
                let known = by_rank.entry(*rank).or_insert(index);
                if gaps[*known].entered.len() < gap.entered.len() {
                    *known = index;
                }
            }
        }
        // If some ranks have not entered a collective that others have, the other differences are left out.
        let all_entered_the_same = gaps.is_empty();
        let if_same = |comms| all_entered_the_same.then_some(comms);
        self.compared = Comparison {
            of: (self.version, since),
            roots: gaps::roots(&gaps),
            by_rank,
            sizes: if_same(&self.comms).and_then(gaps::sizes),
            order_mismatch: if_same(&self.comms).and_then(gaps::order_mismatch),
            gaps,
        };
    }

    /// Returns a number that changes with the answers for a silence since `since`, or zero if there are none.
    pub fn version(&self, since: Time) -> u64 {
        u64::from(self.latest >= since) * self.version
    }

    /// Returns as text what `rank` has not entered in the compared silence, or has entered with another size, with the
    /// cause. An example is `has not entered all_reduce #8812 of dp (64 MiB), 3 other ranks have`.
    pub fn says_of(&self, rank: Rank, comms: &Comms) -> Option<(String, Cause)> {
        let compared = &self.compared;
        if let Some(gap) = compared
            .by_rank
            .get(&rank)
            .and_then(|index| compared.gaps.get(*index))
        {
            let (says, cause) = self.says_of_gap(gap, comms);
            return Some((format!("has {says}"), cause));
        }
        let (_, _, by_size) = compared.sizes.as_ref()?;
        let minority = by_size.values().min_by_key(|ranks| ranks.len())?;
        let says = minority.contains(&rank).then(|| self.says_of_sizes(comms))??;
        Some((says, Cause::CollectiveMismatch))
    }

    /// Returns true if `rank` has entered a collective that some others have not, which means that it waits for them.
    pub fn waits_for_others(&self, rank: Rank) -> bool {
        self.compared.gaps.iter().any(|gap| gap.entered.contains(&rank))
    }

    /// Returns text on all ranks, with the cause: which ranks have not entered a collective, or whose collective
    /// differs. Returns `None` if there is no difference.
    pub fn says_of_all(&self, comms: &Comms) -> Option<(String, Cause)> {
        let Comparison { gaps, roots, .. } = &self.compared;
        let mut named: Vec<&Gap> = Vec::new();
        for gap in roots.iter().filter_map(|index| gaps.get(*index)) {
            if named.len() < MAX_GAPS && named.iter().all(|known| known.missing != gap.missing) {
                named.push(gap);
            }
        }
        if !named.is_empty() {
            let each = named.iter().map(|gap| {
                let (says, _) = self.says_of_gap(gap, comms);
                format!("{} {says}", have(&gap.missing))
            });
            return Some((each.collect::<Vec<_>>().join("; "), Cause::Unknown));
        }
        if let Some(gap) = self.mutual() {
            // All missing ranks of these gaps wait for each other.
            if gap.is_of_minority() {
                let (says, cause) = self.says_of_gap(gap, comms);
                return Some((format!("{} {says}", have(&gap.missing)), cause));
            }
            let (entered, missing) = (have(&gap.entered), other_ranks_have(gap.missing.len()));
            let named = place(&gap.next, gap.comm, comms);
            return Some((
                format!("{entered} entered {named}, {missing} not"),
                Cause::Unknown,
            ));
        }
        if let Some(says) = self.says_of_sizes(comms) {
            return Some((says, Cause::CollectiveMismatch));
        }
        if let Some(order_mismatch) = &self.compared.order_mismatch {
            let [first, second] =
                [order_mismatch.first, order_mismatch.second].map(|(comm, last)| place(&last, comm, comms));
            let (minority, majority) = (
                names(&order_mismatch.minority),
                count(order_mismatch.majority as u64, "other rank"),
            );
            // No cause is named, because the order need not matter if the communicators run on streams of their own.
            return Some((
                format!("{minority} entered {first} before {second}, {majority} after it"),
                Cause::Unknown,
            ));
        }
        None
    }

    /// Returns the gap to report if all missing ranks wait for each other: one whose missing ranks are a minority, or
    /// else the one that the fewest ranks have entered.
    fn mutual(&self) -> Option<&Gap> {
        let gaps = &self.compared.gaps;
        let of_minority = gaps.iter().filter(|gap| gap.is_of_minority());
        let first = of_minority.min_by_key(|gap| gap.order());
        first.or_else(|| gaps.iter().min_by_key(|gap| gap.entered.len()))
    }

    /// Returns the collectives that `rank` has not entered (or that some rank has not entered, if `rank` is `None`),
    /// and the ranks that have not entered them. Returns `None` if there are several communicators.
    pub fn awaited(&self, rank: Option<Rank>) -> Option<(Vec<&LastCollective>, &[Rank])> {
        let Comparison {
            gaps, roots, by_rank, ..
        } = &self.compared;
        let gap = match rank {
            Some(rank) => by_rank.get(&rank).and_then(|index| gaps.get(*index)),
            None => {
                let root = roots.first().and_then(|index| gaps.get(*index));
                root.or_else(|| self.mutual())
            }
        };
        let gap = gap.filter(|_| self.comms.len() == 1)?;
        let same = gaps.iter().filter(|other| other.missing == gap.missing);
        Some((same.map(|gap| &gap.next).collect(), &gap.missing))
    }

    /// Returns text with the cause, such as `not entered all_reduce #8812 of dp (64 MiB), 3 other ranks have; it
    /// entered all_gather #51 of dp instead`.
    fn says_of_gap(&self, gap: &Gap, comms: &Comms) -> (String, Cause) {
        let named = place(&gap.next, gap.comm, comms);
        let says = format!("not entered {named}, {}", other_ranks_have(gap.entered.len()));
        let instead = self.compared.gaps.iter().find(|other| other.is_instead_of(gap));
        let Some(instead) = instead else {
            return (says, Cause::Unknown);
        };
        let it = if gap.missing.len() == 1 { "it" } else { "they" };
        let named = place(&instead.next, instead.comm, comms);
        (
            format!("{says}; {it} entered {named} instead"),
            Cause::CollectiveMismatch,
        )
    }

    /// Returns text such as `sizes differ in all_reduce #8812 of dp: 4 B on rank 2, 64 MiB on ranks 0-1, 3`.
    fn says_of_sizes(&self, comms: &Comms) -> Option<String> {
        let (comm, last, by_size) = self.compared.sizes.as_ref()?;
        let size = |(size, ranks): (&u64, &Vec<Rank>)| format!("{} on {}", bytes(*size as f64), names(ranks));
        let mut sizes: Vec<String> = by_size.iter().take(MAX_SIZES).map(size).collect();
        if by_size.len() > MAX_SIZES {
            sizes.push(count((by_size.len() - MAX_SIZES) as u64, "other size"));
        }
        let named = place(&LastCollective { bytes: 0, ..*last }, *comm, comms);
        Some(format!("sizes differ in {named}: {}", sizes.join(", ")))
    }

    /// Returns text such as `all 4 ranks have entered all_reduce #8812 of dp (64 MiB)`, for the communicator that most
    /// ranks used last. Returns `None` if a member has not answered.
    pub fn says_of_none_missing(&self, comms: &Comms) -> Option<String> {
        let latest = |ranks: &BTreeMap<Rank, Taken>| ranks.values().filter(|taken| taken.later == 0).count();
        let (comm, ranks) = self.comms.iter().max_by_key(|(_, ranks)| latest(ranks))?;
        let last = ranks.values().next()?.each.first()?;
        let is_same = ranks.values().all(|taken| taken.each.first() == Some(last));
        let is_all = comms.get(*comm)?.size as usize == ranks.len();
        let all = count(ranks.len() as u64, "rank");
        (is_same && is_all).then(|| format!("all {all} have entered {}", place(last, *comm, comms)))
    }
}

/// Returns text such as `rank 2 has`.
fn have(ranks: &[Rank]) -> String {
    format!("{} {}", names(ranks), has(ranks.len()))
}

/// Returns text such as `all_reduce #8812 of dp (64 MiB)`. The number is NCCL's, which counts from 0 per function and
/// communicator.
fn place(last: &LastCollective, comm: u64, comms: &Comms) -> String {
    let of = match comms.get(comm) {
        // If the name is a number, the group has no name of its own and PyTorch numbered it.
        Some(comm) if comm.name.parse::<u32>().is_ok() => format!(" of group {}", comm.name),
        Some(comm) if !comm.name.is_empty() => format!(" of {}", comm.name),
        Some(comm) => format!(" of a communicator of {} ranks", comm.size),
        None => format!(" of communicator {:04x}", comm as u16),
    };
    let size = match last.bytes {
        0 => String::new(),
        size => format!(" ({})", bytes(size as f64)),
    };
    format!("{} #{}{of}{size}", last.name(), last.sequence)
}

#[cfg(test)]
mod tests;
