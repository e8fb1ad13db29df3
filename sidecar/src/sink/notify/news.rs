//! Decides what is worth a message. It does no I/O, and the time is an argument.
//!
//! An incident is reported when it is raised, again when it gets worse, and once more when it is resolved. If it
//! returns within the cool-down, it is reported only after the cool-down, so a flapping incident is reported once with
//! a count. An incident that was never reported needs no resolution. The same finding on several GPUs of a node is one
//! message (`alike`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use paceline_health::id::JobId;
use paceline_health::policy::Policy;
use paceline_health::report::Report;
use paceline_health::text::humanize;
use paceline_health::text::sanitize;
use paceline_health::verdict::{Cause, State, Subject, Verdict};
use serde::{Deserialize, Serialize};

use super::notice::{Notice, Status};

/// Minimum interval between reports of the same incident and subject.
const COOL_DOWN_MS: u64 = 300_000;
/// Maximum length of the action text, characters.
const ACTION: usize = 2000;
/// Maximum number of pieces of evidence.
const EVIDENCE: usize = 4;
/// Maximum length of a GPU's name if the node is known, characters.
const GPU_NAME: usize = 12;
/// Maximum number of remembered incidents. Resolved ones are dropped first.
const MOST: usize = 4096;

/// State of one incident.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Memory {
    pub(super) notice: Notice,
    pub(super) holds: bool,
    /// True if it was reported as firing and not yet as resolved.
    pub(super) told: bool,
    pub(super) told_ms: u64,
    /// The key of the group message that covers this incident.
    #[serde(default)]
    pub(super) spoken_for_by: Option<String>,
}

impl Memory {
    /// Creates the state of an active incident that has not been reported.
    pub(super) fn new(notice: Notice) -> Memory {
        Memory {
            notice,
            holds: true,
            told: false,
            told_ms: 0,
            spoken_for_by: None,
        }
    }
}

/// State that survives a restart of the aggregator.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Saved(pub(super) BTreeMap<String, Memory>);

/// Decides what is worth a message (see the module documentation).
#[derive(Debug)]
pub struct News {
    job: JobId,
    policy: Policy,
    /// The result of [`humanize::whose`].
    whose: &'static str,
    pub(super) known: Saved,
    pub(super) out: Vec<Notice>,
}

impl News {
    /// Continues from saved state.
    pub fn open(job: JobId, known: Saved) -> News {
        News {
            job,
            policy: Policy::default(),
            whose: "GPU",
            known,
            out: Vec::new(),
        }
    }

    /// Returns the state to be saved.
    pub fn saved(&self) -> &Saved {
        &self.known
    }

    /// Applies a verdict, new or known, raised or cleared.
    pub fn verdict(&mut self, verdict: &Verdict, now_ms: u64) {
        let mut notice = self.notice(verdict, now_ms);
        let known = self.known.0.get(&notice.key);
        match (verdict.state, known) {
            (State::Raised, None) => {
                let memory = Memory::new(notice);
                self.known.0.insert(memory.notice.key.clone(), memory);
                self.forget();
            }
            (State::Raised, Some(known)) => {
                let memory = known.clone();
                notice.times = memory.notice.times + u32::from(!memory.holds);
                let is_news = memory.told && changes(&memory.notice, &mut notice);
                if is_news {
                    self.out.push(notice.clone());
                }
                let memory = Memory {
                    notice,
                    holds: true,
                    told_ms: if is_news { now_ms } else { memory.told_ms },
                    ..memory
                };
                self.known.0.insert(memory.notice.key.clone(), memory);
            }
            (State::Cleared, _) => {
                self.know_more(verdict);
                self.clear(&notice.key, now_ms);
            }
        }
    }

    /// Updates the details of open verdicts, for their next messages.
    pub fn update(&mut self, report: &Report) {
        self.whose = humanize::whose(report);
        for verdict in report
            .verdicts
            .iter()
            .filter(|verdict| verdict.state == State::Raised)
        {
            self.know_more(verdict);
        }
    }

    fn know_more(&mut self, verdict: &Verdict) {
        let known = self.known.0.get_mut(&self.key(verdict));
        let known = known.map(|memory| &mut memory.notice);
        if let Some(known) = known.filter(|known| known.incident == verdict.id) {
            known.since = humanize::since(verdict);
            known.costs = costs(verdict, self.whose);
            known.evidence = evidence(verdict);
        }
    }

