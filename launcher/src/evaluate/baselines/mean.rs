//! The rule of Microsoft's post-training toolkit: the slowest rank is named if its mean over 50 steps exceeds 1.2 times
//! the mean of all ranks in three consecutive checks. There is one check every 10 steps.
//!
//! The toolkit uses step time. Here the rule gets self-time, since all ranks of a synchronous job have the same wall
//! time. Source: <https://github.com/microsoft/post-training-toolkit>.

use super::{Rule, Sample, Window};

const TIMES: f64 = 1.2;
const WINDOW_STEPS: usize = 50;
const CHECKS: u32 = 3;

#[derive(Default)]
pub(super) struct MeanTimes {
    window: Window,
    slowest: Option<u32>,
    times: u32,
}

impl Rule for MeanTimes {
    fn row(&mut self, row: &[Sample], name: &mut dyn FnMut(u32)) {
        let Some(means) = self.window.take(row, WINDOW_STEPS, |sample| sample.own) else {
            return;
        };
        let mean = means.iter().map(|(_, mean)| mean).sum::<f64>() / means.len() as f64;
        let slowest = means
            .into_iter()
            .max_by(|a, b| a.1.total_cmp(&b.1))
            .filter(|(_, own)| *own > TIMES * mean)
            .map(|(rank, _)| rank);
        self.times = if slowest.is_some() && slowest == self.slowest {
            self.times + 1
        } else {
            u32::from(slowest.is_some())
        };
        self.slowest = slowest;
        if let Some(rank) = slowest.filter(|_| self.times >= CHECKS) {
            name(rank);
        }
    }
}
