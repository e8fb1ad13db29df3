//! S1: time in collectives, which is used if no phases show how long ranks worked.
//!
//! A rank's step consists of its own work and its time in collectives. What remains without the collectives is
//! self-time. In one collective, the shortest time is the transfer, a rank's additional time is its wait, and the
//! member with the shortest time came last. Only durations on each rank's own clock are compared. A rank is judged only
//! in steps that all its communicators reported, because a lost sum would look like work.

mod lateness;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::plan::Plan;
use super::rows::Row;
use crate::detect::comm::communicators::Comms;
use crate::event::{self, FunctionSum};
use crate::id::Rank;

/// Maximum number of steps whose sums are kept. The oldest is dropped first.
const MAX_OPEN: usize = 64;
/// Number of steps for which the last ranks are kept, which is the number of bits of a word.
const KEPT: u64 = 64;
/// Number of latest steps in which a rank must come last more often than its share, and by how many standard errors.
const LATEST: u64 = 16;
const SURE: f64 = 4.0;
/// Maximum share of a step in receives that a pipeline's bubble explains. Eight stages with four micro-batches, for
/// example, wait 64 %.
const MAX_RECEIVING: f64 = 0.75;
/// Share of a communicator's members that must report before a rank can count as last.
const ENOUGH: f64 = 0.75;

/// Sums of steps that have not closed.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Waits {
    /// True if some rank's steps arrive without phases.
    is_needed: bool,
    open: BTreeMap<u64, Met>,
    closed: Option<u64>,
    /// By rank number: the number of its communicators in the last closed step.
    usual: Vec<u8>,
    /// By rank number: a bit for each step, set if the rank came last somewhere. The latest step has the lowest bit.
    votes: Vec<u64>,
    /// Number of steps in `votes`, at most [`KEPT`].
    #[serde(default)]
    voted: u64,
    /// True if ranks may have worked during some of their collectives in the latest of these steps. A rank's excess is
    /// then only known as a bound.
    #[serde(default)]
    is_beside: bool,
}

/// The reports on one step.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Met {
    /// Reports by communicator.
    parts: BTreeMap<u64, Vec<Part>>,
    /// By rank number: the number of its communicators.
    counts: Vec<u8>,
    /// Number of members that have not reported, in communicators in which others have.
    awaited: usize,
    /// Number of ranks that have reported fewer communicators than in the step before.
    short: usize,
}

/// The report of one rank on one communicator, in seconds.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Part {
    rank: Rank,
    own_s: f64,
    /// Time standing still as the rank reported it, or `None` if the rank may have worked meanwhile.
    exposed_s: Option<f64>,
    /// Minimum time that the rank stood still.
    surely_s: f64,
    /// Number of collectives, if the sums contain only what all members did. Otherwise 0.
    collectives: u32,
    is_fit: bool,
    functions: Vec<FunctionSum>,
}

/// What collectives show about one rank's step, in seconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stood {
    /// Time standing still in all communicators of the rank.
    pub exposed_s: f64,
    /// True if the rank came last in a communicator, by more than the spread of the others.
    came_last: bool,
    /// True if part of the time comes from lags of ranks that may have worked meanwhile.
    is_beside: bool,
    /// True if some of the rank's communicators reported.
    is_told: bool,
    /// True if the reports on this rank's step are incomplete or cannot be compared.
    is_partial: bool,
}

impl Waits {
    /// Drops everything, because a new group of ranks starts.
    pub fn clear(&mut self) {
        *self = Waits::default();
    }

    /// Takes a step. If it has no phases, sums are kept from now on.
    pub fn need(&mut self, step: &event::Step) {
        self.is_needed |= step.phases.is_none();
    }

