//! The rule of NVIDIA's resiliency extension: a rank is named if the best rank's time divided by its own is below 0.75.
//!
//! The extension's scores compare kernel times of a reporting interval with those of the fastest rank. Its interval is
//! 60 s or more. Here the interval is the last 50 steps, evaluated every 10, which lets the rule decide sooner. Source:
//! <https://nvidia.github.io/nvidia-resiliency-ext/straggler_det/usage_guide.html>.

use super::{Rule, Sample, Window};

const THRESHOLD: f64 = 0.75;
const INTERVAL_STEPS: usize = 50;

#[derive(Default)]
pub(super) struct Relative {
    window: Window,
}

impl Rule for Relative {
    fn row(&mut self, row: &[Sample], name: &mut dyn FnMut(u32)) {
        let Some(means) = self.window.take(row, INTERVAL_STEPS, |sample| sample.own) else {
            return;
        };
        let best = means.iter().map(|(_, mean)| *mean).fold(f64::INFINITY, f64::min);
        for (rank, mean) in means {
            if best / mean < THRESHOLD {
                name(rank);
            }
        }
    }
}