    /// Applies the verdicts of a continued journal. A reported incident that is not in the journal belongs to a job
    /// that ended unexpectedly.
    pub fn resume(&mut self, verdicts: &[Verdict], now_ms: u64) {
        let of_now: BTreeSet<String> = verdicts.iter().map(|verdict| self.key(verdict)).collect();
        let gone: Vec<String> = self
            .known
            .0
            .iter()
            .filter(|(key, memory)| memory.notice.gpus.is_empty() && !of_now.contains(*key))
            .map(|(key, _)| key.clone())
            .collect();
        for key in gone {
            let known = self.known.0.get(&key);
            match known.map(|memory| (memory.notice.unwatched, memory.spoken_for_by.clone())) {
                Some((false, _)) => self.clear(&key, now_ms),
                Some((true, Some(speaker))) => {
                    self.known.0.remove(&speaker);
                }
                _ => {}
            }
            self.known.0.remove(&key);
        }
        for verdict in verdicts {
            self.verdict(verdict, now_ms);
        }
    }

    pub(super) fn clear(&mut self, key: &str, now_ms: u64) {
        let Some(memory) = self.known.0.get_mut(key) else {
            return;
        };
        memory.holds = false;
        memory.spoken_for_by = None;
        if std::mem::take(&mut memory.told) {
            self.out.push(Notice {
                status: Status::Resolved,
                was: None,
                was_provenance: None,
                unix_ms: now_ms,
                ..memory.notice.clone()
            });
        }
    }

    /// Returns the notices to be sent now.
    pub fn poll(&mut self, now_ms: u64) -> Vec<Notice> {
        self.say_due(now_ms, false)
    }

    fn say_due(&mut self, now_ms: u64, is_last: bool) -> Vec<Notice> {
        let waiting = self.gather(now_ms, is_last);
        for (key, memory) in &mut self.known.0 {
            let is_quiet = memory.told_ms == 0 || now_ms.saturating_sub(memory.told_ms) >= COOL_DOWN_MS;
            let is_silent = memory.spoken_for_by.is_some() || waiting.contains(key);
            if memory.holds && !memory.told && is_quiet && !is_silent {
                (memory.told, memory.told_ms) = (true, now_ms);
                memory.notice.unix_ms = now_ms;
                self.out.push(memory.notice.clone());
            }
        }
        std::mem::take(&mut self.out)
    }

    /// Returns reported incidents that are still active.
    pub fn open_notices(&self, now_ms: u64) -> Vec<Notice> {
        let told = self.known.0.values().filter(|memory| memory.told);
        told.map(|memory| Notice {
            was: None,
            was_provenance: None,
            unix_ms: now_ms,
            ..memory.notice.clone()
        })
        .collect()
    }

    /// Handles the end of the job. A problem of a machine is not resolved by it, but is no longer monitored.
    pub fn close(&mut self, now_ms: u64) -> Vec<Notice> {
        let mut last = self.say_due(now_ms, true);
        for memory in self.known.0.values_mut().filter(|memory| memory.told) {
            let mut notice = memory.notice.clone();
            (notice.unix_ms, notice.was, notice.was_provenance) = (now_ms, None, None);
            if !notice.unwatched {
                (notice.status, memory.told) = (Status::Resolved, false);
            } else {
                notice.is_told_again = true;
            }
            last.push(notice);
        }
        // Later runs in the same directory start with empty state.
        self.known.0.clear();
        last
    }

    fn key(&self, verdict: &Verdict) -> String {
        let job = sanitize::label(self.job.as_str());
        let subject = sanitize::clip(&verdict.subject.to_string(), sanitize::SENTENCE);
        format!("{job}/{}/{subject}", verdict.finding)
    }