    /// Takes a member's report on a step, for a communicator with `size` members.
    pub fn add(&mut self, did: &event::Comm, size: u32) {
        let is_late = self.closed.is_some_and(|closed| did.step <= closed);
        if !self.is_needed || is_late {
            return;
        }
        let usual = &self.usual;
        let met = self.open.entry(did.step).or_insert_with(|| Met {
            short: usual.iter().filter(|count| **count > 0).count(),
            ..Met::default()
        });
        let parts = met.parts.entry(did.comm).or_default();
        if parts.is_empty() {
            met.awaited += size as usize;
        }
        met.awaited = met.awaited.saturating_sub(1);
        let seconds = |ns: u64| ns as f64 / 1e9;
        // On the GPU, collectives may overlap with the rank's work. Only for one of them is it certain that the rank
        // stood still.
        let surely_ns = match did.gpu {
            true => did.dur_ns / u64::from(did.collectives.max(1)),
            false => did.dur_ns,
        };
        parts.push(Part {
            rank: did.rank,
            own_s: seconds(did.dur_ns),
            exposed_s: did.exposed_ns.map(|ns| seconds(ns.min(did.dur_ns))),
            surely_s: seconds(surely_ns),
            collectives: did.collectives.saturating_sub(did.unfit) * u32::from(did.gpu),
            is_fit: did.unfit == 0,
            functions: did.functions.clone(),
        });
        let index = did.rank.0 as usize;
        met.counts.resize(met.counts.len().max(index + 1), 0);
        met.counts[index] = met.counts[index].saturating_add(1);
        if usual.get(index) == Some(&met.counts[index]) {
            met.short = met.short.saturating_sub(1);
        }
        while self.open.len() > MAX_OPEN {
            self.open.pop_first();
        }
    }

    /// Returns true if no more reports are expected for a step. None are expected if no rank ever reported collectives.
    pub fn are_in(&self, step: u64) -> bool {
        match self.open.get(&step) {
            Some(met) => met.awaited == 0 && met.short == 0,
            None => self.usual.iter().all(|count| *count == 0),
        }
    }

    /// Fills in the self-times of a row that has none, unless `is_between` is true, which means that it lies between
    /// rows that have them.
    pub fn fill(&mut self, row: &mut Row, comms: &Comms, is_between: bool) {
        if !self.is_needed {
            return;
        }
        let met = self.open.remove(&row.step);
        self.open = self.open.split_off(&row.step);
        self.closed = Some(row.step);
        let Some(met) = met.filter(|_| !row.has_phases()) else {
            return;
        };
        let stood = met.stood(row, comms);
        self.vote(&stood);
        self.is_beside = stood.iter().any(|stood| stood.is_beside);
        self.usual = met.counts;
        if !is_between {
            row.fill(|rank| stood.get(rank.0 as usize).copied().filter(Stood::is_whole));
        }
    }

    /// Returns the share of the latest `steps` (as far as they are kept) in which a rank came last in some
    /// communicator.
    pub fn came_last(&self, rank: Rank, steps: u64) -> f64 {
        let steps = steps.clamp(1, KEPT);
        let votes = self.votes.get(rank.0 as usize).copied().unwrap_or(0);
        f64::from((votes << (KEPT - steps)).count_ones()) / steps as f64
    }

    /// Returns true if a rank may be late because of another rank in `late` or in its pipeline. This is the case if no
    /// observed communicators connect the two, directly or over others. What connects them instead (such as the sends
    /// of a pipeline, if they are not reported) spreads lateness, so it is not known which rank was late first.
    pub fn are_apart(&self, rank: Rank, late: &[Rank], comms: &Comms, plan: &Plan) -> bool {
        let islands = comms.islands();
        let first = islands.get(&rank);
        let pipeline = plan.pipeline(rank).filter(|_| plan.stages > 1);
        let mut others = late.iter().copied().chain(pipeline);
        others.any(|other| islands.get(&other) != first)
    }

    /// Returns a rank that came last in more than its share of the latest steps, in collectives that overlap with the
    /// work. This rank may be slower than they show, so a longer step cannot be attributed to the whole job.
    pub fn latecomer(&self, comms: &Comms) -> Option<Rank> {
        let steps = self.voted.min(LATEST);
        if !self.is_beside || steps == 0 {
            return None;
        }
        let is_late = |rank: Rank| {
            let sizes = comms.of(rank).map(|(_, comm)| comm.size);
            let share = 1.0 / f64::from(sizes.filter(|size| *size > 1).min().unwrap_or(1));
            let chance = (share * (1.0 - share) / steps as f64).sqrt();
            self.came_last(rank, steps) > share + SURE * chance
        };
        (0..self.votes.len() as u32).map(Rank).find(|rank| is_late(*rank))
    }

