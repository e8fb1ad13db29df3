//! `ranks-missing`: before the first step, ranks for whom the others wait and who never came. A rank whose process is alive is not
//! missing, however long it loads or compiles: what it does is in the report's notes.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Detector;
use super::claim::{Body, Claim, Detail, Outcome, over, piece};
use super::roster::MAX_RANKS;
use crate::event::{Signal, Start, StartStage};
use crate::frame::{Frame, Provenance};
use crate::id::{JobId, NodeId, Rank};
use crate::policy::ArrivalThresholds;
use crate::time::Time;
use crate::verdict::{Cause, Evidence, Finding, Severity, Subject};

/// Ranks that are named one by one.
const MAX_NAMED: usize = 8;

/// The rule.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct ArrivalRule {
    ranks: BTreeMap<Rank, Arrival>,
    restart: u32,
    world_size: u32,
    /// A rank has made a step: all have met.
    begun: bool,
    /// What is open, and when it began.
    open: Option<(Severity, Time)>,
    provenance: Provenance,
    out: VecDeque<Claim>,
}

/// How far a rank has got, and since when.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Arrival {
    node: NodeId,
    stage: StartStage,
    call: Arc<str>,
    since: Time,
}

impl ArrivalRule {
    /// Takes what a rank's sidecar says of it.
    pub fn start(&mut self, at: Time, node: &NodeId, start: &Start, job: &JobId, provenance: Provenance) {
        let is_believable = start.rank.0 < start.world_size && start.world_size <= MAX_RANKS;
        if !is_believable || start.restart < self.restart {
            return;
        }
        if start.restart > self.restart || start.world_size != self.world_size {
            self.end(at, job);
            self.ranks.clear();
            self.begun = false;
        }
        self.provenance = self.provenance.max(provenance);
        (self.restart, self.world_size) = (start.restart, start.world_size);
        let arrival = Arrival {
            node: node.clone(),
            stage: start.stage,
            call: start.call.clone(),
            since: Time(at.0.saturating_sub(start.idle_ns)),
        };
        self.ranks.insert(start.rank, arrival);
        if start.stage == StartStage::Trained {
            self.begin(at, job);
        }
    }

    /// A rank has made its first step, which no rank makes alone.
    pub fn begin(&mut self, at: Time, job: &JobId) {
        self.begun = true;
        self.end(at, job);
    }

    /// The job, or a part of it, ends: nobody is waited for any more.
    pub fn node_ended(&mut self, node: &NodeId) {
        for arrival in self.ranks.values_mut().filter(|arrival| arrival.node == *node) {
            arrival.stage = StartStage::Gone;
        }
    }

    /// Raises what is due by `now`.
    pub fn advance(&mut self, now: Time, job: &JobId, limits: &ArrivalThresholds) {
        match self.due(limits).filter(|(due, _)| *due <= now) {
            Some((_, severity)) => self.raise(now, severity, job),
            None if self.open.is_some() && self.absent(now, limits).is_empty() => self.end(now, job),
            None => {}
        }
    }

    /// When [`ArrivalRule::advance`] has something to do.
    pub fn wake_at(&self, limits: &ArrivalThresholds) -> Option<Time> {
        self.due(limits).map(|(due, _)| due)
    }

    /// The next claim.
    pub fn poll(&mut self) -> Option<Claim> {
        self.out.pop_front()
    }

    /// Ranks that said where they stand, whether or not they have trained yet.
    pub fn ranks(&self) -> impl Iterator<Item = Rank> {
        self.ranks.keys().copied()
    }

    /// Of how many ranks they say that they are.
    pub fn world_size(&self) -> u32 {
        self.world_size
    }

    /// What ranks do that others wait for, while nothing is wrong yet.
    pub fn note(&self, now: Time, limits: &ArrivalThresholds) -> Option<String> {
        let since = self.waiting_since().filter(|_| !self.begun)?;
        let waited_s = now.since(since).as_secs_f64();
        let is_told = waited_s >= limits.warning_s && !self.loading().is_empty();
        is_told.then(|| format!("before the first step: {}", self.says(now)))
    }

    /// The next severity, and when it is reached.
    fn due(&self, limits: &ArrivalThresholds) -> Option<(Time, Severity)> {
        let since = self.waiting_since().filter(|_| !self.begun)?;
        let after = |seconds: f64| since + Duration::from_secs_f64(seconds);
        let known = self.open.map(|(severity, _)| severity);
        let is_absent = self.ranks.len() < self.world_size as usize || !self.gone().is_empty();
        // Somebody who loads explains why the others wait.
        let (warning_s, critical_s) = match (is_absent, self.loading().is_empty()) {
            (true, true) => (limits.warning_s, Some(limits.critical_s)),
            (true, false) | (false, false) => (limits.loading_s, None),
            (false, true) => return None,
        };
        match known {
            None => Some((after(warning_s), Severity::Warning)),
            Some(Severity::Warning) => critical_s.map(|seconds| (after(seconds), Severity::Critical)),
            Some(_) => None,
        }
    }

    /// Since when the first of those that wait now has waited.
    fn waiting_since(&self) -> Option<Time> {
        let waiting = self.ranks.values().filter(|arrival| arrival.stage.waits());
        waiting.map(|arrival| arrival.since).min()
    }

    fn at_stage(&self, is_meant: impl Fn(StartStage) -> bool) -> Vec<Rank> {
        let ranks = self.ranks.iter().filter(|(_, arrival)| is_meant(arrival.stage));
        ranks.map(|(rank, _)| *rank).collect()
    }

