//! Who waits least in the collectives is the one that the others wait for: C4D, TraceML.
//!
//! A rank that was the shortest in at least 80 % of 50 steps, and waited at most half of the others' median over them.
//! The descriptions leave shares to the operator; these spare it most of the noise.
//! Sources: Dong and others 2024, <https://arxiv.org/abs/2406.04594>; <https://github.com/traceopt-ai/traceml>.

use super::{Rule, Sample, Window, at, middle};

const WINDOW_STEPS: u32 = 50;
const SHARE: f64 = 0.8;
const OF_MEDIAN: f64 = 0.5;

#[derive(Default)]
pub(super) struct Shortest {
    window: Window,
    /// By rank.
    wins: Vec<u32>,
}

impl Rule for Shortest {
    fn row(&mut self, row: &[Sample], name: &mut dyn FnMut(u32)) {
        if let Some(sample) = row.iter().min_by(|a, b| a.wait.total_cmp(&b.wait)) {
            *at(&mut self.wins, sample.rank) += 1;
        }
        let Some(means) = self.window.take(row, WINDOW_STEPS, |sample| sample.wait) else {
            return;
        };
        let median = middle(&mut means.iter().map(|(_, mean)| *mean).collect::<Vec<_>>());
        let wins = std::mem::take(&mut self.wins);
        for (rank, mean) in means {
            let won = f64::from(wins.get(rank as usize).copied().unwrap_or(0));
            if won >= SHARE * f64::from(WINDOW_STEPS) && mean <= OF_MEDIAN * median {
                name(rank);
            }
        }
    }
}
