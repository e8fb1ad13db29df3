//! The account of an open straggler: how much slower its ranks are, in which part of the step, and what that costs.

use serde::{Deserialize, Serialize};

use crate::detect::cause::causes::Suspect;
use crate::detect::cost::ledger;
use crate::detect::step::history::{History, Kept};
use crate::detect::step::matrix::StepMatrix;
use crate::detect::step::plan::Plan;
use crate::detect::straggler::critical_path;
use crate::id::Rank;
use crate::policy::Thresholds;
use crate::time::Time;
use crate::verdict::Evidence;

/// Number of samples in the recent mean. A large number reduces noise. It must not be too large, because slowness
/// changes, for example with heat, and a mean lags by half of this number.
const LATELY: f64 = 8.0;
/// Number of steps that count as current. It is the number of steps that define the ordinary step.
const NOW: f64 = ledger::USUAL as f64;
/// Sums over the steps and ranks since the ranks became slow, in seconds.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Account {
    /// Number of steps taken, and of samples of these ranks in them.
    pub rows: u64,
    samples: u64,
    /// Number of steps in the sums `gain_s` and `dur_s`.
    steps: f64,
    x: f64,
    /// Mean of x over about the last [`LATELY`] samples.
    lately: f64,
    self_s: f64,
    peers_s: f64,
    wait_s: f64,
    peers_wait_s: f64,
    data_excess_s: f64,
    gc_excess_s: f64,
    /// How much shorter the steps would have been without the slowness, by the critical path.
    pub gain_s: f64,
    dur_s: f64,
    /// Means of `gain_s` and `dur_s` over about the last [`NOW`] steps.
    gain_now_s: f64,
    dur_now_s: f64,
    /// The step time before the ranks became slow, if it limits their cost.
    usual_s: Option<f64>,
    entries: (u64, u64),
}

impl Account {
    /// Creates the account of `members` after `start` from the kept steps. Steps that are too old to be kept are
    /// assumed to be like the kept ones.
    pub fn open(members: &[Rank], start: u64, history: &History, plan: &Plan) -> Account {
        let mut account = Account::default();
        for kept in history.steady_since(start) {
            account.add_kept(members, kept, plan, weight(kept, start));
        }
        // A second pass is needed, because the step time without these ranks can be computed only once their slowness
        // is known.
        let x = account.x();
        for kept in history.steady_since(start) {
            account.gain_s += critical_path::gain_kept(members, x, kept, plan) * weight(kept, start);
        }
        let oldest = history.steady_since(start).next();
        let unseen = oldest.map_or(0.0, |kept| {
            (kept.step.saturating_sub(start) as f64) - weight(kept, start)
        });
        // In a pipeline, the cost is limited to the time by which its steps have become longer. The critical path
        // overestimates it, because handoffs between stages are not observed and hide part of one stage's slowness.
        if plan.stages > 1 {
            account.usual_s = history.usual_s(start);
        }
        if account.rows > 0 {
            account.gain_now_s = account.gain_s / account.steps;
        }
        if account.rows > 0 && unseen > 0.0 {
            let more = 1.0 + unseen / account.steps;
            account.gain_s *= more;
            account.dur_s *= more;
            account.steps *= more;
        }
        account
    }

    fn add_kept(&mut self, members: &[Rank], kept: &Kept, plan: &Plan, steps: f64) {
        let mut seen = false;
        for rank in members {
            let index = rank.0 as usize;
            let Some(x) = kept.x.get(index).filter(|x| !x.is_nan()) else {
                continue;
            };
            let Some(level) = plan
                .place(*rank)
                .and_then(|place| kept.roles.get(place.role as usize))
            else {
                continue;
            };
            let self_s = f64::from(kept.self_s[index]);
            let wait_s = f64::from(kept.wait_s[index]);
            self.sample(
                f64::from(*x),
                self_s,
                (wait_s, level.peers_wait_s(wait_s)),
                f64::from(kept.data_s[index]) - level.data_s,
                f64::from(kept.gc_s[index]) - level.gc_s,
            );
            seen = true;
        }
        if seen {
            self.row(kept.dur_s, steps, kept.entries);
        }
    }

    /// Adds a step. Its gain is added separately.
    pub fn add(&mut self, members: &[Rank], matrix: &StepMatrix<'_>) {
        let mut seen = false;
        for rank in members {
            let Ok(place) = matrix
                .rank_steps
                .binary_search_by_key(rank, |rank_step| rank_step.rank)
            else {
                continue;
            };
            let rank_step = &matrix.rank_steps[place];
            let level = &matrix.roles[rank_step.place.role as usize];
            self.sample(
                rank_step.x,
                rank_step.self_s,
                (
                    rank_step.sample.wait_s,
                    level.peers_wait_s(rank_step.sample.wait_s),
                ),
                rank_step.sample.data_s - level.data_s,
                rank_step.sample.gc_s - level.gc_s,
            );
            seen = true;
        }
        if seen {
            self.row(matrix.dur_s, 1.0, matrix.entries);
        }
    }

