//! Steps far longer than usual, and time in which nothing was heard: who tells of them, and what nobody does.

use serde::{Deserialize, Serialize};

/// More of them in a row are a slowness, and more than one in so many steps are a habit: both are incidents' to tell.
const ALONE: u32 = 2;
const RARE: u32 = 64;

/// Who tells of what a step took too long.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Teller {
    /// Incidents that are open.
    Incidents {
        /// What a step would take without them, over what it takes.
        left_ratio: f64,
        /// They tell of this step's length: whom it waited for is one of theirs, or all are.
        is_theirs: bool,
    },
    /// It is far too long by itself, and rules have not seen it.
    Stall,
    /// Nobody so far.
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
    /// How many in a row, and what those that rules have seen took beyond ordinary ones, seconds.
    pub row: u32,
    pub more_s: f64,
    /// What was left of a step without incidents when that began.
    left_ratio: f64,
    /// Some were there before, so many ordinary steps ago.
    before: Option<u32>,
}

impl Long {
    /// Whether another one would be by itself.
    pub fn is_rare(&self) -> bool {
        self.row < ALONE && self.before.is_none_or(|steps| steps >= RARE)
    }

    /// Takes a step that took so much more, 0: an ordinary one. Seconds that nobody else tells of.
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

    /// An incident that was raised since they began tells of them.
    pub fn is_told(&self, left_ratio: f64) -> bool {
        left_ratio < 0.99 * self.left_ratio
    }
}

/// Time in which nothing was heard, of which steps may tell yet.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Late {
    pub owed_s: f64,
    /// How much sooner than they took steps have been told since, the most, and now.
    pub most_s: f64,
    pub ahead_s: f64,
}

impl Late {
    /// Takes a step that was told so many seconds sooner than it took. Seconds that were heard of after all.
    pub fn step(&mut self, sooner_s: f64) -> f64 {
        self.ahead_s += sooner_s;
        let most_s = self.ahead_s.clamp(self.most_s, self.owed_s.max(self.most_s));
        let heard_s = most_s - self.most_s;
        self.most_s = most_s;
        heard_s
    }
}
