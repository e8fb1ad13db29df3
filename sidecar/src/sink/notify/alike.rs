//! Groups the same finding on several GPUs of a node into one message. Decides which GPUs the message covers, and how
//! long the first one waits for the others.

use std::collections::{BTreeMap, BTreeSet};

use paceline_health::text::cards::MIN_ALIKE_GPUS;
use paceline_health::verdict::Severity;

use super::news::{Memory, News, changes};
use super::notice::Notice;

/// How long a warning for one GPU waits for the same warning on others.
const GATHERS_MS: u64 = 10_000;
/// How long a critical finding waits. It waits only if another GPU of the node has the same finding.
const GATHERS_CRITICAL_MS: u64 = 2_000;
/// Minimum interval between repetitions of a message while more GPUs join.
const GROWS_EVERY_MS: u64 = 60_000;
/// Maximum number of GPUs whose evidence is listed.
const LISTED: usize = 16;

impl News {
    /// Groups the GPUs of each node with the same finding under one message. Returns the keys of the notices that wait
    /// for others. If `is_last` is true, nothing waits any more.
    pub(super) fn gather(&mut self, now_ms: u64, is_last: bool) -> BTreeSet<String> {
        let mut alike: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (key, memory) in &self.known.0 {
            if !memory.notice.gpus.is_empty() {
                alike.entry(key.clone()).or_default();
            } else if let Some(speaker) = speaker(&memory.notice).filter(|_| memory.holds) {
                alike.entry(speaker).or_default().push(key.clone());
            }
        }
        let mut waiting = BTreeSet::new();
        for (speaker, members) in alike {
            let new = members.iter().filter(|key| self.is_new(key));
            let new: Vec<String> = new.cloned().collect();
            let is_open = self.known.0.get(&speaker).is_some_and(|memory| memory.holds);
            let waits = !is_last && !self.is_due(&new, members.len(), now_ms);
            if !is_open && waits {
                waiting.extend(new);
            } else if is_open || (members.len() >= MIN_ALIKE_GPUS && !new.is_empty()) {
                self.speak_for(&speaker, &members, new, now_ms);
            }
        }
        waiting
    }

    /// Returns true if the notice was neither sent nor covered by a group.
    fn is_new(&self, key: &str) -> bool {
        let memory = self.known.0.get(key);
        memory.is_some_and(|memory| !memory.told && memory.spoken_for_by.is_none())
    }

    /// Returns true if the first of the new notices has waited long enough.
    fn is_due(&self, new: &[String], alike: usize, now_ms: u64) -> bool {
        let mut notices = new.iter().filter_map(|key| Some(&self.known.0.get(key)?.notice));
        notices.any(|notice| {
            let waits_ms = match notice.severity {
                Severity::Critical if alike == 1 => 0,
                Severity::Critical => GATHERS_CRITICAL_MS,
                _ => GATHERS_MS,
            };
            now_ms.saturating_sub(notice.raised_ms) >= waits_ms
        })
    }

    /// Makes one message for the notices that are not covered yet. It counts all GPUs with the finding, including those
    /// sent before.
    fn speak_for(&mut self, speaker: &str, members: &[String], new: Vec<String>, now_ms: u64) {
        let has_grown = !new.is_empty();
        for key in new {
            if let Some(memory) = self.known.0.get_mut(&key) {
                memory.spoken_for_by = Some(speaker.to_owned());
            }
        }
        let memories = members.iter().filter_map(|key| self.known.0.get(key));
        let (own, told): (Vec<&Memory>, Vec<&Memory>) =
            memories.partition(|memory| memory.spoken_for_by.as_deref() == Some(speaker));
        let Some(mut notice) = sum(speaker, &own, &told, now_ms) else {
            self.clear(speaker, now_ms);
            return;
        };
        let memory = match self.known.0.get(speaker).cloned() {
            None => Memory::new(notice),
            Some(known) => {
                if known.holds {
                    // The message covers all GPUs that had the finding, until the last of them is resolved. The
                    // evidence lists only GPUs that still have it.
                    let gone = known.notice.gpus.iter().filter(|gpu| !notice.gpus.contains(gpu));
                    let gone: Vec<_> = gone.cloned().collect();
                    notice.gpus.extend(gone);
                }
                notice.times = known.notice.times + u32::from(!known.holds);
                let is_news = known.told && changes(&known.notice, &mut notice);
                let has_grown =
                    known.told && has_grown && now_ms.saturating_sub(known.told_ms) >= GROWS_EVERY_MS;
                if is_news || has_grown {
                    self.out.push(notice.clone());
                }
                Memory {
                    notice,
                    holds: true,
                    told_ms: if is_news || has_grown {
                        now_ms
                    } else {
                        known.told_ms
                    },
                    ..known
                }
            }
        };
        self.known.0.insert(speaker.to_owned(), memory);
    }
}

/// Returns the key of the group message for a notice about a GPU.
fn speaker(notice: &Notice) -> Option<String> {
    let (Some(_), Some(node)) = (&notice.gpu, &notice.node) else {
        return None;
    };
    Some(format!("{}/{}/{}", notice.job, notice.finding, name(node)))
}

/// Returns the name of the group. It stays the same while GPUs join and leave, because receivers identify an alert by
/// it.
fn name(node: &str) -> String {
    format!("GPUs on {node}")
}

/// Merges the notices of a group's GPUs. The result has the highest severity, with evidence of each GPU, including GPUs
/// that have their own messages. Returns `None` if the group is empty.
fn sum(speaker: &str, own: &[&Memory], told: &[&Memory], now_ms: u64) -> Option<Notice> {
    let notices = own.iter().map(|memory| &memory.notice);
    let worst = notices
        .clone()
        .max_by(|a, b| a.severity.cmp(&b.severity).then(b.incident.cmp(&a.incident)))?;
    let first = notices.clone().min_by_key(|notice| notice.incident)?;
    let all = || own.iter().chain(told).map(|memory| &memory.notice);
    let shown = all().filter_map(|notice| {
        let gpu = notice.gpu.as_deref()?;
        Some(match notice.evidence.first() {
            Some(phrase) => format!("{gpu} {phrase}"),
            None => gpu.to_owned(),
        })
    });
    let mut evidence: Vec<String> = shown.collect();
    if let Some(more) = evidence.len().checked_sub(LISTED).filter(|more| *more > 0) {
        evidence.truncate(LISTED);
        evidence.push(format!("{more} more GPUs: see report.json"));
    }
    Some(Notice {
        key: speaker.to_owned(),
        worst: worst.severity,
        subject: name(worst.node.as_deref()?),
        gpu: None,
        gpus: all().filter_map(|notice| notice.gpu.clone()).collect(),
        action: worst.action.replace("this GPU", "each of these GPUs").into(),
        provenance: notices
            .clone()
            .map(|notice| notice.provenance)
            .fold(worst.provenance, Ord::max),
        incident: first.incident,
        times: 1,
        since: first.since.clone(),
        evidence,
        raised_ms: first.raised_ms,
        unix_ms: now_ms,
        unwatched: notices.clone().any(|notice| notice.unwatched),
        order: notices.filter_map(|notice| notice.order).max(),
        ..worst.clone()
    })
}
