//! One communicator: who is in it, and how long transfers in it take.
//!
//! Who arrives last waits for nobody, so the shortest time in a communicator is its transfer: late members make the
//! others wait, and leave that as it was. No two clocks are compared.

use std::collections::VecDeque;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::detect::step::plan::Plan;
use crate::event;
use crate::id::Rank;
use crate::policy::{LinkThresholds, bounds};
use crate::stats;

/// Steps that are open at once; more, and the oldest closes as it is. A hook writes up to 48 steps together, each rank
/// at its own time.
const MAX_OPEN: usize = 64;
/// Steps that are kept.
const KEPT: usize = bounds::TRANSFERS;
/// First steps, which set up connections; those after them that are its first baseline; and those that are in its last
/// one. Where transfers vary, sixteen steps may all be short by chance, and thousands are compared with them.
const FIRST: u32 = 5;
const EARLY: usize = 16;
const LEARNED: u32 = 144;
/// Standard errors by which a change of transfers must stand out where they vary.
const SURE: f64 = 4.0;
/// Steps over which a member's own time is smoothed.
const SMOOTH: f32 = 4.0;

/// One communicator.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Comm {
    pub size: u32,
    pub name: Arc<str>,
    /// In order.
    pub members: Vec<Rank>,
    /// Nodes of the plan that it spans, in order.
    pub nodes: Vec<u32>,
    /// Its members are of several stages of a pipeline: even the shortest time in it is a wait for the others' work,
    /// so its own past says nothing, and only the same in other replicas does.
    pub joins_stages: bool,
    /// Sends and receives were seen in it: its members wait for each other at different times, and the shortest of
    /// these is no transfer.
    pub has_messages: bool,
    /// A member came after `nodes` was made.
    stale: bool,
    open: VecDeque<Open>,
    last_closed: Option<u64>,
    rows: u32,
    recent: VecDeque<Transfer>,
    early: Option<Level>,
    /// Steps that `early` is of, and latest steps in which nothing seemed wrong.
    #[serde(default)]
    early_steps: u32,
    #[serde(default)]
    well_steps: u32,
    /// By member: its own time in it of late, waiting and transfer, seconds.
    own_s: Vec<f32>,
    /// Bytes of payload a step, and collectives.
    pub bytes: u64,
    pub collectives: u32,
    /// What its transfer should take, seconds, and whether it takes longer.
    pub usual_s: Option<f64>,
    pub is_slow: bool,
    /// By how much the shortest sum was too long by waits, as far as single collectives told of late; seconds.
    blur_s: f32,
    /// Half of what is needed to be slow was seen, by sums alone.
    pub is_suspect: bool,
    /// The first slow step.
    pub slow_since: Option<u64>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Open {
    step: u64,
    /// By member, seconds; NaN until it reported.
    own_s: Vec<f32>,
    seen: usize,
}

/// One step's transfer.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Transfer {
    step: u64,
    /// The shortest sum; by single collectives, where they were told.
    summed: f32,
    seconds: f32,
}

/// How long transfers took over some steps, and by how much they differ between steps; seconds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Level {
    pub median_s: f64,
    pub sigma_s: f64,
}

/// What tells communicators that should be equally fast: name, size, nodes that they span, bytes (by eighths of a
/// power of two) and whether they join stages.
pub type Likeness = (Arc<str>, u32, usize, u32, bool);

impl Comm {
    /// What it should be as fast as.
    pub fn likeness(&self) -> Likeness {
        let bytes = (8.0 * (self.bytes.max(1) as f64).log2()).round() as u32;
        (
            self.name.clone(),
            self.size,
            self.nodes.len(),
            bytes,
            self.joins_stages,
        )
    }

    /// A member came after it was last seated.
    pub fn is_stale(&self) -> bool {
        self.stale
    }

    /// Whether it is known how fast it was.
    pub fn is_known(&self) -> bool {
        self.early.is_some()
    }

    /// Whether both should be equally fast.
    pub fn is_like(&self, other: &Comm) -> bool {
        self.likeness() == other.likeness()
    }

    /// Says on which nodes its members are.
    pub fn rank_step(&mut self, plan: &Plan) {
        self.stale = false;
        let places = || self.members.iter().filter_map(|rank| plan.place(*rank));
        let stages = || places().map(|place| place.stage);
        self.joins_stages = stages().min() != stages().max();
        let mut nodes: Vec<u32> = places().map(|place| place.node).collect();
        nodes.sort_unstable();
        nodes.dedup();
        self.nodes = nodes;
    }

    /// Takes a member.
    pub fn join(&mut self, group: &event::Group) {
        self.size = group.size;
        self.name = group.name.clone();
        if let Err(place) = self.members.binary_search(&group.rank) {
            self.members.insert(place, group.rank);
            self.own_s.insert(place, f32::NAN);
            self.stale = true;
            // Columns of open steps no longer fit.
            self.open.clear();
        }
    }

