//! Tests attribution from collectives alone. The journals of real jobs are analyzed again without the phases of steps.

use std::collections::BTreeMap;
use std::process::Command;

use serde_json::Value;

use crate::job::{Ended, naming, torchrun};

/// Returns the report of a journal without its phases.
fn by_waits(ended: &Ended) -> Value {
    let replay = Command::new(env!("CARGO_BIN_EXE_paceline-under-test"))
        .args(["replay", "--hide-phases", "--json"])
        .arg(ended.dir.path().join("run"))
        .output()
        .unwrap();
    assert!(replay.status.success(), "{replay:?}");
    serde_json::from_slice(&replay.stdout).unwrap()
}

/// Returns the ranks that have a straggler verdict, each with the verdict's signal.
fn stragglers(report: &Value) -> Vec<(u64, String)> {
    let verdicts = report["verdicts"].as_array().unwrap().iter();
    verdicts
        .filter(|verdict| verdict["finding"] == "straggler")
        .map(|verdict| {
            let rank = verdict["subject"]["rank"].as_u64().unwrap();
            (rank, verdict["signals"][0].as_str().unwrap().to_owned())
        })
        .collect()
}

/// Returns the rank with the shortest mean time in each communicator of this name.
fn shortest(ended: &Ended, name: &str) -> Vec<u64> {
    let text = std::fs::read_to_string(ended.dir.path().join("run/journal.ndjson")).unwrap();
    let mut named: BTreeMap<u64, BTreeMap<u64, u64>> = BTreeMap::new();
    for line in text.lines() {
        let entry: Value = serde_json::from_str(line).unwrap();
        let event = &entry["frame"]["event"];
        let number = |of: &Value, key: &str| of[key].as_u64().unwrap();
        if event["group"]["name"] == name {
            named.entry(number(&event["group"], "comm")).or_default();
        } else if event["comm"].is_object()
            && let Some(sums) = named.get_mut(&number(&event["comm"], "comm"))
        {
            *sums.entry(number(&event["comm"], "rank")).or_default() += number(&event["comm"], "dur_ns");
        }
    }
    let least = |sums: &BTreeMap<u64, u64>| *sums.iter().min_by_key(|(_, sum)| **sum).unwrap().0;
    let mut ranks: Vec<u64> = named.values().map(least).collect();
    ranks.sort_unstable();
    ranks
}

#[test]
#[ignore = "needs PyTorch: tests/run"]
fn tensor_and_data_groups_name_the_same_rank() {
    let args = "--steps 70 --sleep-ms 60 --slow-rank 5 --slow-pct 25";
    let ended = naming(5, 60, || torchrun(&[], 8, "mesh.py", args).run().ok());
    let report = by_waits(&ended);
    assert_eq!(stragglers(&report), [(5, "S1".to_owned())], "{report}");
}

/// Rank 0 is the first stage of the first replica. Rank 4, its second stage, is equally late in its own data-parallel
/// group, but must not be named.
#[test]
#[ignore = "needs PyTorch: tests/run"]
fn a_slow_first_stage_is_named_and_not_the_stage_that_waits_for_it() {
    let args = "--stages 2 --steps 70 --sleep-ms 12 --slow-rank 0 --slow-pct 40";
    let ended = torchrun(&[], 8, "pipeline.py", args).run().ok();
    let report = by_waits(&ended);
    assert_eq!(stragglers(&report), [(0, "S1".to_owned())], "{report}");
    assert_eq!(shortest(&ended, "mesh_dp"), [0, 4]);
}

#[test]
#[ignore = "needs PyTorch: tests/run"]
fn waits_of_a_healthy_job_accuse_nobody() {
    let ended = torchrun(&[], 4, "mesh.py", "--steps 300 --sleep-ms 40")
        .run()
        .ok();
    let report = by_waits(&ended);
    assert_eq!(stragglers(&report), [], "wrongly accused {report}");
    assert!(
        report["coverage"]["notes"].to_string().contains("(S1)"),
        "{report}"
    );
}
