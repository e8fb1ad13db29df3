//! All communicators: which ranks belong to each, and which of them should be equally fast.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::communicator::{Comm, Level, Likeness};
use super::per_collective::PerCollective;
use crate::detect::members::roster::MAX_RANKS;
use crate::detect::step::plan::Plan;
use crate::event;
use crate::id::Rank;
use crate::policy::LinkThresholds;

/// Maximum number of communicators of one rank, and of all ranks together.
const MAX_OF_RANK: usize = 8;
const MAX_COMMS: usize = 1 << 17;
/// Number of steps between two judgments, and number of similar communicators needed for a comparison.
const JUDGED_EVERY: u64 = 4;
const ELSEWHERE: usize = 3;
/// With fewer bytes than this, a collective measures only latency.
const SMALL_BYTES: u64 = 8192;

/// All communicators of the job.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Comms {
    pub(crate) all: BTreeMap<u64, Comm>,
    /// Single collectives, which were requested for some of the communicators.
    pub(crate) per_collective: PerCollective,
    /// Numbers of the communicators, by rank number.
    of_rank: Vec<Vec<u64>>,
    /// Number of closed steps over all communicators, now and at the last judgment.
    closed: u64,
    judged_closed: u64,
    /// True if the GPU times collectives. The host's sums cover the same collectives and are then ignored.
    by_gpu: bool,
    /// The step of the last judgment, and the step at which a communicator last became slow.
    pub judged: u64,
    pub turned: u64,
}

impl Comms {
    /// Drops everything, because a new group of ranks creates new communicators.
    pub fn clear(&mut self) {
        let per_collective = self.per_collective.again();
        *self = Comms {
            per_collective,
            ..Comms::default()
        };
    }

