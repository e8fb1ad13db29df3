use serde_json::json;

use super::*;
use crate::remediate::policy::marks::{LABEL, MARK, TAINT};

/// A node of that name, and what it bears.
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
        // What we know of it says that it should bear nothing: it is not taken out anew.
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
    // Who does nothing takes nothing over.
    let mut none = BTreeMap::new();
    adopt(&mut none, &nodes, &Rules::with("mode = \"shadow\"").unwrap(), 1);
    assert_eq!(adopted(&none), []);
}
