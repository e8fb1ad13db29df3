//! The guard, which every remedy must pass. It receives requests and returns decisions.
//!
//! Call [`Guard::ask`] for each raised or changed verdict, [`Guard::over`] when one clears, and [`Guard::advance`] at
//! [`Guard::wake_at`]; after each call, take the decisions from [`Guard::poll`]. Store the result of [`Guard::save`]
//! before a decision is carried out, so that a guard opened from it after a restart does nothing twice.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Ask, Asked, Decision, Deed, Incident, Ledger, Outcome, Reason, Response, Rules};
use crate::frame::Provenance;

/// Maximum number of incidents whose last decision is remembered.
const MOST_INCIDENTS: usize = 10_000;

/// A request during its hold time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Waiting {
    since_ms: u64,
    ask: Ask,
}

/// The state that survives a restart.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Saved {
    /// The job's ledger.
    pub ledger: Ledger,
    /// Requests that were waiting for the end of their hold time.
    waiting: Vec<Waiting>,
    /// Incidents that have had a remedy.
    done: Vec<Incident>,
}

/// Decides on requests, as the module's documentation describes.
#[derive(Debug)]
pub struct Guard {
    rules: Rules,
    ledger: Ledger,
    waiting: Vec<Waiting>,
    done: BTreeMap<Incident, ()>,
    /// The last refusal of each incident. It is kept so that the audit log records each refusal once.
    refused: BTreeMap<Incident, &'static str>,
    out: VecDeque<Decision>,
}

impl Guard {
    /// Creates a guard that continues from `saved`. Waiting requests are refused, because their reason may no longer
    /// exist after a restart.
    pub fn open(rules: Rules, saved: Saved, now_ms: u64) -> Guard {
        let mut guard = Guard {
            rules,
            ledger: saved.ledger,
            waiting: Vec::new(),
            done: saved.done.into_iter().map(|incident| (incident, ())).collect(),
            refused: BTreeMap::new(),
            out: VecDeque::new(),
        };
        for waiting in saved.waiting {
            guard.done.insert(waiting.ask.incident, ());
            guard.refuse(now_ms, waiting.ask, Reason::Restarted);
        }
        guard
    }

    /// Returns the state to store.
    pub fn save(&self) -> Saved {
        Saved {
            ledger: self.ledger.clone(),
            waiting: self.waiting.clone(),
            done: self.done.keys().copied().collect(),
        }
    }

    /// Returns the active rules.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Handles a request. `site` contains the actions and requests of all jobs of the site.
    pub fn ask(&mut self, now_ms: u64, ask: Ask, site: &mut Ledger) {
        if let Some(reason) = self.is_unfit(&ask) {
            return self.refuse(now_ms, ask, reason);
        }
        let limits = &self.rules.limits;
        let window_ms = limits.breaker_window_s * 1000;
        let is_trial = self.is_trial(&ask);
        asked(&mut self.ledger, is_trial).ask(now_ms, &ask, window_ms, limits.breaker_job_places);
        asked(site, is_trial).ask(now_ms, &ask, window_ms, limits.breaker_site_places);
        if let Some(reason) = self.is_broken(&ask, site) {
            // The waiting requests are part of the same burst, so they are refused too.
            for waiting in std::mem::take(&mut self.waiting) {
                self.refuse(now_ms, waiting.ask, reason.clone());
            }
            return self.refuse(now_ms, ask, reason);
        }
        self.waiting.push(Waiting {
            since_ms: now_ms,
            ask,
        });
    }

    /// Handles the end of an incident by refusing its waiting requests.
    pub fn over(&mut self, now_ms: u64, incident: Incident) {
        let is_over = |waiting: &mut Waiting| waiting.ask.incident == incident;
        let over: Vec<Waiting> = self.waiting.extract_if(.., is_over).collect();
        for waiting in over {
            self.refuse(now_ms, waiting.ask, Reason::Cleared);
        }
    }

