//! All communicators: which a rank is in, and which should be equally fast.

use std::collections::BTreeMap;

use super::comm::{Comm, Likeness};
use super::plan::Plan;
use super::roster::MAX_RANKS;
use crate::event;
use crate::id::Rank;
use crate::policy::LinkThresholds;

/// Communicators of one rank, and of all.
const MAX_OF_RANK: usize = 8;
const MAX_COMMS: usize = 1 << 17;
/// Steps between two judgements, and communicators alike that one is compared with.
const JUDGED_EVERY: u64 = 4;
const ELSEWHERE: usize = 3;

/// All communicators.
#[derive(Debug, Default)]
pub struct Comms {
    all: BTreeMap<u64, Comm>,
    /// By rank's number.
    of_rank: Vec<Vec<u64>>,
    /// Steps of communicators that have closed, and as many when they were last judged.
    closed: u64,
    judged_closed: u64,
    /// The step at which they were last judged, and at which the last of them turned slow.
    pub judged: u64,
    pub turned: u64,
}

impl Comms {
    /// Forgets everything: a new group of ranks makes new ones.
    pub fn clear(&mut self) {
        *self = Comms::default();
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

    /// Takes what a member did in a step.
    pub fn add(&mut self, did: &event::Comm) {
        if let Some(comm) = self.all.get_mut(&did.comm) {
            self.closed += comm.add(did);
        }
    }

    /// Says on which nodes the members are. `moved`: ranks may stand elsewhere than before.
    pub fn seat(&mut self, plan: &Plan, moved: bool) {
        for comm in self.all.values_mut().filter(|comm| moved || comm.is_stale()) {
            comm.seat(plan);
        }
    }

    /// Judges all of them, now and then.
    pub fn judge(&mut self, plan: &Plan, limits: &LinkThresholds, step: u64) {
        if self.closed == self.judged_closed || step < self.judged + JUDGED_EVERY {
            return;
        }
        self.judged_closed = self.closed;
        self.judged = step;
        self.seat(plan, false);
        let mut alike: BTreeMap<Likeness, Vec<f64>> = BTreeMap::new();
        for comm in self.all.values() {
            if let Some(transfer_s) = comm.transfer_s(limits) {
                alike.entry(comm.likeness()).or_default().push(transfer_s);
            }
        }
        let elsewhere: BTreeMap<Likeness, f64> = alike
            .into_iter()
            .filter(|(_, transfers)| transfers.len() > ELSEWHERE)
            .map(|(likeness, mut transfers)| {
                // A quarter of them may decide: a link of a small job is in half of all communicators.
                let quarter = transfers.len() / 4;
                let (_, usual, _) = transfers.select_nth_unstable_by(quarter, f64::total_cmp);
                (likeness, *usual)
            })
            .collect();
        for comm in self.all.values_mut() {
            let was_slow = comm.is_slow;
            comm.judge(elsewhere.get(&comm.likeness()).copied(), limits);
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
