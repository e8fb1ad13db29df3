//! Checkpoints: ranks that are slow only when they write one, and whether writes became slower.
//!
//! Only ranks that write in the same step are compared. A rank that writes alone has no peers, so it is not reported as
//! slow. Only time that was measured as a write counts, because a step may be long for other reasons.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use super::job_step::JobStep;
use crate::detect::claim::{Claim, Detail, Outcome, over, piece};
use crate::detect::straggler::localise;
use crate::detect::straggler::open_straggler::{Extent, OpenStraggler};
use crate::event::StepKind;
use crate::id::Rank;
use crate::policy::OccasionThresholds;
use crate::stats;
use crate::time::Time;
use crate::verdict::{Finding, Subject};

/// Number of early checkpoints with which later ones are compared.
const EARLY: usize = 8;
/// A rank whose time is below this share of the longest write does not write itself. It records another rank's write.
const WRITES: f64 = 0.1;
/// If the median write is below this share of the longest one, only a few ranks write: those with at least this share.
const MOST_WRITE: f64 = 0.15;
const FEW_WRITE: f64 = 0.5;

/// The state of this rule.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Checkpoints {
    /// By rank number: the latest ratios of the rank's write to its peers' writes, oldest first.
    ratios: Vec<VecDeque<f32>>,
    /// Median times of the writers in seconds, for the first checkpoints and for the latest.
    early: Vec<f64>,
    /// Number of writers at first, and number of latest checkpoints in a row with a clearly different number of
    /// writers.
    writers: usize,
    others: u32,
    latest: VecDeque<f64>,
    /// Steps and times of the latest writes.
    written: VecDeque<(u64, Time)>,
    open: BTreeMap<Subject, Open>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Open {
    members: Vec<Rank>,
    lost_s: f64,
    of_s: f64,
}

impl Checkpoints {
    /// Starts over for a new group of ranks. The times of the job are kept, because the storage is the same, unless the
    /// number of ranks changed: each rank then writes a different part. `ranks` is the size of the old group.
    pub fn begin_epoch(&mut self, at: Time, ranks: u32, resized: bool, out: &mut VecDeque<Claim>) {
        for (subject, open) in std::mem::take(&mut self.open) {
            out.push_back(over(at, Finding::SlowCheckpoint, subject, open.outcome(ranks)));
        }
        self.ratios.clear();
        self.written.clear();
        if resized {
            self.early.clear();
            self.latest.clear();
        }
    }

    /// Takes a step.
    pub fn row(&mut self, job_step: &JobStep<'_>, raised: &[OpenStraggler], out: &mut VecDeque<Claim>) {
        if !(job_step.steady && job_step.matrix.kind == StepKind::Checkpoint) {
            return;
        }
        let rank_steps = &job_step.matrix.rank_steps;
        let writes: Vec<(Rank, f64)> = rank_steps
            .iter()
            .map(|rank_step| (rank_step.rank, rank_step.sample.checkpoint_s))
            .collect();
        let longest = writes.iter().map(|(_, write_s)| *write_s).fold(0.0, f64::max);
        // Ranks that do not write record other ranks' writes. If only a few ranks write, theirs are the long ones.
        let middle = stats::median(&mut writes.iter().map(|(_, write_s)| *write_s).collect::<Vec<_>>());
        let few = middle.is_some_and(|middle| middle < MOST_WRITE * longest);
        let least = if few { FEW_WRITE } else { WRITES };
        let writers: Vec<(Rank, f64)> = writes
            .into_iter()
            .filter(|(_, write_s)| *write_s > 0.0 && *write_s >= least * longest)
            .collect();
        let table = &job_step.view.limits.occasions;
        let mut seconds: Vec<f64> = writers.iter().map(|(_, write_s)| *write_s).collect();
        seconds.sort_unstable_by(f64::total_cmp);
        let Some(median_s) = stats::median(&mut seconds.clone()) else {
            return;
        };
        if !self.is_of_a_kind(job_step, writers.len(), out) {
            return;
        }
        let before = self.written.back().map(|(_, at)| *at);
        self.remember(job_step, median_s, table);
        // Losses are a share of the time since the last checkpoint. That time includes this step.
        let of_s = before.map_or(job_step.matrix.dur_s, |before| {
            job_step.view.at.since(before).as_secs_f64()
        });
        self.by_rank(job_step, &writers, &seconds, raised, of_s, out);
        self.by_job(job_step, median_s, of_s, out);
    }

