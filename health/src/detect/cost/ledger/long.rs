//! Steps far longer than usual, and time without reports: whether incidents account for them.

use serde::{Deserialize, Serialize};

/// More of them in a row are a slowdown, and more than one in this many steps are a pattern: incidents cover both.
const ALONE: u32 = 2;
const RARE: u32 = 64;

/// What accounts for the excess time of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Teller {
    /// Open incidents.
    Incidents {
        /// What a step would take without them, divided by what it takes.
        left_ratio: f64,
        /// They account for this step's length: it waited for one of their ranks, or they cover all ranks.
        is_theirs: bool,
    },
    /// It is far too long by itself, and no rule has seen it.
    Stall,
    /// Nothing so far.
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

/// Steps that are far too long.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Long {
    /// Number in a row, and the excess over ordinary steps of those that rules have seen, seconds.
    pub row: u32,
    pub more_s: f64,
    /// Share of a step's time without incidents when they began.
    left_ratio: f64,
    /// Ordinary steps since the last ones, if there were any.
    before: Option<u32>,
}

impl Long {
    /// Whether another one would be isolated.
    pub fn is_rare(&self) -> bool {
        self.row < ALONE && self.before.is_none_or(|steps| steps >= RARE)
    }

    /// Takes a step's excess time; 0: an ordinary step. Returns the seconds that nothing else accounts for.
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

    /// Whether an incident raised since they began accounts for them.
    pub fn is_told(&self, left_ratio: f64) -> bool {
        left_ratio < 0.99 * self.left_ratio
    }
}

/// Time without reports that later steps may still account for.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Late {
    pub owed_s: f64,
    /// How much sooner than they took steps have been reported since: the maximum, and now.
    pub most_s: f64,
    pub ahead_s: f64,
}

impl Late {
    /// Takes a step that was reported this much sooner than it took. Returns the seconds now accounted for.
    pub fn step(&mut self, sooner_s: f64) -> f64 {
        self.ahead_s += sooner_s;
        let most_s = self.ahead_s.clamp(self.most_s, self.owed_s.max(self.most_s));
        let heard_s = most_s - self.most_s;
        self.most_s = most_s;
        heard_s
    }
}
