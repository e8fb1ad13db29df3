//! `ranks-missing`: ranks that do not arrive before the first step while the others wait for them. A rank whose process
//! is alive may load or compile for a long time, so it is only mentioned in a note of the report until
//! `arrivals.loading_s` has passed.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::detect::Detector;
use crate::detect::claim::{Body, Claim, Detail, Outcome, over, piece};
use crate::detect::members::roster::MAX_RANKS;
use crate::event::{Signal, Start, StartStage};
use crate::frame::{Frame, Provenance};
use crate::id::{JobId, NodeId, Rank};
use crate::policy::ArrivalThresholds;
use crate::time::Time;
use crate::verdict::{Cause, Evidence, Finding, Severity, Subject};

/// Maximum number of ranks, and of calls in which ranks wait, that are listed individually.
const MAX_NAMED: usize = 8;
/// Ranks that end after waiting for less time than this did not end because of the wait.
const GAVE_UP_S: f64 = 5.0;
/// Ranks that end within this time end together. What they were waiting for is recorded before the first of them ends.
const ONE_END_S: f64 = 10.0;

/// The state of this rule.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct ArrivalRule {
    ranks: BTreeMap<Rank, Arrival>,
    /// Index for [`ArrivalRule::due`], which is called with every frame: waiting ranks (those that wait longest first),
    /// ranks whose process is gone, and ranks that are alive but do not wait yet.
    waiting: BTreeSet<(Time, Rank)>,
    gone: BTreeSet<Rank>,
    /// When the latest of the ranks in `gone` was found gone.
    #[serde(default)]
    gone_at: Option<Time>,
    loading: BTreeSet<Rank>,
    restart: u32,
    world_size: u32,
    /// When the first of the ranks ended while others waited, and the stages of the ranks at that time.
    #[serde(default)]
    gave_up: Option<(Time, String)>,
    /// True once a rank has completed a step, which means that all ranks have met.
    begun: bool,
    /// Severity of the open finding, and when the finding began.
    open: Option<(Severity, Time)>,
    provenance: Provenance,
    out: VecDeque<Claim>,
}

/// The stage that a rank has reached, and when it reached it.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Arrival {
    node: NodeId,
    stage: StartStage,
    call: Arc<str>,
    since: Time,
}