    fn vote(&mut self, stood: &[Stood]) {
        self.votes.resize(self.votes.len().max(stood.len()), 0);
        self.voted = (self.voted + 1).min(KEPT);
        for (votes, stood) in self.votes.iter_mut().zip(stood) {
            *votes = (*votes << 1) | u64::from(stood.came_last);
        }
    }
}

impl Met {
    /// Returns what collectives show, by rank number.
    fn stood(&self, row: &Row, comms: &Comms) -> Vec<Stood> {
        let step_s = row.samples().map(|(_, sample)| sample.dur_s).fold(0.0, f64::max);
        let mut all = vec![Stood::default(); self.counts.len()];
        // To the last rank, collectives that overlap with the work look short and separate; only the others see the
        // overlap. All communicators of one size are treated alike, because ranks of different communicators are
        // compared.
        let is_untold = |parts: &[Part]| parts.iter().any(|part| part.exposed_s.is_none());
        let untold: BTreeSet<u32> = self
            .parts
            .iter()
            .filter(|(_, parts)| is_untold(parts))
            .filter_map(|(id, _)| Some(comms.get(*id)?.size))
            .collect();
        for (id, parts) in &self.parts {
            let Some(comm) = comms.get(*id) else { continue };
            let mut told = BTreeSet::new();
            let is_told = !untold.contains(&comm.size);
            let is_alike = parts
                .windows(2)
                .all(|pair| pair[0].collectives == pair[1].collectives);
            let functions: Vec<&[FunctionSum]> = parts.iter().map(|part| part.functions.as_slice()).collect();
            let beside = (!is_told)
                .then(|| lateness::stood_s(&functions, step_s))
                .flatten();
            for (place, part) in parts.iter().enumerate() {
                if let Some(stood) = all
                    .get_mut(part.rank.0 as usize)
                    .filter(|_| told.insert(part.rank))
                {
                    let untold_s = beside.as_ref().map_or(part.surely_s, |stood_s| stood_s[place]);
                    // Receives of stages are waits, even if something else runs at the same time. If they take nearly
                    // the whole step, they were posted early and overlap with compute, so they cannot be used.
                    let is_told = is_told || !part.is_fit;
                    let is_early = !part.is_fit && part.exposed_s.is_some_and(|s| s > MAX_RECEIVING * step_s);
                    stood.is_partial |= is_early;
                    stood.exposed_s += part.exposed_s.filter(|_| is_told).unwrap_or(untold_s);
                    stood.is_told = true;
                    stood.is_beside |= !is_told;
                    // If the members' sums contain different collectives, they cannot be compared.
                    stood.is_partial |= !is_alike;
                }
            }
            for rank in comm.members.iter().filter(|rank| !told.contains(rank)) {
                if let Some(stood) = all.get_mut(rank.0 as usize) {
                    stood.is_partial = true;
                }
            }
            let enough = told.len() as f64 >= ENOUGH * f64::from(comm.size);
            // Prefer single collectives, because they show more than their sums.
            let of_sums = || last(parts).filter(|_| enough).into_iter().collect();
            let came_last: Vec<Rank> = comms
                .per_collective
                .came_last(*id, row.step)
                .map_or_else(of_sums, <[Rank]>::to_vec);
            for rank in came_last {
                if let Some(stood) = all.get_mut(rank.0 as usize) {
                    stood.came_last = true;
                }
            }
        }
        all
    }
}

/// Returns the last rank, if its distance to the next one exceeds the spread of the others.
fn last(parts: &[Part]) -> Option<Rank> {
    if parts.len() < 2 || parts.iter().any(|part| !part.is_fit) {
        return None;
    }
    let mut order: Vec<&Part> = parts.iter().collect();
    order.sort_unstable_by(|a, b| a.own_s.total_cmp(&b.own_s));
    let (first, rest) = order.split_first()?;
    let (next, longest) = (rest.first()?, rest.last()?);
    let stands_out = next.own_s - first.own_s > longest.own_s - next.own_s;
    (stands_out && first.own_s < next.own_s).then_some(first.rank)
}

impl Stood {
    /// Returns true if all of the rank's communicators reported.
    fn is_whole(&self) -> bool {
        self.is_told && !self.is_partial
    }
}