    /// Takes what a member did in a step, and says how many steps closed by it.
    pub fn add(&mut self, did: &event::Comm) -> u64 {
        let Ok(member) = self.members.binary_search(&did.rank) else {
            return 0;
        };
        if self.last_closed.is_some_and(|closed| did.step <= closed) {
            return 0;
        }
        let place = self.open.partition_point(|open| open.step < did.step);
        if self.open.get(place).is_none_or(|open| open.step != did.step) {
            let own_s = vec![f32::NAN; self.members.len()];
            self.open.insert(
                place,
                Open {
                    step: did.step,
                    own_s,
                    seen: 0,
                },
            );
        }
        let open = &mut self.open[place];
        if open.own_s[member].is_nan() {
            open.own_s[member] = (did.dur_ns as f64 / 1e9) as f32;
            open.seen += 1;
        }
        self.has_messages |= did.unfit > 0;
        self.bytes = did.bytes;
        self.collectives = did.collectives;
        let mut closed = 0;
        while self
            .open
            .front()
            .is_some_and(|open| open.seen == self.size as usize || self.open.len() > MAX_OPEN)
        {
            let Some(open) = self.open.pop_front() else { break };
            closed += 1;
            self.close(&open);
        }
        closed
    }

    fn close(&mut self, open: &Open) {
        self.last_closed = Some(open.step);
        // Who came last may be the one that is missing.
        if open.seen * 4 < self.size as usize * 3 {
            return;
        }
        for (own_s, now) in self.own_s.iter_mut().zip(&open.own_s) {
            if own_s.is_nan() {
                *own_s = *now;
            } else if !now.is_nan() {
                *own_s += (*now - *own_s) / SMOOTH;
            }
        }
        self.rows = self.rows.saturating_add(1);
        if self.rows <= FIRST || self.has_messages {
            return;
        }
        if self.recent.len() == KEPT {
            self.recent.pop_front();
        }
        let summed = open.own_s.iter().copied().fold(f32::INFINITY, f32::min);
        // Single collectives are told for a while; what they showed holds as long as sums look as they did.
        let usual_s = self.usual_s.map_or(f32::INFINITY, |usual_s| usual_s as f32);
        self.recent.push_back(Transfer {
            step: open.step,
            summed,
            seconds: (summed - self.blur_s).max(summed.min(usual_s)),
        });
        self.well_steps = match self.is_slow || self.is_suspect {
            true => 0,
            false => self.well_steps.saturating_add(1),
        };
        self.learn();
    }

    /// Learns how fast it was, from its first steps and then from those after them, as long as nothing seems wrong.
    fn learn(&mut self) {
        let new = match self.early {
            None if self.recent.len() == EARLY => EARLY,
            Some(_) if self.early_steps < LEARNED && self.well_steps >= KEPT as u32 => KEPT,
            _ => return,
        };
        let mut latest = self.latest(new);
        let (Some(sigma_s), Some(median_s)) = (stats::lasting_sigma(&latest), stats::median(&mut latest))
        else {
            return;
        };
        let before = self.early_steps();
        let share = new as f64 / (f64::from(before) + new as f64);
        let mean = |old: f64, now: f64| old + (now - old) * share;
        let known = self.early.unwrap_or(Level { median_s, sigma_s });
        self.early = Some(Level {
            median_s: mean(known.median_s, median_s),
            sigma_s: mean(known.sigma_s.powi(2), sigma_s.powi(2)).sqrt(),
        });
        self.early_steps = before + new as u32;
        self.well_steps = 0;
    }

    /// Steps that the baseline is of. A snapshot of an older version does not count them, and has the first ones.
    fn early_steps(&self) -> u32 {
        self.early.map_or(0, |_| self.early_steps.max(EARLY as u32))
    }

    /// Single collectives tell the transfer of a step that has closed.
    pub fn refine(&mut self, step: u64, transfer_s: f64) {
        let mut recent = self.recent.iter_mut().rev();
        if let Some(transfer) = recent.find(|transfer| transfer.step == step) {
            transfer.seconds = transfer.summed.min(transfer_s as f32);
            self.blur_s += (transfer.summed - transfer.seconds - self.blur_s) / SMOOTH;
        }
    }

    /// All steps up to this one have closed.
    pub fn closed(&self) -> Option<u64> {
        self.last_closed
    }

    /// Its latest transfers, seconds.
    fn latest(&self, steps: usize) -> Vec<f64> {
        self.last(steps, |transfer| transfer.seconds)
    }

    fn last(&self, steps: usize, of: impl Fn(&Transfer) -> f32) -> Vec<f64> {
        let latest = self.recent.iter().rev().take(steps);
        latest.map(|transfer| f64::from(of(transfer))).collect()
    }

