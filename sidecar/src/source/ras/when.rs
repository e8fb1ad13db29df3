//! Decides when to query the service: while ranks of this node make no progress, and from time to time.
//!
//! Any process of a job answers for the whole job, so only few sidecars query. The one with rank 0 queries first. The
//! next ones query later, in case the node with rank 0 is the one in trouble.

use std::time::Duration;

use paceline_health::event::Pulse;

/// Minimum time without progress before a query. The following constants adjust it.
const STILL: Duration = Duration::from_secs(8);
/// Upper limit of the time before a query, however slow the job's steps are.
const STILL_AT_MOST: Duration = Duration::from_secs(120);
/// The time before a query, as a multiple of the longest pause that ended by itself.
const BEYOND_USUAL: u64 = 2;
/// Addition to the time before a query, for each rank below this node's lowest rank.
const LATER: Duration = Duration::from_millis(500);
/// Nodes whose lowest rank is this or higher do not query.
const LAST_ASKING: u32 = 64;
/// Delay between two queries while ranks make no progress. It doubles each time, up to `LONGEST_PAUSE`.
const PAUSE: Duration = Duration::from_secs(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);
/// Intervals of regular queries, which only the node with rank 0 sends. They grow while there are no responses.
const FIRST: Duration = Duration::from_secs(30);
const REGULAR: Duration = Duration::from_secs(300);
const LONGEST_REGULAR: Duration = Duration::from_secs(3600);

/// Reason of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Ranks make no progress, so their counts can be compared.
    Still,
    /// A regular query is due.
    Regular,
}

/// The decision; see the module. Times are CLOCK_MONOTONIC in nanoseconds.
#[derive(Debug, Default)]
pub struct When {
    lowest: Option<u32>,
    still_ns: u64,
    usual_ns: u64,
    still_due_ns: u64,
    pause_ns: u64,
    regular_due_ns: u64,
    regular_ns: u64,
    asked_ns: u64,
}

fn ns(time: Duration) -> u64 {
    time.as_nanos() as u64
}

impl When {
    /// Records the progress of this node's ranks.
    pub fn notice(&mut self, pulses: &[Pulse], now_ns: u64) {
        self.lowest = pulses.iter().map(|pulse| pulse.rank.0).min();
        let still_ns = pulses.iter().map(|pulse| pulse.idle_ns).max().unwrap_or(0);
        if still_ns < self.still_ns {
            // The ranks resumed by themselves, so a pause of this length is usual here.
            self.usual_ns = self.usual_ns.max(self.still_ns);
        }
        if still_ns < ns(STILL) && now_ns >= self.still_due_ns.saturating_add(ns(LONGEST_PAUSE)) {
            self.pause_ns = 0;
        }
        self.still_ns = still_ns;
        if self.regular_due_ns == 0 && self.lowest == Some(0) {
            self.regular_due_ns = now_ns + ns(FIRST);
            self.regular_ns = ns(REGULAR);
        }
    }

    /// Returns the reason for a query if one is due now.
    pub fn due(&self, now_ns: u64) -> Option<Why> {
        let lowest = self.lowest.filter(|rank| *rank < LAST_ASKING)?;
        let usual = self.usual_ns.saturating_mul(BEYOND_USUAL);
        let still = usual.clamp(ns(STILL), ns(STILL_AT_MOST)) + u64::from(lowest) * ns(LATER);
        if self.still_ns >= still && now_ns >= self.still_due_ns {
            return Some(Why::Still);
        }
        (self.regular_due_ns != 0 && lowest == 0 && now_ns >= self.regular_due_ns).then_some(Why::Regular)
    }

    /// Records that a query was sent.
    pub fn asked(&mut self, why: Why, now_ns: u64) {
        if why == Why::Still {
            self.pause_ns = self
                .pause_ns
                .saturating_mul(2)
                .clamp(ns(PAUSE), ns(LONGEST_PAUSE));
            self.still_due_ns = now_ns + self.pause_ns;
        }
        self.asked_ns = now_ns;
        self.regular_due_ns = now_ns + ns(REGULAR);
    }

    /// Records whether the service responded.
    pub fn answered(&mut self, answered: bool) {
        self.regular_ns = if answered {
            ns(REGULAR)
        } else {
            let longer = self.regular_ns.saturating_mul(2);
            longer.clamp(ns(REGULAR), ns(LONGEST_REGULAR))
        };
        self.regular_due_ns = self.asked_ns + self.regular_ns;
    }
}

#[cfg(test)]
mod tests {
    use paceline_health::event::Phase;
    use paceline_health::id::Rank;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn pulse(rank: u32, idle_s: u64) -> Pulse {
        Pulse {
            rank: Rank(rank),
            restart: 0,
            step: 7,
            phase: Phase::Wait,
            idle_ns: idle_s * SECOND,
            alive: true,
        }
    }

    /// Returns at which of 600 seconds a node with lowest rank `lowest` queries. `still` returns its seconds without
    /// progress.
    fn asked(lowest: u32, still: impl Fn(u64) -> u64, answers: bool) -> Vec<(u64, Why)> {
        let mut when = When::default();
        let mut asked = Vec::new();
        for second in 1..=600 {
            let now_ns = second * SECOND;
            when.notice(&[pulse(lowest + 1, 0), pulse(lowest, still(second))], now_ns);
            if let Some(why) = when.due(now_ns) {
                when.asked(why, now_ns);
                when.answered(answers);
                asked.push((second, why));
            }
        }
        asked
    }

    #[test]
    fn a_job_that_runs_is_asked_now_and_then_by_one_node() {
        let asked_at = asked(0, |_| 0, true);
        assert_eq!(asked_at, [(31, Why::Regular), (331, Why::Regular)]);
        // Without responses, queries become less and less frequent.
        assert_eq!(asked(0, |_| 0, false).len(), 1);
        assert_eq!(asked(8, |_| 0, true), []);
        assert_eq!(When::default().due(SECOND), None);
    }

    #[test]
    fn one_that_stands_still_is_asked_more_and_more_rarely() {
        let still = |second: u64| second.saturating_sub(100);
        let times = |lowest| {
            let asked = asked(lowest, still, true).into_iter();
            asked
                .filter(|(_, why)| *why == Why::Still)
                .map(|(second, _)| second)
                .collect::<Vec<u64>>()
        };
        assert_eq!(times(0), [108, 128, 168, 248, 408]);
        // Other nodes query later, in the order of their ranks. Nodes with high ranks never query.
        assert_eq!(times(8).first(), Some(&112));
        assert_eq!(times(56).first(), Some(&136));
        assert!(times(64).is_empty());
    }

    #[test]
    fn what_is_usual_is_not_asked_about() {
        // Steps take 30 s, so ranks regularly make no progress for that long.
        let still = |second: u64| second % 30;
        let asked = asked(0, still, true);
        let still = asked.iter().filter(|(_, why)| *why == Why::Still).count();
        assert_eq!(still, 2, "{asked:?}");
    }
}
