//! Single collectives, which are requested from the sidecars for a few communicators.
//!
//! Sums over a step hide which of two ranks is late to which collective. Each of the two waits less by its own
//! lateness, so the shortest sum is the transfer plus the smaller of the two latenesses, and neither rank appears to be
//! last. In a single collective the last rank is clear. Requests depend only on the input, so a replay makes the same
//! requests. The detector also works if a request is not answered.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::communicator::Comm;
use super::communicators::Comms;
use crate::detect::Detector;
use crate::event::{Collectives, MOST_OF_STEP, Want};
use crate::id::{NodeId, Rank};

/// Maximum number of communicators requested at once, and maximum number for each slow rank.
const MOST_WANTS: usize = 8;
const MOST_OF_RANK: usize = 2;
/// Number of steps that a request covers: three windows of the plugin's sampling.
const STEPS: u64 = 96;
/// Number of steps until the next request: `BREAK` if the communicator was fine in between, `REST` if it was not.
const BREAK: u64 = 384;
const REST: u64 = 2048;
/// Number of steps after a request during which late answers are accepted.
const LATE: u64 = 64;
/// A communicator with more collectives per step than this, summed over all members, is not requested. The limit
/// corresponds to half a megabyte of the journal.
const MOST_IN_STEP: u64 = 1 << 14;
/// Maximum number of open steps of communicators, and maximum number of steps whose last ranks are kept.
const MOST_OPEN: usize = 64;
const MOST_FOUND: usize = 512;
/// Share of the members that must report before a rank can be called last.
const ENOUGH: f64 = 0.75;
/// Minimum lateness of a late rank, as a share of the total spread between members in a step. A lower limit would be
/// reached by chance: each of three ranks is alone last in a third of the collectives, by less than half of their
/// spread.
const NOTABLE: f64 = 0.25;

/// Open requests, and the members of each collective that have reported.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct PerCollective {
    wants: Vec<Want>,
    /// Number of requests so far.
    asked: u64,
    /// By communicator: the pause before it is requested again.
    rests: BTreeMap<u64, Rest>,
    /// The collectives that were reported, by step and communicator.
    open: BTreeMap<(u64, u64), Meetings>,
    found: BTreeMap<(u64, u64), Vec<Rank>>,
}

/// The pause after a request for a communicator.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Rest {
    asked_until: u64,
    /// True if there was no reason for a request in between.
    was_well: bool,
}

/// The collectives of one communicator in one step.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Meetings {
    told: BTreeSet<Rank>,
    /// By function and number: the time of each member, in seconds.
    each: BTreeMap<(u8, u64), Vec<(Rank, f64)>>,
    /// True if some member could not report all collectives.
    is_partial: bool,
}

/// What single collectives show about a step.
#[derive(Debug, Default, PartialEq)]
struct Found {
    /// Ranks that were last in some collectives by more than the spread of the others, and whose total lateness is
    /// large enough.
    last: Vec<Rank>,
    /// Transfer time in seconds: the shortest time of a member, minus its waits for the ranks in `last`.
    transfer_s: Option<f64>,
}

impl Detector {
    /// Returns the number of requests for single collectives so far. [`Detector::wants_of`] changes only when this
    /// number changes.
    pub fn asked(&self) -> u64 {
        self.comms.per_collective.asked
    }

    /// Returns the communicators whose single collectives are requested.
    pub fn wants(&self) -> &[Want] {
        self.comms.per_collective.wants()
    }

    /// Returns the communicators whose single collectives a node should report.
    pub fn wants_of(&self, node: &NodeId) -> Vec<Want> {
        let is_there = |rank: &Rank| {
            let member = self.roster.member(*rank);
            member.is_some_and(|member| member.node == *node)
        };
        let wants = self.comms.per_collective.wants().iter().copied();
        let comm = |want: &Want| self.comms.get(want.comm);
        wants
            .filter(|want| comm(want).is_some_and(|comm| comm.members.iter().any(is_there)))
            .collect()
    }
}

impl PerCollective {
    /// Returns the state for a new group of ranks. It has no requests, but continues their count.
    pub fn again(&self) -> PerCollective {
        PerCollective {
            asked: self.asked,
            ..PerCollective::default()
        }
    }

    /// Returns the current requests.
    pub fn wants(&self) -> &[Want] {
        &self.wants
    }

    /// Takes a member's report.
    pub fn add(&mut self, did: &Collectives) {
        let is_asked = |want: &Want| want.comm == did.comm && did.step <= want.until;
        if !self.wants.iter().any(is_asked) {
            return;
        }
        let met = self.open.entry((did.step, did.comm)).or_default();
        if !met.told.insert(did.rank) {
            return;
        }
        met.is_partial |= did.left_out > 0 || did.each.len() > MOST_OF_STEP;
        for one in did.each.iter().take(MOST_OF_STEP) {
            let seconds = one.dur_ns as f64 / 1e9;
            let of = met.each.entry((one.function, one.sequence)).or_default();
            of.push((did.rank, seconds));
        }
        while self.open.len() > MOST_OPEN {
            self.open.pop_first();
        }
    }

    /// Records that a communicator has closed all steps up to `step`. Returns the steps whose single collectives show
    /// the transfer time, with that time in seconds.
    pub fn close(&mut self, id: u64, size: u32, step: u64) -> Vec<(u64, f64)> {
        let due: Vec<(u64, u64)> = self
            .open
            .range(..=(step, u64::MAX))
            .map(|(key, _)| *key)
            .filter(|(_, comm)| *comm == id)
            .collect();
        let mut transfers = Vec::new();
        for key in due {
            let Some(found) = self.open.remove(&key).and_then(|met| met.judge(size)) else {
                continue;
            };
            self.found.insert(key, found.last);
            transfers.extend(found.transfer_s.map(|transfer_s| (key.0, transfer_s)));
        }
        while self.found.len() > MOST_FOUND {
            self.found.pop_first();
        }
        transfers
    }