    /// Decides the requests whose hold time has passed.
    pub fn advance(&mut self, now_ms: u64, site: &mut Ledger) {
        let rules = &self.rules;
        let is_due = |waiting: &mut Waiting| {
            now_ms.saturating_sub(waiting.since_ms) >= rules.hold_ms(waiting.ask.finding)
        };
        let due: Vec<Waiting> = self.waiting.extract_if(.., is_due).collect();
        for waiting in due {
            self.decide(now_ms, waiting, site);
        }
    }

    /// Refuses all waiting requests because the actions of other jobs are unknown.
    pub fn advance_blind(&mut self, now_ms: u64, why: &str) {
        for waiting in std::mem::take(&mut self.waiting) {
            self.refuse(now_ms, waiting.ask, Reason::NoLedger(Arc::from(why)));
        }
    }

    /// Returns when [`Guard::advance`] will next have a request to decide, in milliseconds since 1970.
    pub fn wake_at(&self) -> Option<u64> {
        let due = |waiting: &Waiting| {
            let hold_ms = self.rules.hold_ms(waiting.ask.finding);
            waiting.since_ms.saturating_add(hold_ms)
        };
        self.waiting.iter().map(due).min()
    }

    /// Returns the next decision.
    pub fn poll(&mut self) -> Option<Decision> {
        self.out.pop_front()
    }

    /// Returns the reason to refuse a request at once, if there is one that waiting cannot change.
    fn is_unfit(&self, ask: &Ask) -> Option<Reason> {
        if !self.rules.trusts(ask.provenance) {
            return Some(Reason::NotLive(ask.provenance));
        }
        if ask.observe_only {
            return Some(Reason::ObserveOnly);
        }
        if self.rules.requeue_needs_node && ask.response == Response::Requeue && ask.node().is_none() {
            return Some(Reason::NoNode);
        }
        if ask.severity < self.rules.limits.severity {
            return Some(Reason::Severity(ask.severity));
        }
        let is_known = |waiting: &Waiting| waiting.ask.incident == ask.incident;
        let twice = self.done.contains_key(&ask.incident) || self.waiting.iter().any(is_known);
        twice.then_some(Reason::Twice)
    }

    fn is_broken(&self, ask: &Ask, site: &Ledger) -> Option<Reason> {
        let breaker = |ledger: &Ledger| match self.is_trial(ask) {
            true => ledger.trial.breaker.clone(),
            false => ledger.live.breaker.clone(),
        };
        let breaker = breaker(&self.ledger).or_else(|| breaker(site))?;
        Some(Reason::Breaker(breaker.places))
    }

    /// Returns true if the request is part of a dry run or is not about a real fault.
    fn is_trial(&self, ask: &Ask) -> bool {
        !self.rules.act || is_rehearsed(ask)
    }

    fn decide(&mut self, now_ms: u64, waiting: Waiting, site: &mut Ledger) {
        let Waiting { since_ms, ask } = waiting;
        if let Some(reason) = self.is_refused(now_ms, since_ms, &ask, site) {
            return self.refuse(now_ms, ask, reason);
        }
        let Spans { mark_ms, window_ms } = self.spans();
        let dry = !self.rules.act;
        let deed = Deed {
            unix_ms: now_ms,
            job: ask.job.clone(),
            account: ask.account.clone(),
            incident: ask.incident,
            finding: ask.finding,
            place: ask.place(),
            response: ask.response,
            mark: self.mark(&ask),
            until_ms: now_ms.saturating_add(mark_ms),
            dry,
            rehearsed: is_rehearsed(&ask),
        };
        self.done.insert(ask.incident, ());
        while self.done.len() > MOST_INCIDENTS {
            self.done.pop_first();
        }
        self.ledger.note(deed.clone(), window_ms);
        site.note(deed, window_ms);
        if dry {
            return self.refuse(now_ms, ask, Reason::DryRun);
        }
        let mark = self.mark(&ask);
        self.out.push_back(Decision {
            unix_ms: now_ms,
            outcome: Outcome::Act,
            ask,
            mark,
        });
    }

