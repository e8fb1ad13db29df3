//! What is known of a node beside what stands in the cluster of it.

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

/// That nothing but times has changed is written so often.
const WRITE_EVERY_MS: u64 = 30_000;
/// Of what was decided so shortly before a crash it is not known whether it was told.
const TOLD_AFTER_MS: u64 = 600_000;

/// What is known of a node, and what stands in the cluster of it.
#[derive(Default)]
pub struct Known {
    /// What is known.
    pub health: Health,
    /// What stands in the cluster.
    pub written: Health,
    /// Since when.
    pub written_ms: u64,
    /// resourceVersion of its NodeHealth; empty: there is none.
    pub version: String,
    /// What is known was to be written, and that has not been done yet.
    pub is_unwritten: bool,
    /// Decisions up to this one were told.
    pub told: u64,
    /// Its NodeHealth, which all else waits for.
    pub record: Retry,
    /// What is done with the node.
    pub deeds: Retry,
    /// Its condition, which nothing else waits for.
    pub condition: Retry,
    /// Events, for which nothing waits either.
    pub events: Retry,
    /// What of its NodeHealth could not be read and counts, until it was looked at beside the node.
    pub doubt: Option<String>,
}

impl Known {
    /// Of a NodeHealth, as far as it can be read; what cannot is said.
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

    /// What its record lacks is taken from the node. Where that is why it is out, or how it comes back, only a person gives it back: what
    /// is wrong with it is not known.
    fn beside(&mut self, node: &NodeView, now: u64) {
        let health = &mut self.health;
        if health.node_uid.is_empty() {
            health.node_uid.clone_from(&node.uid);
        }
        if self.version.is_empty() || health.node_uid != node.uid {
            return;
        }
        // A start of the node that was not seen closes nothing.
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

    /// Writes it over what stands in the cluster.
    ///
    /// # Errors
    /// [`Failed`]
    pub async fn write(&mut self, api: &Api, name: &str, now: u64) -> Result<(), Failed> {
        let object = objects::with_status(name, &self.version, &self.health);
        let path = format!("{}/{name}/status", objects::HEALTHS);
        self.version = objects::version(&api.put(&path, &object).await?);
        self.written = self.health.clone();
        (self.written_ms, self.is_unwritten) = (now, false);
        Ok(())
    }

    /// That the same was said again is not worth a write each time.
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

/// All that stand in the cluster.
///
/// # Errors
/// [`Failed`]
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

/// A node that bears our marks without a record of ours is checked and let back: the record was lost. Where there is one, it says what the
/// node should bear. Nobody is taken further than the node bears by itself, and no more nodes are taken for ours than we may have taken out:
/// others write such words too. Those that are left as they are.
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
