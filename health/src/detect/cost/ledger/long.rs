//! Steps far longer than usual, and time without reports. Decides whether incidents account for them.

use serde::{Deserialize, Serialize};

/// Limits for an isolated long step. At most `ALONE` long steps in a row are isolated; more are a slowdown. More than
/// one group of them in `RARE` steps is a pattern. Incidents cover both slowdowns and patterns.
const ALONE: u32 = 2;
const RARE: u32 = 64;

/// What accounts for the excess time of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Teller {
    /// Open incidents may account for it.
    Incidents {
        /// The duration that a step would have without the incidents, divided by its actual duration.
        left_ratio: f64,
        /// True if the incidents account for the length of this step, because it waited for one of their ranks or
        /// because they cover all ranks.
        is_theirs: bool,
    },
    /// An isolated stall: the step alone is far too long, and no rule has seen it.
    Stall,
    /// No cause is known so far.
    Nobody,
}

impl Teller {
    pub(super) fn left_ratio(self) -> f64 {
        match self {
            Teller::Incidents { left_ratio, .. } => left_ratio,
            Teller::Stall | Teller::Nobody => 1.0,
        }
    }
}

/// The latest group of consecutive steps that are far too long.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Long {
    /// Number of such steps in a row, and their excess over ordinary steps in seconds. The excess leaves out stalls and
    /// steps for which an incident already accounts.
    pub row: u32,
    pub more_s: f64,
    /// `left_ratio` of the incidents at the first of these steps.
    left_ratio: f64,
    /// Number of ordinary steps since the last long step, or `None` if there was no long step.
    before: Option<u32>,
}

impl Long {
    /// Returns true if another long step would be isolated.
    pub fn is_rare(&self) -> bool {
        self.row < ALONE && self.before.is_none_or(|steps| steps >= RARE)
    }

    /// Takes the excess time of a step, or 0 for an ordinary step. Returns the seconds for which nothing else accounts.
    pub fn step(&mut self, more_s: f64, teller: Teller) -> f64 {
        if more_s > 0.0 {
            self.row += 1;
            match teller {
                Teller::Stall => return more_s,
                Teller::Incidents { is_theirs: true, .. } => {}
                Teller::Incidents { .. } | Teller::Nobody => {
                    if self.more_s == 0.0 {
                        self.left_ratio = teller.left_ratio();
                    }
                    self.more_s += more_s;
                }
            }
            return 0.0;
        }
        if self.row > 0 {
            (self.row, self.before) = (0, Some(0));
        }
        self.before = self.before.map(|steps| steps.saturating_add(1));
        let pending_s = std::mem::take(&mut self.more_s);
        if self.is_told(teller.left_ratio()) {
            0.0
        } else {
            pending_s
        }
    }

    /// Returns true if an incident that was raised after the long steps began accounts for them.
    pub fn is_told(&self, left_ratio: f64) -> bool {
        left_ratio < 0.99 * self.left_ratio
    }
}

/// Time without reports, for which later steps may still account.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Late {
    pub owed_s: f64,
    /// How much less time has passed between reports since then than the reported steps took: the maximum so far, and
    /// the current value.
    pub most_s: f64,
    pub ahead_s: f64,
}

impl Late {
    /// Takes the difference between a step's duration and the time since the report before it. Returns the seconds for
    /// which it now accounts.
    pub fn step(&mut self, sooner_s: f64) -> f64 {
        self.ahead_s += sooner_s;
        let most_s = self.ahead_s.clamp(self.most_s, self.owed_s.max(self.most_s));
        let heard_s = most_s - self.most_s;
        self.most_s = most_s;
        heard_s
    }
}
