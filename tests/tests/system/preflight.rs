//! Tests `paceline preflight` and its effect on `paceline run --preflight`, from the user's perspective.

use serde_json::Value;

use crate::launched::{Place, text};

/// Runs a preflight. Returns the exit code, stdout and stderr.
fn preflight(place: &Place, args: &[&str]) -> (Option<i32>, String, String) {
    let key = place.path("key");
    std::fs::write(&key, "0123456789abcdef0123456789abcdef").unwrap();
    std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let mut command = place.paceline(["preflight"]);
    let output = command.args(args).env("PACELINE_KEY_FILE", key).output().unwrap();
    let (out, err) = (text(&output.stdout).to_owned(), text(&output.stderr).to_owned());
    (output.status.code(), out, err)
}

#[test]
fn one_node_alone_is_measured() {
    let (code, out, err) = preflight(&Place::new(), &["quick", "--json"]);
    let report: Value = serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}{err}"));
    assert_eq!(report["nodes"].as_object().unwrap().len(), 1, "{out}");
    assert!(report["findings"].as_array().unwrap().is_empty(), "{out}");
    // Accepts both codes, because there is nothing else to compare with, or too little.
    assert!(matches!(code, Some(0 | 3)), "{code:?}: {out}");
}

/// Without visible GPUs, as in a container whose runtime passes none, all measurements are good. Therefore --gpus sets
/// the expected number.
#[test]
fn gpus_that_nobody_could_measure_are_critical() {
    let (code, out, err) = preflight(&Place::new(), &["quick", "--gpus", "2"]);
    assert_eq!(code, Some(2), "{out}{err}");
    assert!(out.contains("0 of 2 GPUs were measured"), "{out}");
    let simulated = |gpus: &str| preflight(&Place::new(), &["--sim", "nodes=2 gpus=8", "--gpus", gpus]).0;
    assert_eq!((simulated("8"), simulated("9")), (Some(0), Some(2)));
}

#[test]
fn a_slow_gpu_of_a_simulated_fleet_is_named() {
    let place = Place::new();
    let (code, out, err) = preflight(&place, &["--sim", "nodes=8 slow-gpu=3.2x1.3"]);
    assert_eq!(code, Some(2), "{err}");
    assert!(
        out.contains("SIMULATED") && out.contains("leave out: sim3"),
        "{out}"
    );
    let (code, out, _) = preflight(&place, &["--sim", "nodes=8"]);
    assert_eq!((code, out.contains("leave out")), (Some(0), false), "{out}");
    let (code, _, err) = preflight(&place, &["--sim", "nodes=8 slow-cpu=3"]);
    assert_eq!((code, err.contains("slow-gpu")), (Some(64), true), "{err}");
}

#[test]
fn a_first_node_that_nobody_reaches_is_no_verdict() {
    let args = ["--nodes", "no-such-host.invalid,other", "--node", "other"];
    let (code, _, err) = preflight(&Place::new(), &args);
    assert_eq!(code, Some(3), "{err}");
    assert!(err.contains("rendezvous: the first node"), "{err}");
}

/// Only one of two nodes arrives, and the rendezvous was to be on the other. (A test of several arriving nodes needs
/// separate addresses; see tests/preflight/netns.sh.)
#[test]
fn the_others_meet_elsewhere_and_the_journal_says_who_is_missing() {
    let place = Place::new();
    let torchrun = place.write(
        "torchrun",
        "#!/bin/sh\necho $PACELINE_FIRST_NODE \"$@\" > words\n",
    );
    std::fs::set_permissions(&torchrun, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let options = [
        "run",
        "--job=preflight-e2e",
        "--node=localhost",
        "--run-dir=run",
        "--preflight=quick",
        "--preflight-policy=exclude",
        "--preflight-nodes=localhost,n3",
        "--",
        "./torchrun",
        "--nnodes=1:2",
        "--rdzv-endpoint=n3:29400",
        "train.py",
    ];
    let output = place.paceline(options).output().unwrap();
    let said = text(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert_eq!(
        place.read("words"),
        "localhost --nnodes=1:2 --rdzv-endpoint=localhost:29400 train.py\n",
        "{said}"
    );
    assert!(
        said.contains("--rdzv-endpoint n3:29400 becomes localhost:29400"),
        "{said}"
    );
    assert!(said.contains("n3 was excluded"), "{said}");
    let report = place.report("run/report.json");
    let section = &report["preflight"];
    assert_eq!(section["left_out"][0]["node"], "n3", "{section}");
    assert_eq!(section["rows"].as_object().unwrap().len(), 2, "{section}");
    // The journal has the result, so a replay must give the same.
    let replayed = place
        .paceline(["replay", "run/journal.ndjson", "--json"])
        .output()
        .unwrap();
    let replayed: Value = serde_json::from_str(text(&replayed.stdout)).unwrap();
    assert_eq!(&replayed["preflight"], section);
    assert!(place.read("run/preflight.html").contains("leave out <b>n3</b>"));
}

#[test]
fn results_of_nccl_tests_are_read() {
    let place = Place::new();
    let golden = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../nccl-bench/tests/import/all_reduce.txt"
    );
    let (code, out, err) = preflight(&place, &["import", golden, "--json"]);
    assert_eq!(code, Some(0), "{err}");
    let report: Value = serde_json::from_str(&out).unwrap();
    assert!(!report["results"].as_array().unwrap().is_empty(), "{out}");
    place.write("garbage", "nothing of the kind\n");
    let (code, _, err) = preflight(&place, &["import", "garbage"]);
    assert_eq!(code, Some(1), "{err}");
    assert!(err.contains("garbage: "), "{err}");
}