    /// Returns the last ranks in a step of a communicator, or `None` if its single collectives were not reported.
    pub fn came_last(&self, id: u64, step: u64) -> Option<&[Rank]> {
        self.found.get(&(step, id)).map(Vec::as_slice)
    }

    /// Requests single collectives after `step` for the communicators for which they help. `slow` holds the
    /// communicators of ranks that are slow according to collectives.
    fn ask(&mut self, all: &BTreeMap<u64, Comm>, slow: &BTreeSet<u64>, restart: u32, step: u64) {
        self.wants.retain(|want| step <= want.until + LATE);
        let is_ill = |id: u64, comm: &Comm| comm.is_suspect || comm.is_slow || slow.contains(&id);
        for (id, rest) in &mut self.rests {
            rest.was_well |= all.get(id).is_none_or(|comm| !is_ill(*id, comm));
        }
        self.rests.retain(|_, rest| step < rest.until());
        let is_worth = |comm: &Comm| {
            let load = u64::from(comm.size) * u64::from(comm.collectives);
            let all_fit = load <= MOST_IN_STEP && comm.collectives as usize <= MOST_OF_STEP;
            comm.size > 2 && comm.collectives > 1 && all_fit
        };
        let (suspects, others): (Vec<_>, Vec<_>) = all
            .iter()
            .filter(|(id, comm)| is_ill(**id, comm) && is_worth(comm))
            .partition(|(_, comm)| comm.is_suspect);
        for (id, _) in suspects.into_iter().chain(others) {
            if self.rests.contains_key(id) {
                continue;
            }
            self.wants.retain(|want| want.comm != *id);
            if self.wants.len() >= MOST_WANTS {
                break;
            }
            let until = step + STEPS;
            let was_well = false;
            self.rests.insert(
                *id,
                Rest {
                    asked_until: until,
                    was_well,
                },
            );
            self.asked += 1;
            self.wants.push(Want {
                comm: *id,
                restart,
                until,
            });
        }
    }
}

impl Rest {
    /// Returns the step before which this communicator is not requested again.
    fn until(&self) -> u64 {
        self.asked_until + if self.was_well { BREAK } else { REST }
    }
}

impl Comms {
    /// Requests single collectives if communicators were judged at this step. `late` holds the ranks that are slow by
    /// their time outside collectives.
    pub fn ask(&mut self, late: &[Rank], restart: u32, step: u64) {
        if self.judged != step || !self.is_by_gpu() {
            return;
        }
        let of = |rank: &Rank| {
            let large = self.of(*rank).filter(|(_, comm)| comm.size > 2);
            large.take(MOST_OF_RANK).map(|(id, _)| id)
        };
        let slow: BTreeSet<u64> = late.iter().take(MOST_WANTS).flat_map(of).collect();
        self.per_collective.ask(&self.all, &slow, restart, step);
    }
}

impl Meetings {
    /// Evaluates the collectives of a communicator with `size` members. Returns `None` if too few members reported.
    fn judge(&self, size: u32) -> Option<Found> {
        if size < 3 || (self.told.len() as f64) < ENOUGH * f64::from(size) {
            return None;
        }
        let mut apart_s = 0.0;
        let mut late: BTreeMap<Rank, f64> = BTreeMap::new();
        let mut last = BTreeMap::new();
        for (key, parts) in &self.each {
            let enough = parts.len() as f64 >= ENOUGH * f64::from(size);
            let Some((rank, gap_s, span_s)) = alone(parts).filter(|_| enough) else {
                continue;
            };
            apart_s += span_s;
            if gap_s > span_s - gap_s {
                *late.entry(rank).or_default() += gap_s;
                last.insert(*key, (rank, gap_s));
            }
        }
        late.retain(|_, late_s| *late_s >= NOTABLE * apart_s);
        let is_whole = !self.is_partial && self.each.values().all(|parts| parts.len() == self.told.len());
        let mut own: BTreeMap<Rank, f64> = BTreeMap::new();
        for (key, parts) in &self.each {
            let waited_for = last.get(key).filter(|(rank, _)| late.contains_key(rank));
            for (rank, seconds) in parts {
                let waited_s = waited_for
                    .filter(|(last, _)| last != rank)
                    .map_or(0.0, |(_, gap)| *gap);
                *own.entry(*rank).or_default() += seconds - waited_s;
            }
        }
        let shortest = own.into_values().min_by(f64::total_cmp);
        // A partial report that shows no late rank proves nothing. The sums are used instead.
        (is_whole || !late.is_empty()).then(|| Found {
            last: late.into_keys().collect(),
            transfer_s: shortest.filter(|_| is_whole),
        })
    }
}

/// Returns the rank with the shortest time in a collective, its distance to the next rank, and the spread of all ranks;
/// in seconds.
fn alone(parts: &[(Rank, f64)]) -> Option<(Rank, f64, f64)> {
    let mut order = parts.to_vec();
    order.sort_unstable_by(|a, b| a.1.total_cmp(&b.1).then(a.0.cmp(&b.0)));
    let [first, next, .., longest] = order[..] else {
        return None;
    };
    Some((first.0, next.1 - first.1, longest.1 - first.1))
}

#[cfg(test)]
#[path = "per_collective_tests.rs"]
mod tests;
