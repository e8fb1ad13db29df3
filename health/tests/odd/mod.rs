//! Creates every kind of event with modified values. The events are the examples of docs/wire.md, whose test ensures
//! that no kind is missing.

use paceline_health::codec::line;
use paceline_health::{Entry, Frame, Time};
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Value, json};

const DOC: &str = include_str!("../../../docs/wire.md");

/// Number of ranks of the group that contains the examples' rank.
const RANKS: u32 = 4;

/// Returns the frames of an attached group of ranks, followed by its modified events, with consecutive numbers.
pub fn frames() -> impl Strategy<Value = Vec<(Time, Frame)>> {
    let examples: Vec<Value> = DOC
        .lines()
        .filter(|line| line.starts_with("{\"n\":"))
        .map(|line| serde_json::from_str(line).expect("an example"))
        .collect();
    let bends = vec(
        (any::<prop::sample::Index>(), prop::sample::select(values())),
        0..8,
    );
    let frame = (0..examples.len(), bends, 0..3_000_000_000_u64);
    vec(frame, 0..80).prop_map(move |picked| {
        let attach = examples
            .iter()
            .find(|example| example["frame"]["event"].get("attach").is_some());
        let mut told: Vec<Entry> = (0..RANKS)
            .map(|rank| {
                let mut entry = attach.expect("attach").clone();
                entry["frame"]["event"]["attach"]["rank"] = json!(rank);
                read(&entry).expect("an attached rank")
            })
            .collect();
        let mut at = 0;
        for (example, bends, after) in picked {
            let mut entry = examples[example].clone();
            for (leaf, value) in bends {
                bend(&mut entry, leaf, value);
            }
            at += after;
            entry["at_ns"] = json!(at);
            told.extend(read(&entry));
        }
        let numbered = (1..)
            .zip(told)
            .map(|(seq, entry)| (entry.at_ns, Frame { seq, ..entry.frame }));
        numbered.collect()
    })
}

/// Returns extreme numbers, and names that are valid in some place.
fn values() -> Vec<Value> {
    let mut values: Vec<Value> = (0..24).map(Value::from).collect();
    values.extend([u64::from(u32::MAX), 1 << 53, u64::MAX].map(Value::from));
    values.extend([-1.0, 0.5, 0.95, 1e-300, 1e300].map(Value::from));
    values.extend([Value::Null, true.into(), false.into()]);
    let words = [
        "",
        "train",
        "checkpoint",
        "evaluation",
        "wait",
        "compute",
        "S0",
        "S1",
        "n2",
        "step",
        "self_time",
        "nvml",
        "kernel_before",
        "switch",
        "denied",
        "lost",
        "unsupported",
        "ethernet",
        "GPU-1",
        "loss_spike",
    ];
    values.extend(words.map(Value::from));
    values
}

/// Replaces a leaf of the event with `value` if the result is still a valid event.
fn bend(entry: &mut Value, leaf: prop::sample::Index, value: Value) {
    let mut places = Vec::new();
    leaves(&entry["frame"]["event"], "/frame/event", &mut places);
    if places.is_empty() {
        return;
    }
    let place = leaf.get(&places);
    let before = entry.clone();
    if let Some(slot) = entry.pointer_mut(place) {
        *slot = value;
    }
    if read(entry).is_none() {
        *entry = before;
    }
}

fn leaves(value: &Value, place: &str, found: &mut Vec<String>) {
    let below = |key: &str| format!("{place}/{}", key.replace('~', "~0").replace('/', "~1"));
    match value {
        Value::Object(fields) => fields
            .iter()
            .for_each(|(key, value)| leaves(value, &below(key), found)),
        Value::Array(items) => {
            let items = items.iter().enumerate();
            items.for_each(|(index, value)| leaves(value, &below(&index.to_string()), found));
        }
        _ => found.push(place.to_owned()),
    }
}

fn read(entry: &Value) -> Option<Entry> {
    line::decode(&entry.to_string()).ok()
}
