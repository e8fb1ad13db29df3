//! Checks crd.yaml against what the program writes. An API server drops fields that a schema lacks, and a field in the
//! schema that is never written misleads users.

use paceline_health::Provenance;
use paceline_health::fault::{Order, Remedy, When};
use paceline_health::verdict::{Finding, Severity};
use serde::Serialize;
use serde_json::Value;

use super::super::health::{Check, Drain, Entry, Health, Recovery, State};
use super::super::incident::{self, Closed, Incident, Report};
use super::super::rules::Rung;
use crate::timestamp;

/// Returns the schema of a NodeHealth's status.
fn schema() -> Value {
    let crd: Value = serde_saphyr::from_str(include_str!("../../../../crd.yaml")).unwrap();
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"].clone()
}

/// Returns a state with every field set.
fn full() -> Health {
    let incident = Incident {
        finding: Finding::GpuLost,
        subject: "gpu".into(),
        job: "ml/train".into(),
        job_nodes: 4,
        severity: Severity::Critical,
        provenance: Provenance::Live,
        observe_only: true,
        order: Some(Order {
            remedy: Remedy::RebootNode,
            when: When::Now,
        }),
        since: 1,
        heard: 2,
        times: 1,
        said: 2,
        boot: "b".into(),
        ripe: true,
        closed: Some(Closed::Resolved),
    };
    Health {
        node_uid: "u".into(),
        boot: "b".into(),
        gpus: 8,
        sliced: true,
        claims: true,
        state: State::Draining,
        reason: "r".into(),
        since: 1,
        rung: Rung::Evict,
        shadow: Rung::Evict,
        mark: Some("m".into()),
        cordoned: true,
        held: true,
        repaired: Some("w".into()),
        jobs: vec!["ml/train".into()],
        incidents: [("k".to_owned(), incident)].into(),
        unkept: 1,
        drain: Some(Drain {
            until: 1,
            paused: Some(1),
            next: 1,
            left: Some(1),
            blocked: Some("quorum".into()),
            done: false,
        }),
        hindered: Some("403".into()),
        recovery: Some(Recovery {
            clean: 1,
            next: 1,
            preflight: Some(Check {
                name: "p".into(),
                until: 1,
            }),
            failures: 1,
            unrun: Some("Unschedulable".into()),
        }),
        remedies: vec![1],
        refused: Some("breaker".into()),
        history: [Entry {
            number: 1,
            at: 1,
            what: "raised".into(),
            says: "s".into(),
        }]
        .into(),
        decisions: 1,
    }
}

/// Checks that a value matches its schema exactly.
fn walk(schema: &Value, value: &Value, path: &str) {
    let is_it = match schema["type"].as_str() {
        Some("object") => value.is_object(),
        Some("array") => value.is_array(),
        Some("string") => value.is_string(),
        Some("boolean") => value.is_boolean(),
        Some("integer") => value.is_u64(),
        other => panic!("{path}: the type {other:?}"),
    };
    assert!(is_it, "{path}: {value} is no {}", schema["type"]);
    if schema["format"] == "date-time" {
        assert!(
            value.as_str().and_then(timestamp::read).is_some(),
            "{path}: {value}"
        );
    }
    if let Some(values) = schema["enum"].as_array() {
        assert!(values.contains(value), "{path}: {value} is none of {values:?}");
    }
    match value {
        Value::Object(map) if schema["properties"].is_object() => {
            let known: Vec<&String> = schema["properties"].as_object().unwrap().keys().collect();
            let written: Vec<&String> = map.keys().collect();
            assert_eq!(sorted(known), sorted(written), "{path}: in crd.yaml, and written");
            for (key, value) in map {
                walk(&schema["properties"][key], value, &format!("{path}.{key}"));
            }
        }
        Value::Object(map) => {
            assert!(!map.is_empty(), "{path}: nothing to look at");
            map.values()
                .for_each(|value| walk(&schema["additionalProperties"], value, path));
        }
        Value::Array(list) => {
            assert!(!list.is_empty(), "{path}: nothing to look at");
            list.iter().for_each(|value| walk(&schema["items"], value, path));
        }
        _ => {}
    }
}

