//! Findings as displayed on the page, in `top`, in reports and messages. The same finding on several GPUs of one node
//! is one card. Verdicts remain per GPU, because remedies act on GPUs and each verdict clears separately.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::fault::Order;
use crate::id::{GpuId, NodeId};
use crate::verdict::{ALIKE_GPUS, Cause, Evidence, Finding, Severity, State, Subject, Verdict};

/// If at least this many GPUs of a node have the same finding, they share a card.
pub const MIN_ALIKE_GPUS: usize = 3;
/// A verdict raised within this time after another one cleared belongs to the same episode.
const EPISODE_GAP_S: f64 = 60.0;
/// Number of characters of a GPU's name in the evidence. They are enough to distinguish the GPUs of a node.
const SHORT_NAME: usize = 12;

/// One displayed finding.
#[derive(Clone, Debug, PartialEq)]
pub struct Card<'a> {
    /// A single verdict, or the summary of several.
    pub verdict: Cow<'a, Verdict>,
    /// The GPUs of the summarized verdicts. Empty for a single verdict.
    pub gpus: Vec<&'a GpuId>,
}

/// The properties that must be equal for verdicts to share a card.
type Alike<'a> = (Finding, Cause, &'a NodeId, Severity, bool, bool, Option<Order>);

/// Returns the cards of all verdicts, most important first.
pub fn cards(verdicts: &[Verdict]) -> Vec<Card<'_>> {
    let mut alike: BTreeMap<Alike<'_>, Vec<&Verdict>> = BTreeMap::new();
    let mut cards = Vec::new();
    for verdict in verdicts {
        match key(verdict) {
            Some(key) => alike.entry(key).or_default().push(verdict),
            None => cards.push(single(verdict)),
        }
    }
    for members in alike.into_values() {
        for episode in episodes(members) {
            cards.extend(cards_of(episode));
        }
    }
    cards.sort_by_cached_key(|card| card.verdict.weight());
    cards
}

fn key(verdict: &Verdict) -> Option<Alike<'_>> {
    let Subject::Gpu { node, .. } = &verdict.subject else {
        return None;
    };
    let is_over = verdict.state == State::Cleared;
    Some((
        verdict.finding,
        verdict.cause,
        node,
        verdict.severity,
        is_over,
        verdict.observe_only,
        verdict.order,
    ))
}

fn single(verdict: &Verdict) -> Card<'_> {
    Card {
        verdict: Cow::Borrowed(verdict),
        gpus: Vec::new(),
    }
}

/// Groups verdicts that overlap or nearly overlap in time. A recurrence a day later is a separate episode.
fn episodes(mut members: Vec<&Verdict>) -> Vec<Vec<&Verdict>> {
    members.sort_by(|a, b| a.raised_s.total_cmp(&b.raised_s).then(a.id.cmp(&b.id)));
    let mut episodes: Vec<(f64, Vec<&Verdict>)> = Vec::new();
    for verdict in members {
        let end = verdict.cleared_s.unwrap_or(f64::INFINITY);
        match episodes.last_mut() {
            Some((until, episode)) if verdict.raised_s <= *until + EPISODE_GAP_S => {
                *until = until.max(end);
                episode.push(verdict);
            }
            _ => episodes.push((end, vec![verdict])),
        }
    }
    episodes.into_iter().map(|(_, episode)| episode).collect()
}

fn cards_of(members: Vec<&Verdict>) -> Vec<Card<'_>> {
    let mut by_gpu: BTreeMap<&GpuId, &Verdict> = BTreeMap::new();
    for verdict in &members {
        if let Subject::Gpu { gpu_uuid, .. } = &verdict.subject {
            // If a GPU has several verdicts, its latest one is used.
            by_gpu.insert(gpu_uuid, verdict);
        }
    }
    if by_gpu.len() < MIN_ALIKE_GPUS {
        return members.into_iter().map(single).collect();
    }
    let verdict = sum(&members, &by_gpu);
    let gpus = by_gpu.into_keys().collect();
    verdict.map_or_else(Vec::new, |verdict| {
        vec![Card {
            verdict: Cow::Owned(verdict),
            gpus,
        }]
    })
}

/// Returns the summary of one episode. It has the id of the first verdict, so that the id stays when others join.
fn sum(members: &[&Verdict], by_gpu: &BTreeMap<&GpuId, &Verdict>) -> Option<Verdict> {
    let first = members.iter().min_by_key(|verdict| verdict.id)?;
    let earliest = members.iter().min_by(|a, b| a.since_s.total_cmp(&b.since_s))?;
    let surest = members.iter().min_by(|a, b| a.raised_s.total_cmp(&b.raised_s))?;
    let Subject::Gpu { node, .. } = &first.subject else {
        return None;
    };
    let ends = members.iter().filter_map(|verdict| verdict.cleared_s);
    // The loss is not the sum over the GPUs. Each GPU's finding costs the work that the whole job must repeat, and
    // several GPUs cause the same loss only once.
    let hours = members.iter().map(|verdict| verdict.lost_gpu_hours);
    let costs = members.iter().filter_map(|verdict| verdict.lost_cost);
    Some(Verdict {
        subject: Subject::Node { node: node.clone() },
        since_s: earliest.since_s,
        since_step: earliest.since_step,
        raised_s: surest.raised_s,
        raised_step: surest.raised_step,
        cleared_s: ends.reduce(f64::max),
        provenance: members
            .iter()
            .map(|verdict| verdict.provenance)
            .fold(first.provenance, Ord::max),
        evidence: evidence(by_gpu),
        lost_gpu_hours: hours.fold(0.0, f64::max),
        lost_cost: costs.reduce(f64::max),
        action: first.action.replace("this GPU", "each of these GPUs").into(),
        ..(*first).clone()
    })
}

/// Returns the number of GPUs, and then the evidence of each GPU.
fn evidence(by_gpu: &BTreeMap<&GpuId, &Verdict>) -> Vec<Evidence> {
    let each = by_gpu.iter().map(|(gpu, verdict)| {
        let name: String = gpu.as_str().chars().take(SHORT_NAME).collect();
        match verdict.evidence.first() {
            Some(shown) => Evidence {
                what: format!("{name}: {}", shown.what).into(),
                ..shown.clone()
            },
            None => piece(&format!("{name}: since_s"), verdict.since_s),
        }
    });
    let count = piece(ALIKE_GPUS, by_gpu.len() as f64);
    std::iter::once(count).chain(each).collect()
}

fn piece(what: &str, value: f64) -> Evidence {
    Evidence {
        what: what.into(),
        value,
        peers: None,
        entries: None,
    }
}

#[cfg(test)]
#[path = "cards_tests.rs"]
mod tests;
