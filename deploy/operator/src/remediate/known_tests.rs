use serde_json::json;

use super::*;
use crate::remediate::policy::marks::{LABEL, MARK, TAINT};

/// Adds a node with this name and these marks.
fn bearing(nodes: &Nodes, name: &str, labels: Value, annotations: Value, spec: Value) {
    nodes.saw(&json!({
        "metadata": { "name": name, "uid": format!("uid-{name}"), "labels": labels, "annotations": annotations },
        "spec": spec,
    }));
}

fn tainted() -> Value {
    json!({ "taints": [{ "key": TAINT, "effect": "NoSchedule" }] })
}

fn adopted(all: &BTreeMap<String, Known>) -> Vec<(&str, Rung)> {
    all.iter()
        .map(|(name, known)| (name.as_str(), known.health.rung))
        .collect()
}

#[test]
fn nobody_is_taken_further_than_he_is() {
    let (nodes, mut all) = (Nodes::default(), BTreeMap::new());
    let mark = json!({ MARK: "paceline-remediator/7" });
    bearing(
        &nodes,
        "cordoned",
        json!({}),
        mark.clone(),
        json!({ "unschedulable": true }),
    );
    bearing(
        &nodes,
        "labelled",
        json!({ LABEL: "unhealthy" }),
        json!({}),
        json!({}),
    );
    bearing(&nodes, "marked", json!({}), mark, json!({}));
    bearing(&nodes, "plain", json!({}), json!({}), json!({}));
    bearing(
        &nodes,
        "recorded",
        json!({ LABEL: "unhealthy" }),
        json!({}),
        tainted(),
    );
    let mut record = Known::default();
    record.health.node_uid = "uid-recorded".to_owned();
    all.insert("recorded".to_owned(), record);
    bearing(
        &nodes,
        "tainted",
        json!({ LABEL: "unhealthy" }),
        json!({}),
        tainted(),
    );
    let policy = "mode = \"act\"\n[guard]\ncluster_percent = 50";
    let left = adopt(&mut all, &nodes, &Rules::with(policy).unwrap(), 1);
    assert_eq!(left, [""; 0]);
    let wanted = [
        ("cordoned", Rung::Cordon),
        ("labelled", Rung::Label),
        // The record of this node says that it should have no marks, so it is not taken out of service again.
        ("recorded", Rung::None),
        ("tainted", Rung::Taint),
    ];
    assert_eq!(adopted(&all), wanted);
    assert_eq!(
        all["cordoned"].health.mark.as_deref(),
        Some("paceline-remediator/7")
    );
}

#[test]
fn no_more_are_taken_for_ours_than_we_may_take_out() {
    let nodes = Nodes::default();
    for index in 0..40 {
        bearing(&nodes, &format!("n{index:02}"), json!({}), json!({}), tainted());
    }
    let mut all = BTreeMap::new();
    let mut record = Known::default();
    (record.health.node_uid, record.health.rung) = ("uid-n39".to_owned(), Rung::Evict);
    all.insert("n39".to_owned(), record);
    let rules = Rules::with("mode = \"act\"\n[guard]\ncluster_percent = 10\nmost_out = 3").unwrap();
    let left = adopt(&mut all, &nodes, &rules, 1);
    let wanted = [("n00", Rung::Taint), ("n01", Rung::Taint), ("n39", Rung::Evict)];
    assert_eq!(adopted(&all), wanted, "one is out already");
    assert_eq!(left.len(), 37);
    // In a mode that changes no nodes, no node is adopted.
    let mut none = BTreeMap::new();
    adopt(&mut none, &nodes, &Rules::with("mode = \"shadow\"").unwrap(), 1);
    assert_eq!(adopted(&none), []);
}

/// Returns a node with the operator's cordon, and its record with this status.
fn with_record(status: Value) -> (Nodes, BTreeMap<String, Known>) {
    let nodes = Nodes::default();
    let mark = json!({ MARK: "paceline-remediator/7" });
    let spec = json!({ "unschedulable": true, "taints": tainted()["taints"] });
    bearing(&nodes, "n1", json!({ LABEL: "unhealthy" }), mark, spec);
    let record = Known::of(&json!({
        "metadata": { "name": "n1", "resourceVersion": "3", "ownerReferences": [{ "kind": "Node", "uid": "uid-n1" }] },
        "status": status,
    }));
    (nodes, BTreeMap::from([("n1".to_owned(), record)]))
}

/// If any part of the record is unreadable, the node stays out of service and an administrator must check it. This
/// holds in each mode, because a later change to act mode finds only the status that observe mode wrote.
#[test]
fn a_record_that_cannot_be_read_gives_no_node_back() {
    let odd = json!({ "finding": "of-another-century" });
    for status in [
        json!(null),
        json!("gone"),
        json!({}),
        json!({ "nodeUid": "uid-n1", "rung": "moon", "held": false, "incidents": {} }),
        json!({ "nodeUid": "uid-n1", "rung": "evict", "held": "perhaps", "incidents": {} }),
        json!({ "nodeUid": "uid-n1", "rung": "evict", "held": false, "incidents": { "k": odd } }),
        json!({ "rung": "evict", "held": false }),
    ] {
        for mode in ["observe", "act"] {
            let (nodes, mut all) = with_record(status.clone());
            let rules = Rules::with(&format!("mode = \"{mode}\"\n[guard]\nmost_out = 1")).unwrap();
            assert_eq!(adopt(&mut all, &nodes, &rules, 1), [""; 0], "{status}");
            let health = &all["n1"].health;
            assert!(
                health.rung >= Rung::Cordon && health.held,
                "{mode} {status}: {health:?}"
            );
            assert_eq!(health.node_uid, "uid-n1");
            let last = health.history.back().unwrap();
            assert!(
                last.what == "unreadable" && last.says.contains("a person must check"),
                "{last:?}"
            );
            if !status["rung"].is_string() || status["rung"] == "moon" {
                assert_eq!(health.mark.as_deref(), Some("paceline-remediator/7"));
            }
        }
    }
}

#[test]
fn a_record_that_can_be_read_holds_nothing() {
    let status = json!({ "nodeUid": "uid-n1", "boot": "b", "rung": "evict", "mark": "paceline-remediator/7", "held": false, "incidents": {} });
    let (nodes, mut all) = with_record(status);
    adopt(&mut all, &nodes, &Rules::with("mode = \"act\"").unwrap(), 1);
    let health = &all["n1"].health;
    assert!(
        health.rung == Rung::Evict && !health.held && health.history.is_empty(),
        "{health:?}"
    );
}