    fn sample(&mut self, x: f64, self_s: f64, (wait_s, peers_wait_s): (f64, f64), data: f64, gc: f64) {
        self.samples += 1;
        self.x += x;
        self.lately += (x - self.lately) / (self.samples as f64).min(LATELY);
        self.self_s += self_s;
        self.peers_s += self_s / x.exp();
        self.wait_s += wait_s;
        self.peers_wait_s += peers_wait_s;
        self.data_excess_s += data;
        self.gc_excess_s += gc;
    }

    fn row(&mut self, dur_s: f64, steps: f64, entries: (u64, u64)) {
        if self.rows == 0 {
            self.entries = entries;
        }
        self.entries.1 = self.entries.1.max(entries.1);
        self.rows += 1;
        self.steps += steps;
        self.dur_s += dur_s * steps;
        self.dur_now_s += (dur_s - self.dur_now_s) / (self.rows as f64).min(NOW);
    }

    /// Adds a step without self-times. It is assumed to lose as much as the current ones.
    pub fn pass(&mut self, dur_s: f64) {
        self.steps += 1.0;
        self.dur_s += dur_s;
        self.gain_s += self.gain_now_s;
    }

    /// Adds how much shorter the last added step would have been.
    pub fn won(&mut self, gain_s: f64) {
        self.gain_s += gain_s;
        self.gain_now_s += (gain_s - self.gain_now_s) / (self.rows as f64).clamp(1.0, NOW);
    }

    fn mean(&self, sum: f64) -> f64 {
        sum / self.samples.max(1) as f64
    }

    /// Returns the mean of ln(self-time over the peers').
    pub fn x(&self) -> f64 {
        self.mean(self.x)
    }

    /// Returns the mean of ln(self-time over the peers') over the recent samples.
    pub fn x_lately(&self) -> f64 {
        self.lately.max(0.0)
    }

    /// Returns how much shorter all steps except the last added one would have been.
    pub fn before_s(&self) -> f64 {
        self.lost_s() - self.gain_now_s.min(self.lost_s())
    }

    /// Returns the share of the steps' time that would be gained.
    pub fn impact(&self) -> f64 {
        if self.dur_s > 0.0 {
            self.lost_s() / self.dur_s
        } else {
            0.0
        }
    }

    /// Returns the share of the current steps' time that would be gained.
    pub fn impact_now(&self) -> f64 {
        let gain_s = self.usual_s.map_or(self.gain_now_s, |usual_s| {
            self.gain_now_s.min((self.dur_now_s - usual_s).max(0.0))
        });
        if self.dur_now_s > 0.0 {
            gain_s / self.dur_now_s
        } else {
            0.0
        }
    }

    /// Returns how much shorter the steps would have been, but not more than they became longer.
    pub fn lost_s(&self) -> f64 {
        let Some(usual_s) = self.usual_s else {
            return self.gain_s;
        };
        let mean_s = self.dur_s / self.steps.max(1.0);
        self.gain_s.min(self.steps * (mean_s - usual_s).max(0.0))
    }

    /// Returns true if the others wait for these ranks. By about as much as these ranks work longer, the others then
    /// wait longer.
    pub fn is_waited_for(&self, limits: &Thresholds) -> bool {
        let awaited = self.mean(self.peers_wait_s) - self.mean(self.wait_s);
        awaited >= (1.0 - limits.straggler.consistency_wait_ratio) * self.excess_s()
    }

    /// Returns how much longer the ranks work than their peers, as a mean per step.
    fn excess_s(&self) -> f64 {
        self.mean(self.self_s) - self.mean(self.peers_s)
    }

    /// Returns the excess as a share of the steps' time.
    fn excess_ratio(&self) -> f64 {
        if self.dur_s > 0.0 {
            self.excess_s() * self.steps / self.dur_s
        } else {
            0.0
        }
    }

    /// Returns self-time and waits, with the peers' values, as evidence.
    pub fn evidence(&self) -> [Evidence; 2] {
        let piece = |what: &str, own, peers| Evidence {
            what: what.into(),
            value: self.mean(own),
            peers: Some(self.mean(peers)),
            entries: Some(self.entries),
        };
        [
            piece("self_time_s", self.self_s, self.peers_s),
            piece("wait_s", self.wait_s, self.peers_wait_s),
        ]
    }

    /// Returns the input for the search for a cause.
    pub fn suspect<'a>(&self, members: &'a [Rank], since: Time) -> Suspect<'a> {
        Suspect {
            ranks: members,
            since,
            excess_s: self.excess_s(),
            excess_ratio: self.excess_ratio(),
            slower_ratio: self.excess_s() / self.mean(self.peers_s).max(f64::MIN_POSITIVE),
            data_excess_s: self.mean(self.data_excess_s),
            gc_excess_s: self.mean(self.gc_excess_s),
            entries: self.entries,
        }
    }
}

/// Returns the number of steps after `start` that a kept step represents.
fn weight(kept: &Kept, start: u64) -> f64 {
    u64::from(kept.steps).min(kept.step.saturating_sub(start)).max(1) as f64
}
