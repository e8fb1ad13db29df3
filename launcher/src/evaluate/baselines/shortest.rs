//! The rule of C4D and TraceML: the rank with the shortest wait in collectives delays its peers.
//!
//! Names a rank if it had the shortest wait in at least 80 % of the last 50 steps and its mean wait is at most half of
//! the median. The descriptions leave the thresholds to the operator. These thresholds avoid most of the noise.
//! Sources: Dong and others 2024, <https://arxiv.org/abs/2406.04594>; <https://github.com/traceopt-ai/traceml>.

use std::collections::VecDeque;

use super::{Rule, Sample, Window, at, middle};

const WINDOW_STEPS: usize = 50;
const SHARE: f64 = 0.8;
const OF_MEDIAN: f64 = 0.5;

#[derive(Default)]
pub(super) struct Shortest {
    window: Window,
    /// The rank with the shortest wait in each of the last steps.
    shortest: VecDeque<u32>,
}

impl Rule for Shortest {
    fn row(&mut self, row: &[Sample], name: &mut dyn FnMut(u32)) {
        if let Some(sample) = row.iter().min_by(|a, b| a.wait.total_cmp(&b.wait)) {
            self.shortest.push_back(sample.rank);
        }
        if self.shortest.len() > WINDOW_STEPS {
            self.shortest.pop_front();
        }
        let Some(means) = self.window.take(row, WINDOW_STEPS, |sample| sample.wait) else {
            return;
        };
        let median = middle(&mut means.iter().map(|(_, mean)| *mean).collect::<Vec<_>>());
        let mut wins: Vec<u32> = Vec::new();
        self.shortest.iter().for_each(|rank| *at(&mut wins, *rank) += 1);
        for (rank, mean) in means {
            let won = f64::from(wins.get(rank as usize).copied().unwrap_or(0));
            if won >= SHARE * WINDOW_STEPS as f64 && mean <= OF_MEDIAN * median {
                name(rank);
            }
        }
    }
}
