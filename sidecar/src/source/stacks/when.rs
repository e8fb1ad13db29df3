//! Decides when to query ranks: once they have made no progress for longer than usual for this job, and then less and
//! less often.

use std::time::Duration;

use paceline_health::event::{Phase, Pulse};
use paceline_health::id::Rank;

/// Minimum time without progress before a query. It is short enough to query before the collective libraries time out
/// and before a finding names a rank.
const STILL: Duration = Duration::from_secs(5);
/// Upper limit of the time before a query, however slow the job's steps are.
const STILL_AT_MOST: Duration = Duration::from_secs(30);
/// The time before a query, as a multiple of the longest pause that ended by itself.
const BEYOND_USUAL: u64 = 2;
/// Factor on the time before a query during checkpoints and evaluations, which are expected to take long.
const PATIENCE: u64 = 6;
/// Delay between two queries while ranks make no progress. It doubles each time, up to `LONGEST_PAUSE`.
const PAUSE: Duration = Duration::from_secs(15);
const LONGEST_PAUSE: Duration = Duration::from_secs(600);

/// The decision; see the module. Times are CLOCK_MONOTONIC in nanoseconds.
#[derive(Debug, Default)]
pub struct When {
    /// Number of live ranks, and the sum of their restart counts. A pause that ends because these change has not ended
    /// by itself.
    group: (usize, u64),
    /// The longest time without progress at present, not counting ranks in checkpoints and evaluations.
    still_ns: u64,
    /// The longest such time that ended by itself.
    usual_ns: u64,
    due_ns: u64,
    pause_ns: u64,
}

fn ns(time: Duration) -> u64 {
    time.as_nanos() as u64
}

impl When {
    /// Records the progress of this node's ranks. Returns the ranks to query now, with their restart counts.
    pub fn notice(&mut self, pulses: &[Pulse], now_ns: u64) -> Vec<(Rank, u32)> {
        let living = || pulses.iter().filter(|pulse| pulse.alive);
        let restarts = living().map(|pulse| u64::from(pulse.restart)).sum();
        let group = (living().count(), restarts);
        let ordinary = living().filter(|pulse| !is_slow(pulse.phase));
        let still_ns = ordinary.map(|pulse| pulse.idle_ns).max().unwrap_or(0);
        if still_ns < self.still_ns && group == self.group {
            self.usual_ns = self.usual_ns.max(self.still_ns);
            self.due_ns = self.due_ns.min(now_ns + ns(PAUSE));
            self.pause_ns = 0;
        }
        if group != self.group {
            (self.due_ns, self.pause_ns) = (0, 0);
        }
        (self.group, self.still_ns) = (group, still_ns);
        let usual = self.usual_ns.saturating_mul(BEYOND_USUAL);
        let enough_ns = usual.clamp(ns(STILL), ns(STILL_AT_MOST));
        let is_still = |pulse: &&Pulse| {
            let patience = if is_slow(pulse.phase) { PATIENCE } else { 1 };
            pulse.idle_ns >= enough_ns.saturating_mul(patience)
        };
        let still: Vec<(Rank, u32)> = living()
            .filter(is_still)
            .map(|pulse| (pulse.rank, pulse.restart))
            .collect();
        if still.is_empty() || now_ns < self.due_ns {
            return Vec::new();
        }
        let longer_ns = self.pause_ns.saturating_mul(2);
        self.pause_ns = longer_ns.clamp(ns(PAUSE), ns(LONGEST_PAUSE));
        self.due_ns = now_ns + self.pause_ns;
        still
    }
}

fn is_slow(phase: Phase) -> bool {
    matches!(phase, Phase::Checkpoint | Phase::Evaluation)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    /// Returns at which of 600 seconds ranks are queried. `still` returns rank 1's seconds without progress.
    fn asked(phase: Phase, still: impl Fn(u64) -> u64) -> Vec<u64> {
        let pulse = |rank, idle_s| Pulse {
            rank: Rank(rank),
            restart: 0,
            step: 7,
            phase,
            idle_ns: idle_s * SECOND,
            alive: true,
        };
        let mut when = When::default();
        let mut asked = Vec::new();
        for second in 1..=600 {
            let pulses = [pulse(0, 0), pulse(1, still(second))];
            let ranks = when.notice(&pulses, second * SECOND);
            if !ranks.is_empty() {
                assert_eq!(ranks, [(Rank(1), 0)], "who moves is not asked");
                asked.push(second);
            }
        }
        asked
    }

    #[test]
    fn a_rank_that_stands_still_is_asked_more_and_more_rarely() {
        let still = |second: u64| second.saturating_sub(100);
        assert_eq!(asked(Phase::Compute, still), [105, 120, 150, 210, 330, 570]);
        assert_eq!(asked(Phase::Checkpoint, still), [130, 145, 175, 235, 355, 595]);
    }

    #[test]
    fn a_healthy_job_is_not_asked() {
        assert!(asked(Phase::Wait, |_| 0).is_empty());
        // Steps take 14 s, so ranks regularly make no progress for that long. They are queried once, until this pause
        // is known to be usual.
        assert_eq!(asked(Phase::Compute, |second| second % 14), [5]);
    }
}
