//! Running totals of one rank; the difference of two tallies is what happened between them.

use crate::time::Time;

/// Totals since the rank's statistics began. Seconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// The last row in it: its step, the time it closed, and the journal entry of the rank's sample.
    pub step: u64,
    pub at: Time,
    pub entry: u64,
    pub rows: u64,
    /// Sum of ln(self-time over peers).
    pub x: f64,
    pub self_s: f64,
    pub peers_self_s: f64,
    pub wait_s: f64,
    pub peers_wait_s: f64,
    /// What the step would have been shorter if the rank had run like its peers.
    pub gain_s: f64,
    pub dur_s: f64,
}

impl Tally {
    /// Mean of one total over the rows since `start`.
    pub fn mean_since(&self, start: &Tally, pick: fn(&Tally) -> f64) -> f64 {
        let rows = self.rows.saturating_sub(start.rows).max(1);
        (pick(self) - pick(start)) / rows as f64
    }

    /// Self-time over the peers', geometric mean since `start`.
    pub fn slowdown_since(&self, start: &Tally) -> f64 {
        self.mean_since(start, |tally| tally.x).exp()
    }

    /// Share of the steps' time that would be won.
    pub fn impact_since(&self, start: &Tally) -> f64 {
        let dur = self.dur_s - start.dur_s;
        if dur > 0.0 {
            (self.gain_s - start.gain_s) / dur
        } else {
            0.0
        }
    }
}