impl ArrivalRule {
    /// Records the stage of a rank, as reported by its sidecar.
    pub fn start(&mut self, at: Time, node: &NodeId, start: &Start, job: &JobId, provenance: Provenance) {
        let is_believable = start.rank.0 < start.world_size && start.world_size <= MAX_RANKS;
        if !is_believable || start.restart < self.restart {
            return;
        }
        if start.restart > self.restart || start.world_size != self.world_size {
            self.end(at, job);
            self.ranks.clear();
            self.waiting.clear();
            self.gone.clear();
            self.gone_at = None;
            self.loading.clear();
            self.gave_up = None;
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
        if start.stage == StartStage::Gone {
            self.give_up(at);
            self.gone_at = Some(at);
        }
        self.place(start.rank, arrival);
        if start.stage == StartStage::Trained {
            self.begin(at, job);
        }
    }

    /// Records the stages of the ranks just before one of them, or a node, is gone. Afterwards it can no longer be seen
    /// for which ranks the others waited.
    fn give_up(&mut self, at: Time) {
        let is_noted = |(noted, _): &(Time, String)| at.since(*noted).as_secs_f64() < ONE_END_S;
        if self.begun || self.gave_up.as_ref().is_some_and(is_noted) {
            return;
        }
        let waited_s = |since: Time| at.since(since).as_secs_f64();
        let waits = self
            .waiting_since()
            .is_some_and(|since| waited_s(since) >= GAVE_UP_S);
        if waits && (self.is_any_lost() || !self.loading.is_empty()) {
            self.gave_up = Some((at, self.says(at)));
        }
    }

    fn place(&mut self, rank: Rank, arrival: Arrival) {
        if let Some(before) = self.ranks.get(&rank) {
            self.waiting.remove(&(before.since, rank));
            self.gone.remove(&rank);
            self.loading.remove(&rank);
        }
        let _ = match arrival.stage {
            StartStage::Gone => self.gone.insert(rank),
            StartStage::Loading | StartStage::Joined => self.loading.insert(rank),
            StartStage::Joining | StartStage::Waiting => self.waiting.insert((arrival.since, rank)),
            StartStage::Trained => false,
        };
        self.ranks.insert(rank, arrival);
    }

    /// Records that a rank has completed its first step. No rank can complete a step alone, so none is missing.
    pub fn begin(&mut self, at: Time, job: &JobId) {
        self.begun = true;
        self.end(at, job);
    }

    /// Records that the command of a node has ended, and the processes of its ranks with it.
    pub fn node_ended(&mut self, at: Time, node: &NodeId) {
        self.give_up(at);
        self.gone_at = Some(at);
        let there = self.ranks.iter().filter(|(_, arrival)| arrival.node == *node);
        let there: Vec<(Rank, Arrival)> = there.map(|(rank, arrival)| (*rank, arrival.clone())).collect();
        for (rank, arrival) in there {
            let stage = StartStage::Gone;
            self.place(rank, Arrival { stage, ..arrival });
        }
    }

    /// Raises the findings that are due by `now`.
    pub fn advance(&mut self, now: Time, job: &JobId, limits: &ArrivalThresholds) {
        match self.due(limits).filter(|(due, _)| *due <= now) {
            Some((_, severity)) => self.raise(now, severity, job),
            None if self.open.is_some() && !self.is_any_absent(now, limits) => self.end(now, job),
            None => {}
        }
    }

    /// Returns when [`ArrivalRule::advance`] must be called next.
    pub fn wake_at(&self, limits: &ArrivalThresholds) -> Option<Time> {
        self.due(limits).map(|(due, _)| due)
    }

    /// Returns the next claim.
    pub fn poll(&mut self) -> Option<Claim> {
        self.out.pop_front()
    }

    /// Returns the ranks that reported a stage, whether or not they have trained yet.
    pub fn ranks(&self) -> impl Iterator<Item = Rank> {
        self.ranks.keys().copied()
    }

    /// Returns the number of ranks in the job as the ranks report it, or zero if none has reported.
    pub fn world_size(&self) -> u32 {
        self.world_size
    }

    /// Returns the stages of ranks that keep the others waiting, as long as there is no finding about them.
    pub fn note(&self, now: Time, limits: &ArrivalThresholds) -> Option<String> {
        if self.begun {
            return None;
        }
        let says = match self.waiting_since() {
            Some(_) => self.waits(now, limits)?.1,
            None => self.gave_up.as_ref()?.1.clone(),
        };
        Some(format!("before the first step: {says}"))
    }

    /// Returns the stages, and the start of the wait, if ranks wait for a rank that still runs.
    pub fn waits(&self, now: Time, limits: &ArrivalThresholds) -> Option<(Time, String)> {
        let since = self.waiting_since().filter(|_| !self.begun)?;
        let waited_s = now.since(since).as_secs_f64();
        let is_noted = waited_s >= limits.warning_s && !self.loading.is_empty();
        is_noted.then(|| (since, self.says(now)))
    }

    /// Returns the next severity, and when it is due.
    fn due(&self, limits: &ArrivalThresholds) -> Option<(Time, Severity)> {
        if self.begun {
            return None;
        }
        let since = self.waiting_since()?;
        // Ranks that are stopped together end one after another. Wait until they have all ended, so that those that end
        // first do not count as missing.
        let settled = self.gone_at.map(|at| at + Duration::from_secs_f64(ONE_END_S));
        let after = |seconds: f64| settled.max(Some(since + Duration::from_secs_f64(seconds)));
        let known = self.open.map(|(severity, _)| severity);
        // A rank that is still loading explains why the others wait, so the finding is due later.
        let (warning_s, critical_s) = match (self.is_any_lost(), self.loading.is_empty()) {
            (true, true) => (limits.warning_s, Some(limits.critical_s)),
            (true, false) | (false, false) => (limits.loading_s, None),
            (false, true) => return None,
        };
        match known {
            None => Some((after(warning_s)?, Severity::Warning)),
            Some(Severity::Warning) => Some((after(critical_s?)?, Severity::Critical)),
            Some(_) => None,
        }
    }

    /// Returns the start of the longest current wait.
    fn waiting_since(&self) -> Option<Time> {
        self.waiting.first().map(|(since, _)| *since)
    }

    /// Returns true if a rank was never seen or its process is gone.
    fn is_any_lost(&self) -> bool {
        self.ranks.len() < self.world_size as usize || !self.gone.is_empty()
    }

    /// Returns true if the others wait at `now` for a rank that is lost or has been loading for too long.
    fn is_any_absent(&self, now: Time, limits: &ArrivalThresholds) -> bool {
        let waited_s = self
            .waiting_since()
            .map_or(0.0, |since| now.since(since).as_secs_f64());
        self.is_any_lost() || waited_s >= limits.loading_s && !self.loading.is_empty()
    }

    fn at_stage(&self, stage: StartStage) -> Vec<Rank> {
        let ranks = self.ranks.iter().filter(|(_, arrival)| arrival.stage == stage);
        ranks.map(|(rank, _)| *rank).collect()
    }

    fn unseen(&self) -> Vec<Rank> {
        let all = (0..self.world_size).map(Rank);
        all.filter(|rank| !self.ranks.contains_key(rank)).collect()
    }

    fn raise(&mut self, at: Time, severity: Severity, job: &JobId) {
        let since = self.waiting_since().unwrap_or(at);
        let since = self.open.map_or(since, |(_, since)| since);
        self.open = Some((severity, since));
        let waiting = self.waiting.len();
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

    /// Returns the missing ranks, and the stages of the others, as text.
    fn says(&self, now: Time) -> String {
        let mut text = String::new();
        let mut add = |ranks: &[Rank], what: &str| {
            if !ranks.is_empty() {
                let gap = if text.is_empty() { "" } else { "; " };
                let _ = write!(text, "{gap}{} {what}", names(ranks));
            }
        };
        add(&self.unseen(), "not reported by any node");
        add(
            &self.at_stage(StartStage::Gone),
            "ended before the others arrived",
        );
        add(
            &self.at_stage(StartStage::Loading),
            "running, not yet in init_process_group",
        );
        add(&self.at_stage(StartStage::Joined), "running, between collectives");
        let mut calls: BTreeMap<Arc<str>, (Vec<Rank>, Time)> = BTreeMap::new();
        for (rank, arrival) in self.ranks.iter().filter(|(_, arrival)| arrival.stage.waits()) {
            let (ranks, since) = calls
                .entry(arrival.call.clone())
                .or_insert((Vec::new(), arrival.since));
            ranks.push(*rank);
            *since = (*since).min(arrival.since);
        }
        for (call, (ranks, since)) in calls.into_iter().take(MAX_NAMED) {
            let waited = crate::text::humanize::span(now.since(since).as_secs_f64());
            add(&ranks, &format!("waiting in {call} for {waited}"));
        }
        text
    }
}

impl Detector {
    /// Records the stage that a rank reports before its first step.
    pub(crate) fn arrive(&mut self, at: Time, frame: &Frame, start: &Start) {
        self.arrivals
            .start(at, &frame.node, start, &self.job, frame.provenance);
        self.advance_arrivals(at);
    }

    /// Returns when the next rank counts as missing. In a job with a dead rank none does, because `rank-died` then
    /// explains the wait.
    pub(crate) fn arrivals_due(&self) -> Option<Time> {
        let limits = &self.policy.detector.arrivals;
        self.arrivals
            .wake_at(limits)
            .filter(|_| self.silence.dead().is_none())
    }

    /// Fires the next arrival deadline if it is due by `to` and before the other deadlines. Returns true if it fired.
    pub(crate) fn fired_arrivals(&mut self, to: Time, row: Option<Time>, blind: Option<Time>) -> bool {
        let is_first = |due: &Time| [row, blind].into_iter().flatten().all(|other| *due <= other);
        let due = self.arrivals_due().filter(|due| *due <= to);
        let Some(due) = due.filter(is_first) else {
            return false;
        };
        self.advance_arrivals(due.max(self.now));
        self.record_claims();
        true
    }

    fn advance_arrivals(&mut self, at: Time) {
        if self.silence.dead().is_none() {
            let limits = &self.policy.detector.arrivals;
            self.arrivals.advance(at, &self.job, limits);
        }
    }
}

/// Returns text such as `rank 3` or `ranks 1, 2 and 5 more`.
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
