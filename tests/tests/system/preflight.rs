//! `paceline preflight` and what `paceline run --preflight` makes of it, as a user meets them.

use serde_json::Value;

use crate::launched::{Place, text};

/// Exit code, stdout, stderr.
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
    // Nothing but itself to compare with, or too little.
    assert!(matches!(code, Some(0 | 3)), "{code:?}: {out}");
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
