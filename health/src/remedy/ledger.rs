//! Actions and requests of one job or of all jobs of a site. All limits are based on them.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Ask, Incident, Response};
use crate::id::JobId;
use crate::verdict::Finding;

/// Maximum number of places whose requests are remembered. More would make no difference.
const MOST_PLACES: usize = 4096;
/// Maximum number of actions that are remembered. Budgets are far below it.
const MOST_DEEDS: usize = 4096;

/// An action that was carried out, or that would have been if it had not been a dry run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Deed {
    /// When it was decided, in milliseconds since 1970.
    pub unix_ms: u64,
    /// The job.
    pub job: JobId,
    /// The account that its budgets are charged to, as in the [`Ask`].
    #[serde(default)]
    pub account: Arc<str>,
    /// The incident.
    pub incident: Incident,
    /// The finding.
    pub finding: Finding,
    /// The place of the problem.
    pub place: Arc<str>,
    /// The response.
    pub response: Response,
    /// The mark of the decision, which includes the owner.
    pub mark: Arc<str>,
    /// The time until which no other owner may act on the same job, in milliseconds since 1970.
    pub until_ms: u64,
    /// True for a dry run, in which the action was only reported.
    pub dry: bool,
    /// True if its evidence was not from a real job.
    #[serde(default)]
    pub rehearsed: bool,
}

impl Deed {
    /// Returns the account whose budgets it used.
    pub(super) fn account(&self) -> &str {
        super::account(&self.account, &self.job)
    }
}

/// An open circuit breaker. It opened because too many places made requests at once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Breaker {
    /// When it opened, in milliseconds since 1970.
    pub unix_ms: u64,
    /// Number of places with requests so far.
    pub places: u32,
}

/// Recent requests, and the circuit breaker that opens if there are too many.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Asked {
    /// The last request of each place, milliseconds since 1970.
    #[serde(default)]
    pub asks: BTreeMap<Arc<str>, u64>,
    /// The breaker, if it is open. An operator resets it by removing this.
    #[serde(default)]
    pub breaker: Option<Breaker>,
}

/// The ledger that the module's documentation describes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Ledger {
    /// Actions, oldest first.
    #[serde(default)]
    pub deeds: Vec<Deed>,
    /// Requests of jobs that act.
    #[serde(flatten)]
    pub live: Asked,
    /// Requests of dry runs and rehearsals. These never block jobs that act.
    #[serde(default)]
    pub trial: Asked,
}

impl Asked {
    /// Records a request. Opens the breaker if too many places make requests within `window_ms`.
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
    /// Records an action. Actions older than `window_ms` whose mark has expired are dropped.
    pub(super) fn note(&mut self, deed: Deed, window_ms: u64) {
        let now_ms = deed.unix_ms;
        self.deeds.push(deed);
        self.deeds
            .retain(|deed| now_ms.saturating_sub(deed.unix_ms) < window_ms || deed.until_ms > now_ms);
        let surplus = self.deeds.len().saturating_sub(MOST_DEEDS);
        self.deeds.drain(..surplus);
    }

    /// Counts matching actions within the window. An action in the future counts too, because it means that some clock
    /// was set back.
    pub(super) fn count(&self, now_ms: u64, window_ms: u64, is_meant: impl Fn(&Deed) -> bool) -> u32 {
        let counted = self
            .deeds
            .iter()
            .filter(|deed| now_ms.saturating_sub(deed.unix_ms) < window_ms && is_meant(deed));
        u32::try_from(counted.count()).unwrap_or(u32::MAX)
    }
}
