//! All communicators: which a rank is in, and which should be equally fast.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::communicator::{Comm, Level, Likeness};
use super::per_collective::PerCollective;
use crate::detect::members::roster::MAX_RANKS;
use crate::detect::step::plan::Plan;
use crate::event;
use crate::id::Rank;
use crate::policy::LinkThresholds;

/// Communicators of one rank, and of all.
const MAX_OF_RANK: usize = 8;
const MAX_COMMS: usize = 1 << 17;
/// Steps between two judgements, and communicators alike that one is compared with.
const JUDGED_EVERY: u64 = 4;
const ELSEWHERE: usize = 3;
/// A collective of fewer bytes is latency alone.
const SMALL_BYTES: u64 = 8192;

/// All communicators.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Comms {
    pub(crate) all: BTreeMap<u64, Comm>,
    /// Single collectives of some of them.
    pub(crate) per_collective: PerCollective,
    /// By rank's number.
    of_rank: Vec<Vec<u64>>,
    /// Steps of communicators that have closed, and as many when they were last judged.
    closed: u64,
    judged_closed: u64,
    /// The GPU times them: the host's sums are of the same.
    by_gpu: bool,
    /// The step at which they were last judged, and at which the last of them turned slow.
    pub judged: u64,
    pub turned: u64,
}

impl Comms {
    /// Forgets everything: a new group of ranks makes new ones.
    pub fn clear(&mut self) {
        let per_collective = self.per_collective.again();
        *self = Comms {
            per_collective,
            ..Comms::default()
        };
    }

    /// Whether there are any.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// All, in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &Comm)> {
        self.all.iter().map(|(id, comm)| (*id, comm))
    }

    /// One of them.
    pub fn get(&self, id: u64) -> Option<&Comm> {
        self.all.get(&id)
    }

    /// Those of a rank.
    pub fn of(&self, rank: Rank) -> impl Iterator<Item = (u64, &Comm)> {
        let ids = self.of_rank.get(rank.0 as usize);
        ids.into_iter()
            .flatten()
            .filter_map(|id| Some((*id, self.all.get(id)?)))
    }

    /// Takes note that a rank is a member.
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

    /// Takes what a member did in a step; gives the size of the communicator, if it counts. Those that the GPU times
    /// take the place of what the host saw of the same collectives.
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

    /// Takes what a member tells of each collective of a step.
    pub fn meet(&mut self, did: &event::Collectives) {
        let is_member = |comm: &Comm| comm.members.binary_search(&did.rank).is_ok();
        if self.all.get(&did.comm).is_some_and(is_member) {
            self.per_collective.add(did);
        }
    }

    /// Whether the GPU times them.
    pub(super) fn is_by_gpu(&self) -> bool {
        self.by_gpu
    }

    /// Whether sends and receives were seen, which join the stages of a pipeline.
    pub fn has_messages(&self) -> bool {
        self.all.values().any(|comm| comm.has_messages)
    }

    /// Which ranks are joined by communicators that pass lateness on and were seen: a number for each rank that is in
    /// one, the same for those that are joined. Ranks of different numbers meet in ways that are not seen.
    pub fn islands(&self) -> BTreeMap<Rank, u32> {
        let mut of: BTreeMap<Rank, u32> = BTreeMap::new();
        // Ranks meet in a norm or a loss when their work is done. And what joins the stages of a pipeline without sends
        // and receives, where the GPU times these, is something else: gradients of layers that two stages share.
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

    /// Says on which nodes the members are. `moved`: ranks may stand elsewhere than before.
    pub fn rank_step(&mut self, plan: &Plan, moved: bool) {
        for comm in self.all.values_mut().filter(|comm| moved || comm.is_stale()) {
            comm.rank_step(plan);
        }
    }

    /// Judges all of them, now and then.
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

    /// Whether transfers of a rank within its node are slow; `None`: none were seen.
    pub fn is_slow_inside(&self, rank: Rank) -> Option<bool> {
        self.is_any_slow(rank, |comm| comm.nodes.len() == 1)
    }

    /// Whether transfers of a rank that leave its node are slow; `None`: none were seen.
    pub fn is_slow_outside(&self, rank: Rank) -> Option<bool> {
        self.is_any_slow(rank, |comm| comm.nodes.len() > 1)
    }

    fn is_any_slow(&self, rank: Rank, counts: impl Fn(&Comm) -> bool) -> Option<bool> {
        let seen = self.of(rank).filter(|(_, comm)| comm.is_known() && counts(comm));
        seen.map(|(_, comm)| comm.is_slow).reduce(|a, b| a || b)
    }
}

/// What communicators that should be equally fast are usually like. A quarter of them may decide how fast: a link of a
/// small job is in half of all communicators.
fn usual(mut levels: Vec<Level>) -> Level {
    let (quarter, half) = (levels.len() / 4, levels.len() / 2);
    let by_median = |a: &Level, b: &Level| a.median_s.total_cmp(&b.median_s);
    let median_s = levels.select_nth_unstable_by(quarter, by_median).1.median_s;
    let by_sigma = |a: &Level, b: &Level| a.sigma_s.total_cmp(&b.sigma_s);
    let sigma_s = levels.select_nth_unstable_by(half, by_sigma).1.sigma_s;
    Level { median_s, sigma_s }
}
