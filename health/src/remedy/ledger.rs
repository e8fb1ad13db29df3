//! What was done and what was asked for, by one job or by all jobs of a site: what every limit counts.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Ask, Incident, Response};
use crate::id::JobId;
use crate::verdict::Finding;

/// Most places of which it is remembered that they asked. More are as good as this many.
const MOST_PLACES: usize = 4096;
/// Most deeds that are remembered; budgets are far below.
const MOST_DEEDS: usize = 4096;

/// Something that was done, or would have been.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Deed {
    /// When, milliseconds since 1970.
    pub unix_ms: u64,
    /// To whom.
    pub job: JobId,
    /// By what its budgets go, as in the [`Ask`].
    #[serde(default)]
    pub account: Arc<str>,
    /// For which incident.
    pub incident: Incident,
    /// For what.
    pub finding: Finding,
    /// Where the trouble was.
    pub place: Arc<str>,
    /// What.
    pub response: Response,
    /// By whom.
    pub mark: Arc<str>,
    /// Until then nobody else treats the same, milliseconds since 1970.
    pub until_ms: u64,
    /// It was only said what would be done.
    pub dry: bool,
    /// Its evidence was none of a real job.
    #[serde(default)]
    pub rehearsed: bool,
}

impl Deed {
    /// Whose budgets it took from.
    pub(super) fn account(&self) -> &str {
        super::account(&self.account, &self.job)
    }
}

/// It is open: so many asked at once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Breaker {
    /// Since when, milliseconds since 1970.
    pub unix_ms: u64,
    /// Places that had asked by then.
    pub places: u32,
}

/// Who asked of late, and what comes of too many.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Asked {
    /// When each place asked last, milliseconds since 1970.
    #[serde(default)]
    pub asks: BTreeMap<Arc<str>, u64>,
    /// Open, if it is. Whoever closes it takes it out.
    #[serde(default)]
    pub breaker: Option<Breaker>,
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Ledger {
    /// What was done, oldest first.
    #[serde(default)]
    pub deeds: Vec<Deed>,
    /// By jobs that mean it.
    #[serde(flatten)]
    pub live: Asked,
    /// By jobs that only say what they would do, or rehearse: whatever they ask stops no other.
    #[serde(default)]
    pub trial: Asked,
}

impl Asked {
    /// Somebody asks; opens the breaker when too many places do within `window_ms`.
    pub(super) fn ask(&mut self, now_ms: u64, ask: &Ask, window_ms: u64, most: u32) {
        self.asks.insert(ask.place(), now_ms);
        self.asks.retain(|_, at| now_ms.saturating_sub(*at) < window_ms);
        while self.asks.len() > MOST_PLACES {
            self.asks.pop_first();
        }
        let places = u32::try_from(self.asks.len()).unwrap_or(u32::MAX);
        match &mut self.breaker {
            Some(breaker) => breaker.places = breaker.places.max(places),
            None if places >= most.max(1) => {
                self.breaker = Some(Breaker {
                    unix_ms: now_ms,
                    places,
                });
            }
            None => {}
        }
    }
}

impl Ledger {
    /// Something is done. What is older than `window_ms` and protects nothing is forgotten.
    pub(super) fn note(&mut self, deed: Deed, window_ms: u64) {
        let now_ms = deed.unix_ms;
        self.deeds.push(deed);
        self.deeds
            .retain(|deed| now_ms.saturating_sub(deed.unix_ms) < window_ms || deed.until_ms > now_ms);
        let surplus = self.deeds.len().saturating_sub(MOST_DEEDS);
        self.deeds.drain(..surplus);
    }

    /// Deeds within the window of which `is_meant` is true. One in the future counts: some clock was set back.
    pub(super) fn count(&self, now_ms: u64, window_ms: u64, is_meant: impl Fn(&Deed) -> bool) -> u32 {
        let counted = self
            .deeds
            .iter()
            .filter(|deed| now_ms.saturating_sub(deed.unix_ms) < window_ms && is_meant(deed));
        u32::try_from(counted.count()).unwrap_or(u32::MAX)
    }
}
