use paceline_health::verdict::{Finding, Severity};

use super::*;
use crate::remediate::policy::Rung;

/// Returns the record of a node that is out of service because of a lost GPU.
fn drained() -> Value {
    json!({
        "metadata": { "name": "n1", "ownerReferences": [{ "apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "u1" }] },
        "status": {
            "nodeUid": "u1", "boot": "b1", "gpus": 8, "sliced": false, "claims": false, "state": "Drained",
            "reason": "gpu-lost of gpu 1 (job ml/train)", "since": "2026-11-22T22:59:59.000Z", "rung": "evict", "shadow": "none",
            "mark": "paceline-remediator/2", "cordoned": true, "held": false, "jobs": ["ml/train"], "unkept": 0,
            "incidents": { "k1": {
                "finding": "gpu-lost", "subject": "gpu 1", "job": "ml/train", "jobNodes": 4, "severity": "critical",
                "provenance": "live", "observeOnly": false, "since": "2026-11-22T22:59:59.000Z",
                "heard": "2026-11-22T22:59:59.000Z", "times": 1, "said": 3, "boot": "b1", "ripe": true } },
            "drain": { "until": "2026-11-22T23:59:59.000Z", "next": "2026-11-22T22:59:59.000Z", "left": 0, "done": true },
            "remedies": [1_795_388_399_000_u64], "decisions": 3,
            "history": [
                { "number": 1, "at": "2026-11-22T22:59:57.000Z", "what": "raised", "says": "gpu-lost" },
                { "number": 2, "at": "2026-11-22T22:59:58.000Z", "what": "evict", "says": "gpu-lost" },
                { "number": 3, "at": "2026-11-22T22:59:59.000Z", "what": "drained", "says": "all pods have left" }],
        },
    })
}

fn numbers(record: &Record) -> Vec<u64> {
    record.health.history.iter().map(|entry| entry.number).collect()
}

#[test]
fn one_that_is_whole_is_read_whole() {
    let record = Record::read(&drained());
    assert_eq!((record.doubt(), record.lost.len()), (None, 0));
    assert_eq!(serde_json::to_value(&record.health).unwrap(), drained()["status"]);
}

/// Tests the decisions as API servers stored them under a schema whose key `n` was `false`.
#[test]
fn one_without_its_numbers_is_read_and_they_count_back_from_the_last() {
    let mut object = drained();
    object["status"]["decisions"] = json!(7);
    for entry in object["status"]["history"].as_array_mut().unwrap() {
        entry.as_object_mut().unwrap().remove("number");
    }
    let record = Record::read(&object);
    assert_eq!((record.doubt(), record.lost.len()), (None, 0));
    assert_eq!(record.health.rung, Rung::Evict);
    assert_eq!(record.health.open().count(), 1);
    assert_eq!(numbers(&record), [5, 6, 7]);
    // The numbers are also read under their old name, where they were stored.
    for (index, entry) in object["status"]["history"]
        .as_array_mut()
        .unwrap()
        .iter_mut()
        .enumerate()
    {
        entry["n"] = json!(index + 2);
    }
    assert_eq!(numbers(&Record::read(&object)), [2, 3, 4]);
}

/// Each field of a status and of an incident is once missing and once of a wrong type. The rest is read nevertheless.
#[test]
fn one_field_costs_no_more_than_itself() {
    let fields: Vec<String> = drained()["status"].as_object().unwrap().keys().cloned().collect();
    for field in fields {
        for broken in [None, Some(json!({ "of": ["another", "kind"] }))] {
            let mut object = drained();
            match &broken {
                None => drop(object["status"].as_object_mut().unwrap().remove(&field)),
                Some(other) => object["status"][&field] = other.clone(),
            }
            let record = Record::read(&object);
            let is_out = record.health.rung == Rung::Evict;
            assert!(is_out || field == "rung", "{field}: {broken:?}");
            let is_open = record.health.open().count() == 1;
            assert!(is_open || field == "incidents", "{field}: {broken:?}");
            if broken.is_some() && field != "nodeUid" {
                assert!(
                    record.lost.iter().any(|lost| lost.path.starts_with(&field)),
                    "{field}"
                );
            }
            if ["rung", "held", "incidents"].contains(&&*field) {
                assert!(record.doubt().unwrap().contains(&field), "{field}: {broken:?}");
            }
        }
    }
    let fields: Vec<String> = drained()["status"]["incidents"]["k1"]
        .as_object()
        .unwrap()
        .keys()
        .cloned()
        .collect();
    for field in fields.iter().filter(|field| *field != "finding") {
        let mut object = drained();
        object["status"]["incidents"]["k1"]
            .as_object_mut()
            .unwrap()
            .remove(field);
        let record = Record::read(&object);
        assert_eq!(record.doubt(), None, "{field}");
        let incident = record.health.open().next().unwrap();
        assert_eq!(
            (incident.finding, incident.severity),
            (Finding::GpuLost, Severity::Critical),
            "{field}"
        );
        // An incident must not end immediately because its time is unknown.
        assert!(
            incident.heard > 1_700_000_000_000 && incident.since > 1_700_000_000_000,
            "{field}"
        );
    }
}

/// An incident was written by another version, for example with a later finding.
#[test]
fn an_incident_that_cannot_be_read_leaves_the_others_and_is_doubted() {
    let mut object = drained();
    object["status"]["incidents"]["k2"] = object["status"]["incidents"]["k1"].clone();
    object["status"]["incidents"]["k2"]["finding"] = json!("of-another-century");
    let record = Record::read(&object);
    assert_eq!(record.doubt().as_deref(), Some("incidents.k2"));
    assert_eq!(record.health.open().count(), 1);
    assert!(
        record.lost[0]
            .to_string()
            .starts_with("incidents.k2 cannot be read: "),
        "{}",
        record.lost[0]
    );
    // An unknown field is ignored.
    let mut object = drained();
    (
        object["status"]["since2"],
        object["status"]["incidents"]["k1"]["colour"],
    ) = (json!(1), json!("red"));
    let record = Record::read(&object);
    assert_eq!(
        (record.doubt(), record.lost.len(), record.health.open().count()),
        (None, 0, 1)
    );
}

#[test]
fn the_owner_says_which_node_it_is() {
    let mut object = drained();
    object["status"].as_object_mut().unwrap().remove("nodeUid");
    let record = Record::read(&object);
    assert_eq!((record.health.node_uid.as_str(), record.doubt()), ("u1", None));
    for status in [json!(null), json!("gone"), json!([1])] {
        object["status"] = status;
        let record = Record::read(&object);
        assert_eq!(
            (record.health.node_uid.as_str(), record.doubt().as_deref()),
            ("u1", Some("status"))
        );
    }
}