    /// Checks all limits. If several apply, the most informative reason is returned.
    fn is_refused(&self, now_ms: u64, since_ms: u64, ask: &Ask, site: &Ledger) -> Option<Reason> {
        let limits = &self.rules.limits;
        let void_ms = self
            .rules
            .hold_ms(ask.finding)
            .saturating_add(limits.expiry_s * 1000);
        if now_ms.saturating_sub(since_ms) > void_ms {
            return Some(Reason::Expired);
        }
        if let Some(reason) = self.is_broken(ask, site) {
            return Some(reason);
        }
        // Actions of rehearsals count only toward the limits of rehearsals.
        let (dry, rehearsed) = (!self.rules.act, is_rehearsed(ask));
        let is_alike = |deed: &Deed| deed.dry == dry && deed.rehearsed == rehearsed;
        let is_of_job = |deed: &Deed| is_alike(deed) && deed.account() == ask.account();
        let own = self.mark(ask);
        let both = || self.ledger.deeds.iter().chain(&site.deeds);
        let is_others = |deed: &&Deed| {
            let is_same = deed.job == ask.job && !deed.dry && deed.until_ms > now_ms;
            is_same && owner(&deed.mark) != owner(&own)
        };
        if let Some(deed) = both().find(is_others) {
            return Some(Reason::Owned(deed.mark.clone()));
        }
        let Spans { window_ms, .. } = self.spans();
        // A requeued job has a new run directory and a new ledger, so only the site's ledger contains its earlier runs.
        let count = |is_meant: &dyn Fn(&Deed) -> bool| {
            let (own, all) = (&self.ledger, site);
            let own = own.count(now_ms, window_ms, is_meant);
            own.max(all.count(now_ms, window_ms, is_meant))
        };
        let is_here = |deed: &Deed| deed.finding == ask.finding && deed.place == ask.place();
        let here = count(&|deed| is_of_job(deed) && is_here(deed));
        if here >= limits.per_place {
            return Some(Reason::Repeated(here));
        }
        let latest = both()
            .filter(|deed| is_of_job(deed))
            .map(|deed| deed.unix_ms)
            .max();
        if let Some(latest) = latest {
            let left = (limits.cool_down_s * 1000).saturating_sub(now_ms.saturating_sub(latest));
            if left > 0 {
                return Some(Reason::CoolDown(left));
            }
        }
        let by_job = count(&is_of_job);
        if by_job >= limits.per_job {
            return Some(Reason::JobBudget(by_job));
        }
        let by_site = site.count(now_ms, window_ms, is_alike);
        (by_site >= limits.per_site).then_some(Reason::SiteBudget(by_site))
    }

    fn spans(&self) -> Spans {
        Spans {
            mark_ms: self.rules.limits.mark_s * 1000,
            window_ms: self.rules.limits.window_s * 1000,
        }
    }

    /// Returns the mark of a request, which consists of owner, job and incident, for example `paceline:j:17:3`.
    fn mark(&self, ask: &Ask) -> Arc<str> {
        let Incident { run, id } = ask.incident;
        Arc::from(format!("{}:{}:{run}:{id}", self.rules.owner, ask.job))
    }

    fn refuse(&mut self, now_ms: u64, ask: Ask, reason: Reason) {
        let name = reason.name();
        // Do not record this refusal. The action is already recorded, and the verdict may change many times.
        if reason == Reason::Twice || self.refused.insert(ask.incident, name) == Some(name) {
            return;
        }
        while self.refused.len() > MOST_INCIDENTS {
            self.refused.pop_first();
        }
        let mark = self.mark(&ask);
        self.out.push_back(Decision {
            unix_ms: now_ms,
            outcome: Outcome::Refuse(reason),
            ask,
            mark,
        });
    }
}

/// Returns true if the evidence of the request is not live.
fn is_rehearsed(ask: &Ask) -> bool {
    ask.provenance != Provenance::Live
}

/// Selects the requests to count. Real requests are counted separately from trials.
fn asked(ledger: &mut Ledger, is_trial: bool) -> &mut Asked {
    if is_trial {
        &mut ledger.trial
    } else {
        &mut ledger.live
    }
}

/// Durations in milliseconds.
struct Spans {
    mark_ms: u64,
    window_ms: u64,
}

/// Returns the owner and job of a mark, without the incident.
fn owner(mark: &str) -> &str {
    mark.rsplit_once(':').map_or(mark, |(owner, _)| owner)
}
