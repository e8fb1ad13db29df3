//! Reads a NodeHealth's status field by field. If a field was written by another version, dropped by a schema or broken
//! by a user, only that field is lost. The rest of the record is kept, because a node without a record looks healthy.

use std::fmt;

use serde_json::{Map, Value, json};

use super::policy::Health;

/// Fields that every version writes. If one of them is missing, it is unknown why a node is out of service or how it
/// may return.
const ALWAYS: [&str; 4] = ["nodeUid", "rung", "held", "incidents"];
/// Fields that are reset when they cannot be read, since they affect no action.
const HARMLESS: [&str; 12] = [
    "decisions",
    "hindered",
    "history",
    "jobs",
    "reason",
    "recovery",
    "refused",
    "remedies",
    "shadow",
    "since",
    "state",
    "unkept",
];

/// A part of a status that could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// The part's path, such as `incidents.ml/train/gpu-lost`.
    pub path: String,
    /// The error.
    pub why: String,
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} cannot be read: {}", self.path, self.why)
    }
}

/// A NodeHealth as read; see the module documentation.
#[derive(Debug, Default)]
pub struct Record {
    /// The readable parts.
    pub health: Health,
    /// The unreadable parts.
    pub lost: Vec<Lost>,
}

impl Record {
    /// Reads a NodeHealth. The Node that owns it is the node that it is about.
    pub fn read(object: &Value) -> Record {
        let mut record = Record::default();
        match &object["status"] {
            Value::Object(fields) => record.take(fields),
            Value::Null => record.lose("status", "there is none"),
            _ => record.lose("status", "it is not an object"),
        }
        let owner = &object["metadata"]["ownerReferences"][0];
        if record.health.node_uid.is_empty()
            && owner["kind"] == "Node"
            && let Some(uid) = owner["uid"].as_str()
        {
            uid.clone_into(&mut record.health.node_uid);
            record.lost.retain(|lost| lost.path != "nodeUid");
        }
        number(&mut record.health);
        record
    }

    /// Returns the unreadable fields that matter, as text, or `None` if there are none.
    pub fn doubt(&self) -> Option<String> {
        let field = |lost: &&Lost| {
            let field = lost.path.split('.').next().unwrap_or_default();
            !HARMLESS.contains(&field)
        };
        let paths: Vec<&str> = self.lost.iter().filter(field).map(|lost| &*lost.path).collect();
        (!paths.is_empty()).then(|| paths.join(", "))
    }

    fn take(&mut self, fields: &Map<String, Value>) {
        let mut kept = Map::new();
        for (field, value) in fields {
            let Some(why) = problem(field, value) else {
                kept.insert(field.clone(), value.clone());
                continue;
            };
            match value {
                Value::Object(entries) if field == "incidents" => {
                    let entries = entries.iter().filter(|(key, entry)| {
                        self.keeps(&format!("{field}.{key}"), problem(field, &json!({ *key: entry })))
                    });
                    let entries: Map<_, _> =
                        entries.map(|(key, entry)| (key.clone(), entry.clone())).collect();
                    kept.insert(field.clone(), Value::from(entries));
                }
                Value::Array(items) => {
                    let items = items.iter().enumerate().filter(|(index, item)| {
                        self.keeps(&format!("{field}.{index}"), problem(field, &json!([item])))
                    });
                    let items: Vec<Value> = items.map(|(_, item)| item.clone()).collect();
                    kept.insert(field.clone(), Value::from(items));
                }
                _ => self.lose(field, &why),
            }
        }
        for field in ALWAYS.iter().filter(|field| !fields.contains_key(**field)) {
            self.lose(field, "it is missing");
        }
        match serde_json::from_value(Value::from(kept)) {
            Ok(health) => self.health = health,
            // Each part was readable by itself, but the whole is not.
            Err(error) => self.lose("status", &error.to_string()),
        }
    }

    fn keeps(&mut self, path: &str, problem: Option<String>) -> bool {
        if let Some(why) = &problem {
            self.lose(path, why);
        }
        problem.is_none()
    }

    fn lose(&mut self, path: &str, why: &str) {
        self.lost.push(Lost {
            path: path.to_owned(),
            why: why.to_owned(),
        });
    }
}

/// Returns why a value is invalid for this field.
fn problem(field: &str, value: &Value) -> Option<String> {
    let alone = serde_json::from_value::<Health>(json!({ field: value }));
    alone.err().map(|error| error.to_string())
}

/// Reconstructs the numbers of decisions from the last one. Until version 0.1.0, API servers dropped these numbers.
fn number(health: &mut Health) {
    let most = health.history.iter().map(|entry| entry.number).max();
    let count = u64::try_from(health.history.len()).unwrap_or(u64::MAX);
    health.decisions = health.decisions.max(most.unwrap_or(0)).max(count);
    if health.history.iter().any(|entry| entry.number == 0) {
        let numbers = health.decisions + 1 - count..;
        for (entry, number) in health.history.iter_mut().zip(numbers) {
            entry.number = number;
        }
    }
}

#[cfg(test)]
#[path = "record_tests.rs"]
mod tests;
