//! The collectives that ranks without progress enqueued last, as evidence: which ranks are missing in one that others
//! have entered, and whose differs from the others'. It raises no finding by itself.

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

/// Maximum functions kept per communicator.
const MAX_FUNCTIONS: usize = 8;
/// Maximum collectives with missing ranks, and maximum sizes, that are listed.
const MAX_GAPS: usize = 3;
const MAX_SIZES: usize = 4;

/// The latest answer of each rank, by communicator.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct EnteredEvidence {
    comms: ByComm,
    /// Counts answers with new content.
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
    /// Number of communicators in which it has enqueued something since.
    later: usize,
    each: Vec<LastCollective>,
    /// Everything that it ever enqueued was seen.
    is_whole: bool,
}

/// How the answers of one version differ.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Comparison {
    of: (u64, Time),
    gaps: Vec<Gap>,
    /// Indices of gaps whose missing ranks wait for no other rank, the fewest ranks first.
    roots: Vec<usize>,
    /// By missing rank: the gap in which most ranks wait for it.
    by_rank: BTreeMap<Rank, usize>,
    sizes: Option<(u64, LastCollective, BTreeMap<u64, Vec<Rank>>)>,
    order_mismatch: Option<OrderMismatch>,
}

impl EnteredEvidence {
    /// Takes the answer of a member.
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
        // If some ranks have not entered what others have, only that matters.
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

    /// Changes with the answers for a silence since `since`; zero: none.
    pub fn version(&self, since: Time) -> u64 {
        u64::from(self.latest >= since) * self.version
    }

    /// What `rank` has not entered in the compared silence, or has entered with another size: `has not entered
    /// all_reduce #8812 of dp (64 MiB), 3 other ranks have`; with the cause.
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

    /// Whether `rank` has entered what some others have not, and so waits for them.
    pub fn waits_for_others(&self, rank: Rank) -> bool {
        self.compared.gaps.iter().any(|gap| gap.entered.contains(&rank))
    }

    /// For all ranks: which are missing where, whose collective differs, or that none is missing; with the cause.
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
            // Ranks that wait for each other.
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
            // Where they run on streams of their own, the order need not matter.
            return Some((
                format!("{minority} entered {first} before {second}, {majority} after it"),
                Cause::Unknown,
            ));
        }
        None
    }

    /// If all missing ranks wait for each other: a gap of a minority, or else the one that the fewest ranks have
    /// entered.
    fn mutual(&self) -> Option<&Gap> {
        let gaps = &self.compared.gaps;
        let of_minority = gaps.iter().filter(|gap| gap.is_of_minority());
        let first = of_minority.min_by_key(|gap| gap.order());
        first.or_else(|| gaps.iter().min_by_key(|gap| gap.entered.len()))
    }

    /// The collective that `rank` has not entered, or for `None` that some rank has not, with the others that the same
    /// ranks have not entered; and these ranks. `None` if ranks have several communicators.
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

    /// `not entered all_reduce #8812 of dp (64 MiB), 3 other ranks have; it entered all_gather #51 of dp instead`, and
    /// the cause.
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

    /// `sizes differ in all_reduce #8812 of dp: 4 B on rank 2, 64 MiB on ranks 0-1, 3`.
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

    /// `all 4 ranks have entered all_reduce #8812 of dp (64 MiB)`, for the communicator in which most ranks are last;
    /// `None` if a member has not answered.
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

/// `rank 2 has`.
fn have(ranks: &[Rank]) -> String {
    format!("{} {}", names(ranks), has(ranks.len()))
}

/// `all_reduce #8812 of dp (64 MiB)`: the number is NCCL's, per function and communicator, from 0.
fn place(last: &LastCollective, comm: u64, comms: &Comms) -> String {
    let of = match comms.get(comm) {
        // PyTorch numbers unnamed groups.
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