    /// Returns the outcome of an open finding so far.
    pub fn outcome_now(&self, subject: &Subject, ranks: u32) -> Option<Outcome> {
        Some(self.open.get(subject)?.outcome(ranks))
    }

    /// Returns true if about as many ranks write as before. A clearly different number means another kind of
    /// checkpoint: an occasional one is left out, and the rule starts over if they continue.
    fn is_of_a_kind(&mut self, job_step: &JobStep<'_>, writers: usize, out: &mut VecDeque<Claim>) -> bool {
        let alike = writers * 2 >= self.writers && writers <= self.writers * 2;
        self.others = if alike { 0 } else { self.others + 1 };
        if self.others >= job_step.view.limits.occasions.checkpoints {
            self.begin_epoch(job_step.view.at, job_step.view.roster.world_size, true, out);
        }
        if self.early.is_empty() {
            (self.writers, self.others) = (writers, 0);
        }
        self.others == 0
    }

    fn remember(&mut self, job_step: &JobStep<'_>, median_s: f64, table: &OccasionThresholds) {
        if self.early.len() < EARLY {
            self.early.push(median_s);
        }
        self.latest.push_back(median_s);
        self.written.push_back((job_step.matrix.step, job_step.view.at));
        let most = table.checkpoints.max(1) as usize;
        while self.latest.len() > most {
            self.latest.pop_front();
        }
        while self.written.len() > most {
            self.written.pop_front();
        }
    }

    /// Finds ranks whose recent writes were all slow, and what these ranks share.
    fn by_rank(
        &mut self,
        job_step: &JobStep<'_>,
        writers: &[(Rank, f64)],
        sorted: &[f64],
        raised: &[OpenStraggler],
        of_s: f64,
        out: &mut VecDeque<Claim>,
    ) {
        let limits = job_step.view.limits;
        if writers.len() <= limits.straggler.min_peers as usize {
            return;
        }
        let table = &limits.occasions;
        let mut slow = Vec::new();
        let mut clear = Vec::new();
        for (rank, write_s) in writers {
            let place = sorted.partition_point(|other| other < write_s);
            let peers_s = stats::median_without(sorted, place).unwrap_or(*write_s);
            let index = rank.0 as usize;
            self.ratios
                .resize_with(self.ratios.len().max(index + 1), VecDeque::new);
            let ratios = &mut self.ratios[index];
            ratios.push_back((write_s / peers_s) as f32);
            let surplus = ratios.len().saturating_sub(table.checkpoints as usize);
            ratios.drain(..surplus);
            let full = ratios.len() >= table.checkpoints as usize;
            let half = 1.0 + (table.checkpoint_ratio - 1.0) / 2.0;
            if full
                && ratios
                    .iter()
                    .all(|ratio| f64::from(*ratio) >= table.checkpoint_ratio)
            {
                slow.push(*rank);
            } else if full && ratios.iter().all(|ratio| f64::from(*ratio) < half) {
                clear.push(*rank);
            }
        }
        // Leave out ranks that are slow in every step, because their slowness is not specific to checkpoints.
        slow.retain(|rank| {
            !raised
                .iter()
                .any(|known| known.members.binary_search(rank).is_ok())
        });
        self.follow(job_step, writers, sorted, &clear, of_s, out);
        for rank in &slow {
            if self.open.values().any(|open| open.members.contains(rank)) {
                continue;
            }
            let located = localise::locate(*rank, &slow, job_step.view.plan, &limits.straggler);
            if located.extent == Extent::Job {
                continue;
            }
            if let Some(subject) = located.extent.subject(job_step.view.roster, job_step.view.job) {
                self.raise(job_step, subject, located.members, (writers, sorted), of_s, out);
            }
        }
    }

    fn follow(
        &mut self,
        job_step: &JobStep<'_>,
        writers: &[(Rank, f64)],
        sorted: &[f64],
        clear: &[Rank],
        of_s: f64,
        out: &mut VecDeque<Claim>,
    ) {
        let ranks = job_step.view.roster.world_size;
        self.open.retain(|subject, open| {
            if open.members.is_empty() {
                return true;
            }
            open.add(excess(&open.members, writers, sorted), of_s);
            let over_now = open.members.iter().all(|rank| clear.binary_search(rank).is_ok());
            if over_now {
                let outcome = open.outcome(ranks);
                out.push_back(over(
                    job_step.view.at,
                    Finding::SlowCheckpoint,
                    subject.clone(),
                    outcome,
                ));
            }
            !over_now
        });
    }

