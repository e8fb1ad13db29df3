//! One communicator: its members, and how long its transfers take.
//!
//! The last member to arrive does not wait, so the shortest time in a communicator is its transfer time: late members
//! lengthen their peers' times, but not the shortest. No two clocks are compared.

use std::collections::VecDeque;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::detect::step::plan::Plan;
use crate::event;
use crate::id::Rank;
use crate::policy::{LinkThresholds, bounds};
use crate::stats;

/// Maximum steps open at once; with more, the oldest closes as it is. A hook writes up to 48 steps together, each rank
/// at its own time.
const MAX_OPEN: usize = 64;
/// Steps kept.
const KEPT: usize = bounds::TRANSFERS;
/// First steps, which set up connections; the steps after them in the first baseline; and the steps in the final one.
/// Where transfers vary, sixteen steps may all be short by chance, and thousands are compared with them.
const FIRST: u32 = 5;
const EARLY: usize = 16;
const LEARNED: u32 = 144;
/// Where transfers vary, a change must exceed this many standard errors.
const SURE: f64 = 4.0;
/// Steps over which a member's own time is smoothed.
const SMOOTH: f32 = 4.0;

/// One communicator.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Comm {
    pub size: u32,
    pub name: Arc<str>,
    /// Sorted.
    pub members: Vec<Rank>,
    /// Nodes of the plan that it spans, sorted.
    pub nodes: Vec<u32>,
    /// Its members belong to several pipeline stages: even the shortest time in it includes waiting for other stages,
    /// so its own past is no baseline; only its counterparts in other replicas are.
    pub joins_stages: bool,
    /// It carries sends and receives: its members wait for each other at different times, and the shortest of these is
    /// not a transfer time.
    pub has_messages: bool,
    /// A member joined after `nodes` was computed.
    stale: bool,
    open: VecDeque<Open>,
    last_closed: Option<u64>,
    rows: u32,
    recent: VecDeque<Transfer>,
    early: Option<Level>,
    /// Steps in `early`, and the number of latest steps in which nothing seemed wrong.
    #[serde(default)]
    early_steps: u32,
    #[serde(default)]
    well_steps: u32,
    /// By member: its recent own time in the communicator, waiting plus transfer, seconds.
    own_s: Vec<f32>,
    /// Payload bytes and collectives per step.
    pub bytes: u64,
    pub collectives: u32,
    /// Expected transfer time in seconds, and whether transfers take longer.
    pub usual_s: Option<f64>,
    pub is_slow: bool,
    /// How much waits lengthened the shortest sum, according to recent single collectives; seconds.
    blur_s: f32,
    /// At least half as many slow steps as `is_slow` needs, by sums alone.
    pub is_suspect: bool,
    /// The first slow step.
    pub slow_since: Option<u64>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Open {
    step: u64,
    /// By member, seconds; NaN until the member reports.
    own_s: Vec<f32>,
    seen: usize,
}

/// One step's transfer.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Transfer {
    step: u64,
    /// The shortest sum, and the time from single collectives where they were reported.
    summed: f32,
    seconds: f32,
}

/// Transfer time over several steps, and its variation between steps; seconds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Level {
    pub median_s: f64,
    pub sigma_s: f64,
}

/// Identifies communicators that should be equally fast: name, size, number of nodes, bytes (by eighths of a power of
/// two) and whether they join stages.
pub type Likeness = (Arc<str>, u32, usize, u32, bool);

impl Comm {
    /// Identifies the communicators that should be as fast as this one.
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

    /// Whether a member joined after the last `rank_step`.
    pub fn is_stale(&self) -> bool {
        self.stale
    }

    /// Whether there is a baseline.
    pub fn is_known(&self) -> bool {
        self.early.is_some()
    }

    /// Whether both should be equally fast.
    pub fn is_like(&self, other: &Comm) -> bool {
        self.likeness() == other.likeness()
    }

    /// Looks up the nodes of its members in the plan.
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

    /// Adds a member.
    pub fn join(&mut self, group: &event::Group) {
        self.size = group.size;
        self.name = group.name.clone();
        if let Err(place) = self.members.binary_search(&group.rank) {
            self.members.insert(place, group.rank);
            self.own_s.insert(place, f32::NAN);
            self.stale = true;
            // Columns of open steps no longer match.
            self.open.clear();
        }
    }

