//! The rule of DLRover: a rank is named if it takes more than twice the median in two consecutive rounds.
//!
//! DLRover's round is a benchmark before training. Here a round is a window of training steps, which DLRover itself
//! never measures. Source:
//! <https://github.com/intelligent-machine-learning/dlrover/blob/master/docs/design/straggler-detection.md>.

use std::collections::BTreeSet;

use super::{Rule, Sample, Window, middle};

const TIMES: f64 = 2.0;
const ROUND_STEPS: usize = 10;

#[derive(Default)]
pub(super) struct TwiceMedian {
    window: Window,
    suspects: BTreeSet<u32>,
}

impl Rule for TwiceMedian {
    fn row(&mut self, row: &[Sample], name: &mut dyn FnMut(u32)) {
        let Some(means) = self.window.take(row, ROUND_STEPS, |sample| sample.own) else {
            return;
        };
        let limit = TIMES * middle(&mut means.iter().map(|(_, mean)| *mean).collect::<Vec<_>>());
        let slow: BTreeSet<u32> = means
            .iter()
            .filter(|(_, mean)| *mean > limit)
            .map(|(rank, _)| *rank)
            .collect();
        slow.intersection(&self.suspects).for_each(|rank| name(*rank));
        self.suspects = slow;
    }
}