    /// Makes a notice of a verdict. Names and sentences come from the job's nodes, so they are shortened and made
    /// printable here, for all receivers.
    fn notice(&self, verdict: &Verdict, now_ms: u64) -> Notice {
        let row = self.policy.finding(verdict.finding);
        let severity = verdict.severity;
        Notice {
            key: self.key(verdict),
            status: Status::Firing,
            severity,
            worst: severity,
            was: None,
            was_provenance: None,
            job: JobId::from(&*sanitize::label(self.job.as_str())),
            finding: Arc::from(verdict.finding.name()),
            node: node(verdict),
            subject: sanitize::clip(&verdict.subject_text(), sanitize::SENTENCE),
            gpu: gpu(verdict),
            gpus: Vec::new(),
            title: row.title.clone(),
            urgency: row.urgency,
            cause: Arc::from(verdict.cause.name()),
            action: sanitize::clip(&verdict.action, ACTION).into(),
            provenance: verdict.provenance,
            incident: verdict.id,
            times: 1,
            since: humanize::since(verdict),
            costs: costs(verdict, self.whose),
            evidence: evidence(verdict),
            raised_ms: now_ms,
            unix_ms: now_ms,
            is_told_again: false,
            unwatched: verdict.order.is_some_and(|order| order.remedy.acts_on_node()),
            observe_only: verdict.observe_only,
            order: verdict.order,
        }
    }

    fn forget(&mut self) {
        while self.known.0.len() > MOST {
            let over = self.known.0.iter().find(|(_, memory)| !memory.holds);
            let Some(key) = over.or(self.known.0.iter().next()).map(|(key, _)| key.clone()) else {
                return;
            };
            self.known.0.remove(&key);
        }
    }
}

/// Returns true if a reported notice has changed enough to be sent again. Fields of `now` that do not justify a message
/// keep their reported values.
pub(super) fn changes(before: &Notice, now: &mut Notice) -> bool {
    let is_worse = now.severity > before.severity;
    // Counters are read once a second, so the cause may be found only after the report. The action depends on the
    // cause.
    let is_explained = is_unknown(before) && !is_unknown(now);
    now.raised_ms = before.raised_ms;
    now.worst = now.severity.max(before.worst);
    (now.was, now.was_provenance) = (Some(before.severity), Some(before.provenance));
    if !is_worse {
        // Keep the reported values, because a message for every change could be one every second.
        (now.severity, now.was) = (before.severity, before.was);
        if !is_explained {
            (now.provenance, now.was_provenance) = (before.provenance, before.was_provenance);
        }
    }
    is_worse || is_explained
}

/// Returns a GPU's shortened name. A few characters distinguish the GPUs of a node.
fn gpu(verdict: &Verdict) -> Option<Arc<str>> {
    let Subject::Gpu { gpu_uuid, .. } = &verdict.subject else {
        return None;
    };
    let short: String = gpu_uuid.as_str().chars().take(GPU_NAME).collect();
    Some(sanitize::label(&short).into())
}

fn node(verdict: &Verdict) -> Option<Arc<str>> {
    match &verdict.subject {
        Subject::Node { node }
        | Subject::Rank { node, .. }
        | Subject::Gpu { node, .. }
        | Subject::Link { node, .. } => Some(sanitize::label(node.as_str()).into()),
        Subject::Job { .. } | Subject::Rack { .. } => None,
    }
}

/// Returns the slowdown and its cost as text. For a hang, returns the time lost so far.
fn costs(verdict: &Verdict, whose: &str) -> String {
    let slower = verdict
        .slowdown_ratio
        .map(|ratio| format!("{ratio:.2}x as long as {}", humanize::evidence::beside(verdict)));
    let share = verdict.impact_ratio.filter(|share| *share > 0.0);
    let share = share.map(|share| humanize::impact(verdict.finding.name(), share));
    let told: Vec<String> = slower.into_iter().chain(share).collect();
    if told.is_empty() && verdict.lost_gpu_hours > 0.0 {
        return format!("{} so far", humanize::hours(verdict.lost_gpu_hours, whose));
    }
    told.join(", ")
}

fn evidence(verdict: &Verdict) -> Vec<String> {
    let pieces = humanize::evidence::phrases(verdict);
    let pieces = pieces.into_iter().take(EVIDENCE);
    pieces
        .map(|phrase| sanitize::clip(&phrase, sanitize::SENTENCE))
        .collect()
}

fn is_unknown(notice: &Notice) -> bool {
    *notice.cause == *Cause::Unknown.name()
}