    /// Its usual transfer of late, seconds; `None` until enough was seen.
    pub fn transfer_s(&self, limits: &LinkThresholds) -> Option<f64> {
        let window = limits.window_steps as usize;
        (self.recent.len() >= window.min(KEPT)).then(|| stats::median(&mut self.latest(window)))?
    }

    /// How it was over the latest steps; `None` until enough was seen.
    pub fn level(&self, limits: &LinkThresholds) -> Option<Level> {
        let window = limits.window_steps as usize;
        let mut latest = self.latest(window);
        (latest.len() >= window.min(KEPT)).then_some(())?;
        let sigma_s = stats::lasting_sigma(&latest).unwrap_or(0.0);
        let median_s = stats::median(&mut latest)?;
        Some(Level { median_s, sigma_s })
    }

    /// Whether anything was done in it.
    pub fn has_reports(&self) -> bool {
        self.last_closed.is_some() || !self.open.is_empty()
    }

    /// Steps that have not closed.
    #[cfg(test)]
    pub fn open_steps(&self) -> usize {
        self.open.len()
    }

    /// By member: its own time in it of late, seconds, waiting and transfer together.
    pub fn own_s(&self, rank: Rank) -> Option<f64> {
        let place = self.members.binary_search(&rank).ok()?;
        let own_s = f64::from(self.own_s[place]);
        own_s.is_finite().then_some(own_s)
    }

    /// Judges whether transfers take longer than they did, or than `elsewhere` in communicators like it; `now`: how
    /// they are. Slow needs most of the latest steps over the ratio; no longer slow, most of them under the lower one.
    pub fn judge(&mut self, now: Level, elsewhere: Option<Level>, limits: &LinkThresholds) {
        let window = (limits.window_steps as usize).min(KEPT);
        let latest = self.latest(window);
        let over = |least: f64| latest.iter().filter(|seconds| **seconds >= least).count();
        let needed = limits.min_steps as usize;
        let past = self
            .early
            .filter(|early| !self.joins_stages && early.median_s > 0.0);
        // Where transfers vary by themselves the ratio alone says little.
        let bar = |usual: Level, ratio: f64, sigma_s: f64, steps: usize| {
            let samples = 1.0 / steps as f64 + 1.0 / window as f64;
            let unsure_s = SURE * sigma_s * samples.sqrt();
            let slow_s = (ratio * usual.median_s).max(usual.median_s + unsure_s);
            (usual.median_s, slow_s)
        };
        let early_steps = self.early_steps() as usize;
        let of_past = |early: Level| bar(early, limits.slow_ratio, early.sigma_s, early_steps);
        let elsewhere_ratio = if self.joins_stages {
            limits.slow_ratio
        } else {
            limits.elsewhere_ratio
        };
        // Waits that are long by chance are alike, as they end where the longest can: the others say how they vary.
        let of_others = |usual: Level| bar(usual, elsewhere_ratio, now.sigma_s.max(usual.sigma_s), window);
        let bars = [
            past.map(of_past),
            elsewhere.filter(|usual| usual.median_s > 0.0).map(of_others),
        ];
        // Asked for before it is said: single collectives may show that it is no link.
        let summed = self.last(window, |transfer| transfer.summed);
        let half = |slow_s: f64| 2 * summed.iter().filter(|seconds| **seconds >= slow_s).count() >= needed;
        let is_half = bars.iter().flatten().any(|(_, slow_s)| half(*slow_s));
        if self.is_slow {
            let back_s = limits.clear_ratio * self.usual_s.unwrap_or(0.0);
            self.is_slow = window - over(back_s) < needed;
        } else if let Some((usual_s, slow_s)) = bars
            .into_iter()
            .flatten()
            .find(|(_, slow_s)| over(*slow_s) >= needed)
        {
            self.is_slow = true;
            self.usual_s = Some(usual_s);
            let is_slow = |transfer: &&Transfer| f64::from(transfer.seconds) >= slow_s;
            self.slow_since = self.recent.iter().find(is_slow).map(|transfer| transfer.step);
        }
        if !self.is_slow {
            self.usual_s = bars.into_iter().flatten().map(|(usual_s, _)| usual_s).next();
        }
        self.is_suspect = is_half && !self.is_slow;
        if !is_half {
            self.blur_s = 0.0;
        }
    }

    /// Transfers after `step`: step, and what it took beyond the usual, seconds.
    pub fn excess_since(&self, step: u64) -> impl Iterator<Item = (u64, f64)> {
        let usual_s = self.usual_s.unwrap_or(f64::INFINITY);
        let after = self.recent.partition_point(|transfer| transfer.step <= step);
        self.recent
            .range(after..)
            .map(move |transfer| (transfer.step, f64::from(transfer.seconds) - usual_s))
    }
}
