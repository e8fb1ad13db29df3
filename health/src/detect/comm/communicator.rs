//! One communicator: its members, and how long its transfers take.
//!
//! The last member to arrive does not wait, so the shortest time in a communicator is its transfer time. Late members
//! lengthen their peers' times, but not the shortest one. The clocks of two ranks are never compared.

use std::collections::VecDeque;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::detect::step::plan::Plan;
use crate::event;
use crate::id::Rank;
use crate::policy::{LinkThresholds, bounds};
use crate::stats;

/// Maximum number of steps open at once. If there are more, the oldest step is closed with the reports that it has. The
/// limit must exceed 48, because a hook writes up to 48 steps together, and each rank writes at a different time.
const MAX_OPEN: usize = 64;
/// Maximum number of steps kept.
const KEPT: usize = bounds::TRANSFERS;
/// `FIRST` steps are skipped, because they set up connections. The next `EARLY` steps form the first baseline, and
/// `LEARNED` steps form the final one. Where transfers vary, `EARLY` steps alone are too few, because all of them may
/// be short by chance.
const FIRST: u32 = 5;
const EARLY: usize = 16;
const LEARNED: u32 = 144;
/// Where transfers vary, a change counts only if it exceeds this many standard errors.
const SURE: f64 = 4.0;
/// Number of steps over which a member's own time is smoothed.
const SMOOTH: f32 = 4.0;

/// One communicator, with its recent transfers and its baseline.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Comm {
    pub size: u32,
    pub name: Arc<str>,
    /// The members, sorted.
    pub members: Vec<Rank>,
    /// Nodes of the plan that the communicator spans, sorted.
    pub nodes: Vec<u32>,
    /// True if the members belong to several pipeline stages. Then even the shortest time includes waiting for other
    /// stages, so the communicator's own past is no baseline for it. It is compared only with its counterparts in other
    /// replicas.
    pub joins_stages: bool,
    /// True if the communicator carries sends and receives. Then its members wait for each other at different times,
    /// and the shortest time is not a transfer time.
    pub has_messages: bool,
    /// True if a member joined after `nodes` was computed.
    stale: bool,
    open: VecDeque<Open>,
    last_closed: Option<u64>,
    rows: u32,
    recent: VecDeque<Transfer>,
    early: Option<Level>,
    /// Number of steps in `early`, and number of latest steps in a row that were neither slow nor suspect.
    #[serde(default)]
    early_steps: u32,
    #[serde(default)]
    well_steps: u32,
    /// By member: its recent time in this communicator, waiting plus transfer, in seconds.
    own_s: Vec<f32>,
    /// Payload bytes and number of collectives per step.
    pub bytes: u64,
    pub collectives: u32,
    /// Expected transfer time in seconds, and true if transfers take longer than that.
    pub usual_s: Option<f64>,
    pub is_slow: bool,
    /// How much waits lengthened the shortest sum, in seconds, according to recent single collectives.
    blur_s: f32,
    /// True if, judged by sums alone, there are at least half as many slow steps as `is_slow` needs.
    pub is_suspect: bool,
    /// The first slow step.
    pub slow_since: Option<u64>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Open {
    step: u64,
    /// Time by member, in seconds. NaN until the member reports.
    own_s: Vec<f32>,
    seen: usize,
}

/// The transfer time of one step.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Transfer {
    step: u64,
    /// The shortest sum, and the corrected transfer time (from single collectives where these were reported).
    summed: f32,
    seconds: f32,
}

/// Transfer time over several steps, and its variation between steps; seconds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Level {
    pub median_s: f64,
    pub sigma_s: f64,
}

/// Key of communicators that should be equally fast: name, size, number of nodes, bytes (by eighths of a power of two),
/// and whether they join stages.
pub type Likeness = (Arc<str>, u32, usize, u32, bool);

impl Comm {
    /// Returns the key that this communicator shares with those that should be equally fast.
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

    /// Returns true if a member joined after the last `rank_step`.
    pub fn is_stale(&self) -> bool {
        self.stale
    }

    /// Returns true if there is a baseline.
    pub fn is_known(&self) -> bool {
        self.early.is_some()
    }

    /// Returns true if both communicators should be equally fast.
    pub fn is_like(&self, other: &Comm) -> bool {
        self.likeness() == other.likeness()
    }