fn sorted(mut names: Vec<&String>) -> Vec<&String> {
    names.sort();
    names
}

#[test]
fn each_field_is_in_the_schema_and_the_schema_has_no_other() {
    walk(&schema(), &serde_json::to_value(full()).unwrap(), "status");
    // Before the first round, `left` is the only field that is written as null.
    let mut health = full();
    health.drain.as_mut().unwrap().left = None;
    let left = &schema()["properties"]["drain"]["properties"]["left"];
    assert!(serde_json::to_value(&health).unwrap()["drain"]["left"].is_null());
    assert_eq!(left["nullable"], true);
}

/// Returns all serialized variants, starting with `first`. The match in `next` is exhaustive, so that a new variant
/// cannot be missed.
fn all<T: Copy + Serialize>(first: T, next: fn(T) -> Option<T>) -> Value {
    let words = std::iter::successors(Some(first), |one| next(*one));
    words.map(|one| serde_json::to_value(one).unwrap()).collect()
}

#[test]
fn words_are_those_that_are_written() {
    let states = all(State::Healthy, |state| match state {
        State::Healthy => Some(State::Suspect),
        State::Suspect => Some(State::Flagged),
        State::Flagged => Some(State::OutOfService),
        State::OutOfService => Some(State::Draining),
        State::Draining => Some(State::Drained),
        State::Drained => Some(State::DrainBlocked),
        State::DrainBlocked => Some(State::Recovering),
        State::Recovering => Some(State::Held),
        State::Held => Some(State::Gone),
        State::Gone => None,
    });
    let rungs = all(Rung::None, |rung| match rung {
        Rung::None => Some(Rung::Event),
        Rung::Event => Some(Rung::Condition),
        Rung::Condition => Some(Rung::Label),
        Rung::Label => Some(Rung::Taint),
        Rung::Taint => Some(Rung::Cordon),
        Rung::Cordon => Some(Rung::Evict),
        Rung::Evict => None,
    });
    let severities = all(Severity::Info, |severity| match severity {
        Severity::Info => Some(Severity::Warning),
        Severity::Warning => Some(Severity::Critical),
        Severity::Critical => None,
    });
    let ends = all(Closed::Resolved, |closed| match closed {
        Closed::Resolved => Some(Closed::Expired),
        Closed::Expired => Some(Closed::Repaired),
        Closed::Repaired => Some(Closed::Rebooted),
        Closed::Rebooted => Some(Closed::Overridden),
        Closed::Overridden => None,
    });
    let status = &schema()["properties"];
    let incident = &status["incidents"]["additionalProperties"]["properties"];
    for (named, written) in [
        (&status["state"], states),
        (&status["rung"], rungs.clone()),
        (&status["shadow"], rungs),
        (&incident["severity"], severities),
        (&incident["closed"], ends),
    ] {
        assert_eq!(named["enum"], written);
    }
}

#[test]
fn nothing_grows_longer_than_the_schema_lets_it() {
    let mut health = Health::of("u", "b", 0);
    for index in 0..100 {
        health.note(index, "raised", "s");
        health.remedied(index);
        let report = Report {
            key: format!("k{index}"),
            job: format!("ml/train-{index}"),
            job_nodes: 1,
            finding: Finding::GpuLost,
            subject: "gpu".into(),
            severity: Severity::Critical,
            provenance: Provenance::Live,
            observe_only: false,
            order: None,
            holds: true,
        };
        incident::hear(&mut health.incidents, report, index, "b");
    }
    let status = &schema()["properties"];
    for (most, is) in [
        (&status["history"]["maxItems"], health.history.len()),
        (&status["remedies"]["maxItems"], health.remedies.len()),
        (&status["incidents"]["maxProperties"], health.incidents.len()),
    ] {
        assert_eq!(*most, is);
    }
}
