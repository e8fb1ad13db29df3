//! Findings as people read them, on the page, in top, in reports and messages: the same finding of several GPUs of one
//! node is one card. Verdicts stay one for each GPU: remedies act on GPUs, and each ends by itself.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::fault::Order;
use crate::id::{GpuId, NodeId};
use crate::verdict::{ALIKE_GPUS, Cause, Evidence, Finding, Severity, State, Subject, Verdict};

/// GPUs of a node with the same finding that are one card; fewer have a card each.
pub const MIN_ALIKE_GPUS: usize = 3;
/// What is over and what was raised within this time after that are of one episode.
const EPISODE_GAP_S: f64 = 60.0;
/// Characters of a GPU's name in the evidence: enough to tell the GPUs of a node apart.
const SHORT_NAME: usize = 12;

/// One finding as people read it.
#[derive(Clone, Debug, PartialEq)]
pub struct Card<'a> {
    /// A verdict as it is, or the sum of several.
    pub verdict: Cow<'a, Verdict>,
    /// The GPUs whose verdicts it sums up; empty: it is one verdict.
    pub gpus: Vec<&'a GpuId>,
}

/// What verdicts of one card have alike.
type Alike<'a> = (Finding, Cause, &'a NodeId, Severity, bool, bool, Option<Order>);

/// Cards of all verdicts, the weightiest first.
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

/// Those whose times overlap, or nearly: what came back a day later is another story.
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
            // Its latest has what there was last.
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

/// What the verdicts of one episode come to. Its number is that of the first, so that it stays while others join.
fn sum(members: &[&Verdict], by_gpu: &BTreeMap<&GpuId, &Verdict>) -> Option<Verdict> {
    let first = members.iter().min_by_key(|verdict| verdict.id)?;
    let earliest = members.iter().min_by(|a, b| a.since_s.total_cmp(&b.since_s))?;
    let surest = members.iter().min_by(|a, b| a.raised_s.total_cmp(&b.raised_s))?;
    let Subject::Gpu { node, .. } = &first.subject else {
        return None;
    };
    let ends = members.iter().filter_map(|verdict| verdict.cleared_s);
    // A GPU's finding costs what the whole job has to train again: for several GPUs that is the same loss, once.
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

/// How many GPUs, then what each shows.
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