    /// Looks up the nodes of the members in the plan.
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
            // Drop the open steps, because their columns no longer match the members.
            self.open.clear();
        }
    }

    /// Takes a member's report for a step. Returns how many steps it closed.
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
        // Skip the step if too few members reported, because the last arrival may be among the missing members.
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
        // Single collectives are reported only for a while. Their correction is applied to later steps too, as long as
        // the sums stay the same.
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

    /// Learns the baseline from the first steps, and later from more steps as long as none of them is slow or suspect.
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

    /// Returns the number of steps in the baseline. A snapshot of an older version has no such number; its baseline
    /// covers the first steps.
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

    /// Returns the latest closed step. All steps up to it are closed.
    pub fn closed(&self) -> Option<u64> {
        self.last_closed
    }

    /// Returns the latest transfer times, in seconds.
    fn latest(&self, steps: usize) -> Vec<f64> {
        self.last(steps, |transfer| transfer.seconds)
    }

    fn last(&self, steps: usize, of: impl Fn(&Transfer) -> f32) -> Vec<f64> {
        let latest = self.recent.iter().rev().take(steps);
        latest.map(|transfer| f64::from(of(transfer))).collect()
    }

    /// Returns the usual recent transfer time in seconds, or `None` until there are enough steps.
    pub fn transfer_s(&self, limits: &LinkThresholds) -> Option<f64> {
        let window = limits.window_steps as usize;
        (self.recent.len() >= window.min(KEPT)).then(|| stats::median(&mut self.latest(window)))?
    }

    /// Returns the transfer level over the latest steps, or `None` until there are enough.
    pub fn level(&self, limits: &LinkThresholds) -> Option<Level> {
        let window = limits.window_steps as usize;
        let mut latest = self.latest(window);
        (latest.len() >= window.min(KEPT)).then_some(())?;
        let sigma_s = stats::lasting_sigma(&latest).unwrap_or(0.0);
        let median_s = stats::median(&mut latest)?;
        Some(Level { median_s, sigma_s })
    }

    /// Returns true if any steps were reported.
    pub fn has_reports(&self) -> bool {
        self.last_closed.is_some() || !self.open.is_empty()
    }

    /// Returns the number of steps that have not closed.
    #[cfg(test)]
    pub fn open_steps(&self) -> usize {
        self.open.len()
    }

    /// Returns a rank's recent time in this communicator in seconds, waiting plus transfer.
    pub fn own_s(&self, rank: Rank) -> Option<f64> {
        let place = self.members.binary_search(&rank).ok()?;
        let own_s = f64::from(self.own_s[place]);
        own_s.is_finite().then_some(own_s)
    }

    /// Judges whether transfers take longer than before, or longer than `elsewhere`, the level of similar
    /// communicators. `now` is the current level. The communicator becomes slow when most of the latest steps exceed
    /// the ratio, and recovers when most of them are below the lower ratio.
    pub fn judge(&mut self, now: Level, elsewhere: Option<Level>, limits: &LinkThresholds) {
        let window = (limits.window_steps as usize).min(KEPT);
        let latest = self.latest(window);
        let over = |least: f64| latest.iter().filter(|seconds| **seconds >= least).count();
        let needed = limits.min_steps as usize;
        let past = self
            .early
            .filter(|early| !self.joins_stages && early.median_s > 0.0);
        // Where transfers vary, exceeding the ratio proves little, so the difference must also exceed several standard
        // errors.
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
        // The peers' variation is included, because waits that are long by chance are near their maximum and therefore
        // vary little.
        let of_others = |usual: Level| bar(usual, elsewhere_ratio, now.sigma_s.max(usual.sigma_s), window);
        let bars = [
            past.map(of_past),
            elsewhere.filter(|usual| usual.median_s > 0.0).map(of_others),
        ];
        // Request single collectives before a finding is reported, because they may show that the link is not the
        // cause.
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

    /// Returns the transfers after `step`: the step, and the excess over the usual time in seconds.
    pub fn excess_since(&self, step: u64) -> impl Iterator<Item = (u64, f64)> {
        let usual_s = self.usual_s.unwrap_or(f64::INFINITY);
        let after = self.recent.partition_point(|transfer| transfer.step <= step);
        self.recent
            .range(after..)
            .map(move |transfer| (transfer.step, f64::from(transfer.seconds) - usual_s))
    }
}
