//! Tests faults injected into a running demo. Their results must be marked, and other ranks must not be affected.

use serde_json::Value;

use crate::launched::{Place, text, until};

#[test]
fn a_lost_gpu_in_a_demo_is_told_and_marked() {
    let place = Place::new();
    let demo = place
        .paceline([
            "demo",
            "--ranks",
            "4",
            "--heat-rank",
            "3",
            "--seconds",
            "30",
            "--json",
        ])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let inject = |faults: &[&str]| {
        place
            .paceline(["inject", "--run-dir", "paceline-demo"])
            .args(faults)
            .output()
            .unwrap()
    };
    // The injection is refused until all ranks have attached.
    let fault = "xid rank=1 code=79 GPU has fallen off the bus.";
    until("the injection", || {
        inject(&[fault]).status.success().then_some(())
    });
    let refused = inject(&["slow rank=2", "slow rank=9"]);
    assert_eq!(refused.status.code(), Some(64));
    assert!(
        text(&refused.stderr).contains("rank 9 has not attached"),
        "{}",
        text(&refused.stderr)
    );
    let output = demo.wait_with_output().unwrap();
    let report: Value = serde_json::from_str(text(&output.stdout)).unwrap();
    let told = |finding: &str| {
        let verdicts = report["verdicts"].as_array().unwrap();
        verdicts
            .iter()
            .filter(|verdict| verdict["finding"] == finding)
            .cloned()
            .collect::<Vec<Value>>()
    };
    let [lost] = &told("gpu-lost")[..] else {
        panic!("{report}")
    };
    assert_eq!(lost["provenance"], "injected", "{lost}");
    assert_eq!(lost["severity"], "critical", "{lost}");
    assert_eq!(lost["order"]["remedy"], "reboot_node", "{lost}");
    let hot: Vec<Value> = told("straggler")
        .iter()
        .map(|verdict| verdict["subject"]["rank"].clone())
        .collect();
    assert_eq!(hot, [3], "{report}");
    // The run has ended, so the injection must fail.
    let late = inject(&[fault]);
    assert_eq!(late.status.code(), Some(1));
    assert!(
        text(&late.stderr).contains("no aggregator runs here"),
        "{}",
        text(&late.stderr)
    );
}

#[test]
fn explained_without_a_run() {
    let place = Place::new();
    let json = |args: &[&str]| -> Value {
        let output = place.paceline(["explain", "--json"]).args(args).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        serde_json::from_str(text(&output.stdout)).unwrap()
    };
    let lost = json(&["xid", "79"]);
    assert_eq!(
        (lost["class"].as_str(), lost["acts_on_node"].as_bool()),
        (Some("node_reboot"), Some(true))
    );
    assert_eq!(json(&["xid", "31"])["acts_on_node"], false);
    assert_eq!(json(&["finding", "straggler"])["finding"], "straggler");
    let unknown = place
        .paceline(["explain", "finding", "stragler"])
        .output()
        .unwrap();
    assert_eq!(unknown.status.code(), Some(64));
    assert!(text(&unknown.stderr).contains("did you mean \"straggler\"?"));
}

#[test]
fn a_silent_rank_in_a_demo_is_named_and_marked() {
    let place = Place::new();
    let demo = place
        .paceline([
            "demo",
            "--ranks",
            "4",
            "--heat-rank",
            "3",
            "--seconds",
            "30",
            "--json",
        ])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    // Waits for steps, because the step time must be known.
    until("steps", || {
        let journal = place.read("paceline-demo/journal.ndjson");
        (journal.matches("\"step\":{").count() > 160).then_some(())
    });
    until("the injection", || {
        let inject = place
            .paceline(["inject", "--run-dir", "paceline-demo", "silent rank=1 for=60"])
            .output();
        inject.unwrap().status.success().then_some(())
    });
    let output = demo.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let report: Value = serde_json::from_str(text(&output.stdout)).unwrap();
    let verdicts = report["verdicts"].as_array().unwrap();
    let silent: Vec<&Value> = verdicts
        .iter()
        .filter(|verdict| verdict["finding"] == "rank-silent" || verdict["finding"] == "job-hang")
        .collect();
    let [silent] = &silent[..] else { panic!("{report}") };
    assert_eq!(
        (&silent["finding"], &silent["subject"]["rank"]),
        (&"rank-silent".into(), &1.into())
    );
    assert_eq!(silent["provenance"], "injected", "{silent}");
}
