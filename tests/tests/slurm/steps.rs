//! Tests `srun paceline run`, once per task or once per node. There must be one sidecar on each node, one aggregator,
//! and correct ranks.

use crate::cluster::{Cluster, Seating, ring_dirs, straggler, trainer};

/// Three tasks run on the first node and one on each other node, which is Slurm's default distribution.
#[test]
#[ignore = "needs Slurm: tests/run"]
fn one_for_each_task() {
    let (before, cluster) = (ring_dirs(), Cluster::of(3));
    let script = trainer("steps.py");
    let training = [
        "python3",
        &script,
        "--say",
        "rank",
        "--steps",
        "150",
        "--slow-rank",
        "3",
    ];
    let mut words = vec!["srun", "-N3", "-n5", "paceline", "run", "--"];
    words.extend(training);
    let ran = cluster.run(&words);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let job = "paceline-1.0";
    let report = cluster.report(job);
    assert_eq!(report["coverage"]["ranks_seen"], 5, "{report}");
    assert_eq!(report["coverage"]["steps_ratio"], 1.0, "{report}");
    let seating = Seating::of(&cluster.journal(job));
    for (rank, node) in &seating.ranks {
        assert!(
            cluster
                .read(&format!("rank{rank}"))
                .contains(&format!("on {node} ")),
            "{:?}",
            seating.ranks
        );
    }
    assert_eq!(
        seating.sidecars,
        ["n1", "n2", "n3"],
        "one sidecar on each node, never started again"
    );
    // Looks only at the first straggler, because a busy machine may cause other verdicts as well.
    let verdict = straggler(&report);
    assert_eq!(
        (verdict["finding"].as_str(), verdict["subject"]["rank"].as_u64()),
        (Some("straggler"), Some(3))
    );
    assert_eq!(verdict["subject"]["node"].as_str(), Some(seating.node_of(3)));
    let exits = report["exits"].as_array().unwrap();
    assert_eq!(
        (exits.len(), exits.iter().all(|exit| exit["code"] == 0)),
        (3, true),
        "{report}"
    );
    // The block must be printed only once, because all tasks share the terminal.
    assert_eq!(ran.stderr.matches("report    ").count(), 1, "{}", ran.stderr);
    assert_eq!(ran.stderr.matches("paceline: job").count(), 1, "{}", ran.stderr);
    cluster.nothing_is_left(&before);
}

/// The task whose launcher started the node's sidecar ends first. The remaining tasks must still be monitored.
#[test]
#[ignore = "needs Slurm: tests/run"]
fn tasks_that_come_and_go_at_different_times() {
    let (before, cluster) = (ring_dirs(), Cluster::of(1));
    let script = trainer("steps.py");
    let train = format!(
        "sleep $SLURM_PROCID; exec paceline run -- python3 {script} --say rank --steps $((50 + 50 * SLURM_PROCID))"
    );
    let ran = cluster.run(&["srun", "-N1", "-n3", "bash", "-c", &train]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let report = cluster.report("paceline-1.0");
    assert_eq!(report["coverage"]["ranks_seen"], 3, "{report}");
    assert_eq!(Seating::of(&cluster.journal("paceline-1.0")).sidecars, ["n1"]);
    assert_eq!(report["end"]["reason"], "success", "{report}");
    assert_eq!(cluster.read("rank2").lines().last(), Some("ends after 150 steps"));
    cluster.nothing_is_left(&before);
}

/// srun returns the highest exit code, and the report must have that code with its node.
#[test]
#[ignore = "needs Slurm: tests/run"]
fn codes_pass() {
    let cluster = Cluster::of(2);
    let script = trainer("steps.py");
    let failing = [
        "--say",
        "rank",
        "--steps",
        "40",
        "--fail-rank",
        "3",
        "--exit-code",
        "7",
    ];
    let mut words = vec!["srun", "-N2", "-n4", "paceline", "run", "--", "python3", &script];
    words.extend(failing);
    let ran = cluster.run(&words);
    assert_eq!(ran.code, Some(7), "{}", ran.stderr);
    let report = cluster.report("paceline-1.0");
    let mut exits: Vec<(String, i64)> = report["exits"]
        .as_array()
        .unwrap()
        .iter()
        .map(|exit| {
            (
                exit["node"].as_str().unwrap().to_owned(),
                exit["code"].as_i64().unwrap(),
            )
        })
        .collect();
    exits.sort();
    assert_eq!(exits, [("n1".to_owned(), 0), ("n2".to_owned(), 7)], "{report}");
}