    fn raise(
        &mut self,
        job_step: &JobStep<'_>,
        subject: Subject,
        members: Vec<Rank>,
        (writers, sorted): (&[(Rank, f64)], &[f64]),
        of_s: f64,
        out: &mut VecDeque<Claim>,
    ) {
        let mut open = Open::new(members);
        // The latest checkpoints were alike, so each of them is assumed to have lost as much as this one.
        for _ in 0..self.written.len() {
            open.add(excess(&open.members, writers, sorted), of_s);
        }
        let own = writers.iter().filter(|(rank, _)| open.members.contains(rank));
        let own_s = own.map(|(_, write_s)| *write_s).fold(0.0, f64::max);
        let peers_s = stats::median(&mut sorted.to_vec()).unwrap_or(0.0);
        out.push_back(self.claim(job_step, &open, subject.clone(), own_s, peers_s));
        self.open.insert(subject, open);
    }

    /// Finds whether checkpoints became slower for all ranks.
    fn by_job(&mut self, job_step: &JobStep<'_>, median_s: f64, of_s: f64, out: &mut VecDeque<Claim>) {
        let table = &job_step.view.limits.occasions;
        let full = self.latest.len() >= table.checkpoints as usize;
        let Some(usual_s) = stats::median(&mut self.early.clone()) else {
            return;
        };
        if !full || self.early.len() < EARLY {
            return;
        }
        let job = job_step.job();
        let excess_s = (median_s - usual_s).max(0.0);
        if let Some(open) = self.open.get_mut(&job) {
            open.add(excess_s, of_s);
            let half = 1.0 + (table.checkpoint_ratio - 1.0) / 2.0;
            if self.latest.iter().all(|latest| *latest < half * usual_s) {
                let outcome = open.outcome(job_step.view.roster.world_size);
                self.open.remove(&job);
                out.push_back(over(job_step.view.at, Finding::SlowCheckpoint, job, outcome));
            }
        } else if self
            .latest
            .iter()
            .all(|latest| *latest >= table.checkpoint_ratio * usual_s)
        {
            let mut open = Open::new(Vec::new());
            for latest in &self.latest {
                open.add(latest - usual_s, of_s);
            }
            out.push_back(self.claim(job_step, &open, job.clone(), median_s, usual_s));
            self.open.insert(job, open);
        }
    }

    fn claim(
        &self,
        job_step: &JobStep<'_>,
        open: &Open,
        subject: Subject,
        own_s: f64,
        peers_s: f64,
    ) -> Claim {
        let outcome = open.outcome(job_step.view.roster.world_size);
        let first = self.written.front();
        let detail = Detail {
            since: first.map_or(job_step.view.at, |(_, at)| *at),
            since_step: first.map(|(step, _)| *step),
            slowdown_ratio: Some(own_s / peers_s.max(1e-9)),
            impact_ratio: outcome.impact_ratio,
            lost_rank_s: outcome.lost_rank_s,
            evidence: vec![piece("checkpoint_s", own_s, Some(peers_s))],
            ..job_step.detail(job_step.severity(open.impact()))
        };
        job_step.holds(Finding::SlowCheckpoint, subject, detail)
    }
}

impl Open {
    fn new(members: Vec<Rank>) -> Open {
        Open {
            members,
            lost_s: 0.0,
            of_s: 0.0,
        }
    }

    /// Adds the excess of one checkpoint. `of_s` is the time since the one before.
    fn add(&mut self, excess_s: f64, of_s: f64) {
        self.lost_s += excess_s;
        self.of_s += of_s;
    }

    fn impact(&self) -> f64 {
        (self.lost_s / self.of_s.max(1e-9)).clamp(0.0, 1.0)
    }

    fn outcome(&self, ranks: u32) -> Outcome {
        Outcome {
            lost_rank_s: self.lost_s * f64::from(ranks),
            impact_ratio: Some(self.impact()),
            ..Outcome::default()
        }
    }
}

/// Returns how long all ranks wait because of some writers: the longest write of these minus the longest write of the
/// others.
fn excess(members: &[Rank], writers: &[(Rank, f64)], sorted: &[f64]) -> f64 {
    let longest = |slow: bool| {
        let of = writers.iter().filter(|(rank, _)| members.contains(rank) == slow);
        of.map(|(_, write_s)| *write_s).fold(0.0, f64::max)
    };
    if sorted.len() < 2 {
        0.0
    } else {
        (longest(true) - longest(false)).max(0.0)
    }
}
