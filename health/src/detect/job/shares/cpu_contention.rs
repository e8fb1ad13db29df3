//! Estimates how much of the time by which ranks are slower than their peers, in varying steps, is CPU wait.
//!
//! Host counters are read once a second, and a second holds many steps. The increase of a counter is therefore compared
//! with the rank's excess in the steps of the same second. The counter explains an excess if it grows with that excess,
//! up to the seconds that it counted. Where cores are oversubscribed, every rank waits for a CPU in proportion to its
//! work. That proportion, the median over the peers, explains no excess. A rank that sleeps, evaluates or saves is not
//! counted as waiting for a CPU meanwhile.

use serde::{Deserialize, Serialize};

use crate::detect::job::job_step::JobStep;
use crate::id::Rank;
use crate::stats;
use crate::time::Time;

/// Number of steps between two checks of the counters.
const READ_EVERY: u64 = 4;
/// Number of intervals between readings that are remembered, and minimum number for a decision.
const MEMORY: f64 = 32.0;
const MIN_INTERVALS: f64 = 8.0;
/// Number of standard errors by which the counter must grow with the excess.
const SURE: f64 = 4.0;

/// The CPU waits of all ranks, by rank number.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct CpuContention {
    ranks: Vec<RankWait>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct RankWait {
    /// Sums over the steps since the reading at `from`.
    from: Option<Time>,
    steps: u64,
    own_s: f64,
    excess_s: f64,
    /// Decaying sums over earlier intervals.
    sums: Sums,
    /// Share of this rank's excess that the counter explains, or zero if that is not most of it.
    explained: f64,
}

/// Seconds of each interval: self-time, excess over the peers, and CPU wait.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Sums {
    intervals: f64,
    own_s: f64,
    /// The excess, summed over the intervals in which it was positive.
    slower_s: f64,
    excess_s: f64,
    waited_s: f64,
    excess_squares: f64,
    waited_squares: f64,
    products: f64,
}

impl Sums {
    fn add(&mut self, own_s: f64, excess_s: f64, waited_s: f64) {
        let fade = 1.0 - 1.0 / MEMORY;
        let added = [
            (&mut self.intervals, 1.0),
            (&mut self.own_s, own_s),
            (&mut self.slower_s, excess_s.max(0.0)),
            (&mut self.excess_s, excess_s),
            (&mut self.waited_s, waited_s),
            (&mut self.excess_squares, excess_s * excess_s),
            (&mut self.waited_squares, waited_s * waited_s),
            (&mut self.products, excess_s * waited_s),
        ];
        for (sum, value) in added {
            *sum = *sum * fade + value;
        }
    }

    /// Returns the CPU wait per second of work.
    fn proportion(&self) -> Option<f64> {
        (self.intervals >= MIN_INTERVALS && self.own_s > 0.0).then(|| self.waited_s / self.own_s)
    }

    /// Returns the share of the excess that grows with CPU wait, beyond the `usual` proportion of all work.
    fn explained(&self, usual: f64) -> Option<f64> {
        if self.intervals < MIN_INTERVALS || self.slower_s <= 0.0 {
            return None;
        }
        let mean = |sum: f64| sum / self.intervals;
        let variance = mean(self.excess_squares) - mean(self.excess_s).powi(2);
        let together = mean(self.products) - mean(self.excess_s) * mean(self.waited_s);
        if variance <= 0.0 {
            return None;
        }
        let slope = together / variance;
        let left = mean(self.waited_squares) - mean(self.waited_s).powi(2) - slope * together;
        let error = (left.max(0.0) / variance / self.intervals).sqrt();
        // The slope must exceed several standard errors, because a few intervals may agree by chance.
        (slope - usual > SURE * error).then(|| (slope - usual).min(self.waited_s / self.slower_s))
    }
}

impl CpuContention {
    /// Drops the state, because ranks changed their place in the layout.
    pub fn reset(&mut self) {
        self.ranks.clear();
    }