    /// Returns true if there are no communicators.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Returns all communicators in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &Comm)> {
        self.all.iter().map(|(id, comm)| (*id, comm))
    }

    /// Returns one communicator.
    pub fn get(&self, id: u64) -> Option<&Comm> {
        self.all.get(&id)
    }

    /// Returns the communicators of a rank.
    pub fn of(&self, rank: Rank) -> impl Iterator<Item = (u64, &Comm)> {
        let ids = self.of_rank.get(rank.0 as usize);
        ids.into_iter()
            .flatten()
            .filter_map(|id| Some((*id, self.all.get(id)?)))
    }

    /// Records a rank as a member of a communicator.
    pub fn join(&mut self, group: &event::Group) {
        let index = group.rank.0 as usize;
        if group.rank.0 >= MAX_RANKS || group.size < 2 {
            return;
        }
        if !self.all.contains_key(&group.comm) && self.all.len() >= MAX_COMMS {
            return;
        }
        if index >= self.of_rank.len() {
            self.of_rank.resize(index + 1, Vec::new());
        }
        let ids = &mut self.of_rank[index];
        if !ids.contains(&group.comm) {
            if ids.len() >= MAX_OF_RANK {
                return;
            }
            ids.push(group.comm);
        }
        self.all.entry(group.comm).or_default().join(group);
    }

    /// Takes a member's report for a step. Returns the communicator's size if the report counts. Reports timed by the
    /// GPU replace the host's reports of the same collectives.
    pub fn add(&mut self, did: &event::Comm) -> Option<u32> {
        if did.gpu && !self.by_gpu {
            self.by_gpu = true;
            self.all.retain(|_, comm| !comm.has_reports());
            let known = &self.all;
            for ids in &mut self.of_rank {
                ids.retain(|id| known.contains_key(id));
            }
        }
        if self.by_gpu && !did.gpu {
            return None;
        }
        let comm = self.all.get_mut(&did.comm)?;
        let closed = comm.add(did);
        self.closed += closed;
        if let Some(upto) = comm.closed().filter(|_| closed > 0) {
            for (step, transfer_s) in self.per_collective.close(did.comm, comm.size, upto) {
                comm.refine(step, transfer_s);
            }
        }
        Some(comm.size)
    }

    /// Takes a member's report on each collective of a step.
    pub fn meet(&mut self, did: &event::Collectives) {
        let is_member = |comm: &Comm| comm.members.binary_search(&did.rank).is_ok();
        if self.all.get(&did.comm).is_some_and(is_member) {
            self.per_collective.add(did);
        }
    }

    /// Returns true if the GPU times collectives.
    pub(super) fn is_by_gpu(&self) -> bool {
        self.by_gpu
    }

    /// Returns true if sends and receives were seen. These connect pipeline stages.
    pub fn has_messages(&self) -> bool {
        self.all.values().any(|comm| comm.has_messages)
    }

    /// Groups the ranks that are connected by observed communicators, because lateness spreads between these. Returns a
    /// number for each such rank; connected ranks have the same number. Ranks with different numbers may depend on each
    /// other in ways that were not observed.
    pub fn islands(&self) -> BTreeMap<Rank, u32> {
        let mut of: BTreeMap<Rank, u32> = BTreeMap::new();
        // Small collectives do not count, because ranks exchange a norm or a loss only after their work is done. A
        // communicator that joins pipeline stages does not count either if the GPU times sends and receives and it
        // carries none: it then holds gradients of layers that two stages share.
        let is_seen = |comm: &&Comm| {
            let is_small = comm.bytes < SMALL_BYTES * u64::from(comm.collectives.max(1));
            comm.has_reports() && !is_small && !(self.by_gpu && comm.joins_stages && !comm.has_messages)
        };
        for comm in self.all.values().filter(is_seen) {
            let Some(least) = comm.members.first() else {
                continue;
            };
            let joined: BTreeSet<u32> = comm
                .members
                .iter()
                .filter_map(|rank| of.get(rank).copied())
                .collect();
            let number = joined.first().copied().unwrap_or(least.0).min(least.0);
            if joined.iter().any(|other| *other != number) {
                for island in of.values_mut().filter(|island| joined.contains(island)) {
                    *island = number;
                }
            }
            of.extend(comm.members.iter().map(|rank| (*rank, number)));
        }
        of
    }

    /// Looks up the nodes of the members. If `moved` is true, ranks may have changed place.
    pub fn rank_step(&mut self, plan: &Plan, moved: bool) {
        for comm in self.all.values_mut().filter(|comm| moved || comm.is_stale()) {
            comm.rank_step(plan);
        }
    }

    /// Judges all communicators, at intervals.
    pub fn judge(&mut self, plan: &Plan, limits: &LinkThresholds, step: u64) {
        if self.closed == self.judged_closed || step < self.judged + JUDGED_EVERY {
            return;
        }
        self.judged_closed = self.closed;
        self.judged = step;
        self.rank_step(plan, false);
        let levels: Vec<Option<Level>> = self.all.values().map(|comm| comm.level(limits)).collect();
        let mut alike: BTreeMap<Likeness, Vec<Level>> = BTreeMap::new();
        for (comm, level) in self.all.values().zip(&levels) {
            if let Some(level) = level {
                alike.entry(comm.likeness()).or_default().push(*level);
            }
        }
        let elsewhere: BTreeMap<Likeness, Level> = alike
            .into_iter()
            .filter(|(_, levels)| levels.len() > ELSEWHERE)
            .map(|(likeness, levels)| (likeness, usual(levels)))
            .collect();
        for (comm, now) in self.all.values_mut().zip(levels) {
            let Some(now) = now else { continue };
            let was_slow = comm.is_slow;
            comm.judge(now, elsewhere.get(&comm.likeness()).copied(), limits);
            if comm.is_slow && !was_slow {
                self.turned = step;
            }
        }
    }

    /// Returns true if a rank's transfers within its node are slow, or `None` if none were observed.
    pub fn is_slow_inside(&self, rank: Rank) -> Option<bool> {
        self.is_any_slow(rank, |comm| comm.nodes.len() == 1)
    }

    /// Returns true if a rank's transfers that leave its node are slow, or `None` if none were observed.
    pub fn is_slow_outside(&self, rank: Rank) -> Option<bool> {
        self.is_any_slow(rank, |comm| comm.nodes.len() > 1)
    }

    fn is_any_slow(&self, rank: Rank, counts: impl Fn(&Comm) -> bool) -> Option<bool> {
        let seen = self.of(rank).filter(|(_, comm)| comm.is_known() && counts(comm));
        seen.map(|(_, comm)| comm.is_slow).reduce(|a, b| a || b)
    }
}

/// Returns the usual level of communicators that should be equally fast. The fastest quarter of them defines it,
/// because in a small job one slow link may be part of half of all communicators.
fn usual(mut levels: Vec<Level>) -> Level {
    let (quarter, half) = (levels.len() / 4, levels.len() / 2);
    let by_median = |a: &Level, b: &Level| a.median_s.total_cmp(&b.median_s);
    let median_s = levels.select_nth_unstable_by(quarter, by_median).1.median_s;
    let by_sigma = |a: &Level, b: &Level| a.sigma_s.total_cmp(&b.sigma_s);
    let sigma_s = levels.select_nth_unstable_by(half, by_sigma).1.sigma_s;
    Level { median_s, sigma_s }
}
