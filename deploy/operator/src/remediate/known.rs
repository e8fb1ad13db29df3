//! The state of a node in memory, and its copy in the cluster.

use std::collections::BTreeMap;

use serde_json::Value;

use super::nodes::Nodes;
use super::objects;
use super::policy::{Census, Health, Mode, NodeView, Rules, Rung};
use super::record::Record;
use super::retry::Retry;
use crate::api::{Api, Failed};
use crate::say;
use crate::timestamp::now_ms;

/// How often a state is written if nothing but times has changed.
const WRITE_EVERY_MS: u64 = 30_000;
/// Age up to which Events are written again after a restart. For a more recent decision, it is unknown whether the
/// previous process wrote its Event.
const TOLD_AFTER_MS: u64 = 600_000;

/// The state of a node, and what was written to the cluster.
#[derive(Default)]
pub struct Known {
    /// The current state.
    pub health: Health,
    /// The state as last written to the cluster.
    pub written: Health,
    /// When the state was written.
    pub written_ms: u64,
    /// The resourceVersion of the node's NodeHealth, or empty if there is no NodeHealth.
    pub version: String,
    /// True if the state must be written and has not been written yet.
    pub is_unwritten: bool,
    /// Number of the last decision whose Event was written.
    pub told: u64,
    /// Retries for the NodeHealth. All other writes depend on it.
    pub record: Retry,
    /// Retries for actions on the node.
    pub deeds: Retry,
    /// Retries for the node's condition. Nothing depends on it.
    pub condition: Retry,
    /// Retries for Events. Nothing depends on them.
    pub events: Retry,
    /// Relevant parts of the NodeHealth that could not be read. It is cleared when the record has been compared with
    /// the node.
    pub doubt: Option<String>,
}

impl Known {
    /// Reads a NodeHealth as far as possible. Unreadable parts are logged.
    fn of(object: &Value) -> Known {
        let record = Record::read(object);
        for lost in &record.lost {
            let name = &object["metadata"]["name"];
            say(format_args!("the NodeHealth {name}: {lost}"));
        }
        let doubt = record.doubt();
        let health = record.health;
        let old = health
            .history
            .iter()
            .filter(|entry| now_ms().saturating_sub(entry.at) > TOLD_AFTER_MS);
        let told = old.map(|entry| entry.number).max().unwrap_or(0);
        Known {
            written: health.clone(),
            health,
            written_ms: now_ms(),
            version: objects::version(object),
            told,
            doubt,
            ..Known::default()
        }
    }

    /// Fills gaps in the node's record from the Node. If the gaps concern why the node is out of service or how it
    /// returns, only an administrator can return it to service, because its fault is unknown.
    fn beside(&mut self, node: &NodeView, now: u64) {
        let health = &mut self.health;
        if health.node_uid.is_empty() {
            health.node_uid.clone_from(&node.uid);
        }
        if self.version.is_empty() || health.node_uid != node.uid {
            return;
        }
        // If the boot ID is unknown, use the current one, so that incidents are not closed as if the node had rebooted.
        if health.boot.is_empty() {
            health.boot.clone_from(&node.boot);
        }
        let Some(doubt) = self.doubt.take() else { return };
        let bears = node.bears();
        if bears == Rung::Cordon && health.mark.is_none() {
            health.mark.clone_from(&node.mark);
        }
        health.rung = health.rung.max(bears);
        if health.rung > Rung::None {
            health.held = true;
            let says = format!("its record could not be read completely ({doubt}): a person must check");
            health.note(now, "unreadable", says);
        }
    }

    /// Writes the state to the cluster.
    ///
    /// # Errors
    /// Returns [`Failed`] if the operation fails.
    pub async fn write(&mut self, api: &Api, name: &str, now: u64) -> Result<(), Failed> {
        let object = objects::with_status(name, &self.version, &self.health);
        let path = format!("{}/{name}/status", objects::HEALTHS);
        self.version = objects::version(&api.put(&path, &object).await?);
        self.written = self.health.clone();
        (self.written_ms, self.is_unwritten) = (now, false);
        Ok(())
    }

    /// Returns true if the state must be written. A change that consists only of repeated reports is not written each
    /// time.
    pub fn is_worth_a_write(&self, now: u64) -> bool {
        let is_late = now.saturating_sub(self.written_ms) >= WRITE_EVERY_MS;
        self.health != self.written
            && (is_late || without_times(&self.health) != without_times(&self.written))
    }
}

fn without_times(health: &Health) -> Health {
    let mut health = health.clone();
    health.unkept = health.unkept.min(1);
    for incident in health.incidents.values_mut() {
        (incident.heard, incident.said) = (0, 0);
    }
    health
}

/// Reads all NodeHealths in the cluster.
///
/// # Errors
/// Returns [`Failed`] if the operation fails.
pub async fn read(api: &Api) -> Result<BTreeMap<String, Known>, Failed> {
    let mut all = BTreeMap::new();
    let take = |object: &Value| {
        if let Some(name) = object["metadata"]["name"].as_str() {
            all.insert(name.to_owned(), Known::of(object));
        }
    };
    api.list(objects::HEALTHS, "", take).await?;
    Ok(all)
}

/// Adopts nodes that have the operator's marks but no record. Their record was lost, so they are checked and then
/// returned to service. For a node with a record, the record decides. No node is taken to a higher action level than
/// its marks show. No more nodes are adopted than the limits allow, because others can set such labels too. Returns the
/// nodes that were not adopted.
pub fn adopt(all: &mut BTreeMap<String, Known>, nodes: &Nodes, rules: &Rules, now: u64) -> Vec<String> {
    for (name, known) in all.iter_mut() {
        if let Some(node) = nodes.one(name) {
            known.beside(&node, now);
        }
    }
    let records = all.iter().map(|(name, known)| (name, &known.health));
    let mut census = Census::of(records, &nodes.fleet(), None, rules, now);
    let mut left = Vec::new();
    for node in nodes.ours() {
        let record = all.get(&node.name).map(|known| known.health.node_uid.as_str());
        let rung = node.bears();
        if rules.mode < Mode::Act || rung == Rung::None || record == Some(&node.uid) {
            continue;
        }
        if rung.is_out() && census.admits(Mode::Act, &BTreeMap::new(), rules).is_err() {
            left.push(node.name);
            continue;
        }
        let mut health = Health::of(&node.uid, &node.boot, now);
        health.rung = rung;
        health.mark = node.mark.filter(|_| rung == Rung::Cordon);
        health.note(
            now,
            "adopted",
            "it has marks of paceline without a record of the reason",
        );
        census.count(&node.name, &health);
        all.entry(node.name).or_default().health = health;
    }
    left
}

#[cfg(test)]
#[path = "known_tests.rs"]
mod tests;