    fn gone(&self) -> Vec<Rank> {
        self.at_stage(|stage| stage == StartStage::Gone)
    }

    /// Alive, and not where the others wait.
    fn loading(&self) -> Vec<Rank> {
        self.at_stage(|stage| matches!(stage, StartStage::Loading | StartStage::Joined))
    }

    fn unseen(&self) -> Vec<Rank> {
        let all = (0..self.world_size).map(Rank);
        all.filter(|rank| !self.ranks.contains_key(rank)).collect()
    }

    /// Those who are waited for by `now`.
    fn absent(&self, now: Time, limits: &ArrivalThresholds) -> Vec<Rank> {
        let mut absent = self.unseen();
        absent.extend(self.gone());
        let waited_s = self
            .waiting_since()
            .map_or(0.0, |since| now.since(since).as_secs_f64());
        if waited_s >= limits.loading_s {
            absent.extend(self.loading());
        }
        absent.sort_unstable();
        absent
    }

    fn raise(&mut self, at: Time, severity: Severity, job: &JobId) {
        let since = self.waiting_since().unwrap_or(at);
        let since = self.open.map_or(since, |(_, since)| since);
        self.open = Some((severity, since));
        let waiting = self.at_stage(StartStage::waits).len();
        let world = f64::from(self.world_size);
        let missing = world - waiting as f64;
        let waiting_s = at.since(since).as_secs_f64();
        let evidence: Vec<Evidence> = vec![
            piece("ranks_not_arrived", missing, None),
            piece("ranks_waiting", waiting as f64, None),
            piece("waiting_s", waiting_s, None),
        ];
        let detail = Detail {
            severity,
            since,
            since_step: None,
            step: None,
            cause: Cause::Unknown,
            signals: vec![Signal::S2],
            provenance: self.provenance,
            slowdown_ratio: None,
            impact_ratio: None,
            lost_rank_s: waiting_s * world,
            evidence,
            says: Some(self.says(at).into()),
        };
        self.out.push_back(Claim {
            finding: Finding::RanksMissing,
            subject: Subject::Job { job: job.clone() },
            at,
            body: Body::Holds(Box::new(detail)),
        });
    }

    fn end(&mut self, at: Time, job: &JobId) {
        let Some((_, since)) = self.open.take() else {
            return;
        };
        let outcome = Outcome {
            lost_rank_s: at.since(since).as_secs_f64() * f64::from(self.world_size),
            ..Outcome::default()
        };
        let subject = Subject::Job { job: job.clone() };
        self.out
            .push_back(over(at, Finding::RanksMissing, subject, outcome));
    }

    /// Who is there, who is not, and where the others stand.
    fn says(&self, now: Time) -> String {
        let mut text = String::new();
        let mut add = |ranks: &[Rank], what: &str| {
            if !ranks.is_empty() {
                let gap = if text.is_empty() { "" } else { "; " };
                let _ = write!(text, "{gap}{} {what}", names(ranks));
            }
        };
        add(&self.unseen(), "not seen on any node");
        add(&self.gone(), "ended before the others arrived");
        add(
            &self.at_stage(|stage| stage == StartStage::Loading),
            "running, not yet in init_process_group",
        );
        add(
            &self.at_stage(|stage| stage == StartStage::Joined),
            "running, between collectives",
        );
        let mut calls: BTreeMap<Arc<str>, (Vec<Rank>, Time)> = BTreeMap::new();
        for (rank, arrival) in self.ranks.iter().filter(|(_, arrival)| arrival.stage.waits()) {
            let (ranks, since) = calls
                .entry(arrival.call.clone())
                .or_insert((Vec::new(), arrival.since));
            ranks.push(*rank);
            *since = (*since).min(arrival.since);
        }
        for (call, (ranks, since)) in calls {
            let waited = crate::words::span(now.since(since).as_secs_f64());
            add(&ranks, &format!("waiting in {call} for {waited}"));
        }
        text
    }
}

impl Detector {
    /// A rank says where it stands before its first step.
    pub(super) fn arrive(&mut self, at: Time, frame: &Frame, start: &Start) {
        let (node, job) = (&frame.node, &self.job);
        self.arrivals.start(at, node, start, job, frame.provenance);
        self.arrivals.advance(at, job, &self.policy.detector.arrivals);
    }

    /// Fires the next deadline of an arrival, if it is due by `to` and before the others. Of a job whose rank has died that is said
    /// already.
    pub(super) fn fired_arrivals(&mut self, to: Time, row: Option<Time>, blind: Option<Time>) -> bool {
        let limits = &self.policy.detector.arrivals;
        let is_first = |due: &Time| [row, blind].into_iter().flatten().all(|other| *due <= other);
        let due = self.arrivals.wake_at(limits).filter(|due| *due <= to);
        let Some(due) = due.filter(is_first) else {
            return false;
        };
        if self.silence.dead().is_some() {
            return false;
        }
        self.arrivals.advance(due.max(self.now), &self.job, limits);
        self.book();
        true
    }
}

/// `rank 3`, `ranks 1, 2 and 5 more`.
fn names(ranks: &[Rank]) -> String {
    let named: Vec<String> = ranks
        .iter()
        .take(MAX_NAMED)
        .map(|rank| rank.0.to_string())
        .collect();
    let mut text = format!(
        "{} {}",
        if ranks.len() == 1 { "rank" } else { "ranks" },
        named.join(", ")
    );
    if ranks.len() > MAX_NAMED {
        let _ = write!(text, " and {} more", ranks.len() - MAX_NAMED);
    }
    text
}