    /// Takes a step. `own` is the self-time by rank.
    pub fn observe(&mut self, job_step: &JobStep<'_>, own: &[f64]) {
        let matrix = job_step.matrix;
        let ranks = matrix
            .rank_steps
            .last()
            .map_or(0, |rank_step| rank_step.rank.0 as usize + 1);
        if self.ranks.len() < ranks {
            self.ranks.resize(ranks, RankWait::default());
        }
        for (index, rank_step) in matrix.rank_steps.iter().enumerate() {
            // A rank without self-time in this step has no excess.
            if rank_step.self_s <= 0.0 {
                continue;
            }
            let kept = &mut self.ranks[rank_step.rank.0 as usize];
            let level_s = job_step.common[rank_step.place.role as usize];
            let own_s = own[index] * rank_step.fair_s / rank_step.self_s;
            kept.steps += 1;
            kept.own_s += own_s;
            kept.excess_s += own_s - level_s;
            if kept.steps >= READ_EVERY {
                let from = kept.from.unwrap_or(Time::ZERO);
                let waited = job_step
                    .view
                    .causes
                    .waited_for_cpu(rank_step.rank, from, job_step.view.roster);
                kept.close(waited);
            }
        }
        if matrix.step.is_multiple_of(READ_EVERY) {
            self.judge(job_step);
        }
    }

    fn judge(&mut self, job_step: &JobStep<'_>) {
        let limits = &job_step.view.limits.causes;
        let mut of_role: Vec<Vec<f64>> = vec![Vec::new(); job_step.matrix.roles.len()];
        for rank_step in &job_step.matrix.rank_steps {
            let proportion = self.ranks[rank_step.rank.0 as usize].sums.proportion();
            of_role[rank_step.place.role as usize].extend(proportion);
        }
        let usual: Vec<f64> = of_role
            .iter_mut()
            .map(|role| stats::median(role).unwrap_or(0.0))
            .collect();
        for rank_step in &job_step.matrix.rank_steps {
            let kept = &mut self.ranks[rank_step.rank.0 as usize];
            let explained = kept.sums.explained(usual[rank_step.place.role as usize]);
            let is_most = |share: &f64| *share >= limits.explained_share;
            kept.explained = explained.filter(is_most).unwrap_or(0.0).min(1.0);
        }
    }

    /// Returns the share of a rank's excess over its peers that is CPU wait, or zero if that is not most of it.
    pub fn explained(&self, rank: Rank) -> f64 {
        self.ranks.get(rank.0 as usize).map_or(0.0, |kept| kept.explained)
    }
}

impl RankWait {
    /// Closes an interval when a reading arrives. `waited` holds the seconds of CPU wait since the reading before, and
    /// the time of this reading.
    fn close(&mut self, waited: Option<(f64, Time)>) {
        let Some((waited_s, at)) = waited else { return };
        if self.from.is_some() {
            self.sums.add(self.own_s, self.excess_s, waited_s);
        }
        (self.from, self.steps) = (Some(at), 0);
        (self.own_s, self.excess_s) = (0.0, 0.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds intervals of one second, with the rank's excess and its CPU wait in each.
    fn explained(usual: f64, waited: impl Fn(f64) -> f64) -> Option<f64> {
        let mut sums = Sums::default();
        for interval in 0..40_u32 {
            let excess_s = f64::from(interval % 5) * 0.05 - 0.1;
            sums.add(0.6 + excess_s, excess_s, waited(excess_s));
        }
        sums.explained(usual)
    }

    #[test]
    fn time_waiting_for_a_cpu_explains_what_it_grows_with() {
        let share = explained(0.0, |excess_s| 0.1 + excess_s);
        assert!(share.unwrap() > 0.95, "it waits whenever it is slow: {share:?}");
        assert_eq!(
            explained(0.3, |_| 0.2),
            None,
            "it waits as much when it is not slow: it sleeps"
        );
        assert_eq!(
            explained(0.51, |excess_s| 0.5 * (0.6 + excess_s)),
            None,
            "longer sequences: it waits in proportion to its work, as all do"
        );
        let share = explained(0.0, |excess_s| 0.01 * excess_s.max(0.0));
        assert!(
            share.is_none_or(|share| share < 0.02),
            "far too few seconds: {share:?}"
        );
        assert_eq!(Sums::default().explained(0.0), None);
    }
}
