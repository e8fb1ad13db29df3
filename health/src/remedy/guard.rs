//! The guard before every remedy: asks in, decisions out.
//!
//! Call [`Guard::ask`] for each verdict that is raised or changed and [`Guard::over`] when one clears,
//! [`Guard::advance`] when [`Guard::wake_at`] has come, and take what [`Guard::poll`] gives after each. [`Guard::save`]
//! is what must be kept before a decision is carried out: a guard that is opened from it does nothing twice.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Ask, Asked, Decision, Deed, Incident, Ledger, Outcome, Reason, Response, Rules};
use crate::frame::Provenance;

/// Incidents of which it is remembered what was last said.
const MOST_INCIDENTS: usize = 10_000;

/// An ask that waits for its time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Waiting {
    since_ms: u64,
    ask: Ask,
}

/// What outlives the guard.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Saved {
    /// Of this job.
    pub ledger: Ledger,
    /// Asks that waited.
    waiting: Vec<Waiting>,
    /// Incidents about which something was done.
    done: Vec<Incident>,
}

/// See the module.
#[derive(Debug)]
pub struct Guard {
    rules: Rules,
    ledger: Ledger,
    waiting: Vec<Waiting>,
    done: BTreeMap<Incident, ()>,
    /// What was last refused of an incident: the audit says it once.
    refused: BTreeMap<Incident, &'static str>,
    out: VecDeque<Decision>,
}

impl Guard {
    /// A guard that goes on from `saved`. What waited then is refused: what was true before a restart may not be now.
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

    /// What must be kept.
    pub fn save(&self) -> Saved {
        Saved {
            ledger: self.ledger.clone(),
            waiting: self.waiting.clone(),
            done: self.done.keys().copied().collect(),
        }
    }

    /// The rules in force.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Something is asked for. `site`: what all jobs of the site did and asked.
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
            // Those that wait were part of the same storm.
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

    /// An incident has cleared: what was asked for it is needed no longer.
    pub fn over(&mut self, now_ms: u64, incident: Incident) {
        let is_over = |waiting: &mut Waiting| waiting.ask.incident == incident;
        let over: Vec<Waiting> = self.waiting.extract_if(.., is_over).collect();
        for waiting in over {
            self.refuse(now_ms, waiting.ask, Reason::Cleared);
        }
    }

    /// Decides what has waited long enough.
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

    /// Nobody knows what others did: what is due is refused, and nothing is done.
    pub fn advance_blind(&mut self, now_ms: u64, why: &str) {
        for waiting in std::mem::take(&mut self.waiting) {
            self.refuse(now_ms, waiting.ask, Reason::NoLedger(Arc::from(why)));
        }
    }

    /// When [`Guard::advance`] has something to decide, milliseconds since 1970.
    pub fn wake_at(&self) -> Option<u64> {
        let due = |waiting: &Waiting| {
            let hold_ms = self.rules.hold_ms(waiting.ask.finding);
            waiting.since_ms.saturating_add(hold_ms)
        };
        self.waiting.iter().map(due).min()
    }

    /// The next decision.
    pub fn poll(&mut self) -> Option<Decision> {
        self.out.pop_front()
    }

    /// What no waiting makes better.
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

    /// Whether it is not meant, or not about a real fault.
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

    /// Every limit, the most telling first.
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
        // A rehearsal's deeds limit rehearsals, and not what is really done.
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
        // A job that was requeued has a run directory and a ledger of its own anew; the site's knows its earlier runs.
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

    /// Who does what for which incident: `paceline:j:17:3`.
    fn mark(&self, ask: &Ask) -> Arc<str> {
        let Incident { run, id } = ask.incident;
        Arc::from(format!("{}:{}:{run}:{id}", self.rules.owner, ask.job))
    }

    fn refuse(&mut self, now_ms: u64, ask: Ask, reason: Reason) {
        let name = reason.name();
        // What was done about it was said; its verdict changes many times.
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

/// Whether it is about no real fault.
fn is_rehearsed(ask: &Ask) -> bool {
    ask.provenance != Provenance::Live
}

/// What is asked for in earnest is counted apart.
fn asked(ledger: &mut Ledger, is_trial: bool) -> &mut Asked {
    if is_trial {
        &mut ledger.trial
    } else {
        &mut ledger.live
    }
}

/// Spans in milliseconds.
struct Spans {
    mark_ms: u64,
    window_ms: u64,
}

/// A mark without the incident: whoever bears it.
fn owner(mark: &str) -> &str {
    mark.rsplit_once(':').map_or(mark, |(owner, _)| owner)
}