    /// Takes a member's report for a step; returns how many steps it closed.
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
        // The last arrival may be among the missing members.
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
        // Single collectives are reported only for a while; their result applies as long as the sums stay the same.
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

    /// Learns the baseline from the first steps, then from later ones as long as nothing seems wrong.
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

    /// Steps in the baseline. A snapshot of an older version has no count; its baseline covers the first steps.
    fn early_steps(&self) -> u32 {
        self.early.map_or(0, |_| self.early_steps.max(EARLY as u32))
    }

    /// Corrects the transfer time of a closed step from its single collectives.
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

    /// Its latest transfer times, seconds.
    fn latest(&self, steps: usize) -> Vec<f64> {
        self.last(steps, |transfer| transfer.seconds)
    }

    fn last(&self, steps: usize, of: impl Fn(&Transfer) -> f32) -> Vec<f64> {
        let latest = self.recent.iter().rev().take(steps);
        latest.map(|transfer| f64::from(of(transfer))).collect()
    }

    /// Its usual recent transfer time, seconds; `None` until there are enough steps.
    pub fn transfer_s(&self, limits: &LinkThresholds) -> Option<f64> {
        let window = limits.window_steps as usize;
        (self.recent.len() >= window.min(KEPT)).then(|| stats::median(&mut self.latest(window)))?
    }

    /// Transfer level over the latest steps; `None` until there are enough.
    pub fn level(&self, limits: &LinkThresholds) -> Option<Level> {
        let window = limits.window_steps as usize;
        let mut latest = self.latest(window);
        (latest.len() >= window.min(KEPT)).then_some(())?;
        let sigma_s = stats::lasting_sigma(&latest).unwrap_or(0.0);
        let median_s = stats::median(&mut latest)?;
        Some(Level { median_s, sigma_s })
    }

    /// Whether any steps were reported.
    pub fn has_reports(&self) -> bool {
        self.last_closed.is_some() || !self.open.is_empty()
    }

    /// Steps that have not closed.
    #[cfg(test)]
    pub fn open_steps(&self) -> usize {
        self.open.len()
    }

    /// A rank's recent own time in it, seconds: waiting plus transfer.
    pub fn own_s(&self, rank: Rank) -> Option<f64> {
        let place = self.members.binary_search(&rank).ok()?;
        let own_s = f64::from(self.own_s[place]);
        own_s.is_finite().then_some(own_s)
    }

    /// Judges whether transfers take longer than before, or than `elsewhere`: similar communicators. `now`: the current
    /// level. It turns slow when most of the latest steps exceed the ratio, and recovers when most are below the lower
    /// one.
    pub fn judge(&mut self, now: Level, elsewhere: Option<Level>, limits: &LinkThresholds) {
        let window = (limits.window_steps as usize).min(KEPT);
        let latest = self.latest(window);
        let over = |least: f64| latest.iter().filter(|seconds| **seconds >= least).count();
        let needed = limits.min_steps as usize;
        let past = self
            .early
            .filter(|early| !self.joins_stages && early.median_s > 0.0);
        // Where transfers vary, the ratio alone proves little.
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
        // Waits that are long by chance vary little, being near their maximum, so the peers' variation counts too.
        let of_others = |usual: Level| bar(usual, elsewhere_ratio, now.sigma_s.max(usual.sigma_s), window);
        let bars = [
            past.map(of_past),
            elsewhere.filter(|usual| usual.median_s > 0.0).map(of_others),
        ];
        // Request single collectives before reporting: they may show that the link is not the cause.
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

    /// Transfers after `step`: the step, and the excess over the usual time, seconds.
    pub fn excess_since(&self, step: u64) -> impl Iterator<Item = (u64, f64)> {
        let usual_s = self.usual_s.unwrap_or(f64::INFINITY);
        let after = self.recent.partition_point(|transfer| transfer.step <= step);
        self.recent
            .range(after..)
            .map(move |transfer| (transfer.step, f64::from(transfer.seconds) - usual_s))
    }
}
