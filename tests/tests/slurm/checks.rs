//! Tests the preflight in an allocation. It finds its nodes without options, and the job starts without the bad one.

use std::fs;

use serde_json::Value;

use crate::cluster::{Cluster, trainer};

const WELL: &str = "gpus = 1\nprofile = \"h100\"\n";
/// A GPU whose memory can no longer be repaired, which is always critical, whatever the load of the machine.
const ILL: &str = "gpus = 1\nprofile = \"h100\"\n[gpu.0]\nremap_failed = 1\n";

/// Returns a cluster of four nodes. A GPU of n3 must be excluded.
fn one_bad_gpu() -> Cluster {
    let cluster = Cluster::of(4);
    let program = std::env::current_exe().unwrap();
    let built = program.parent().unwrap().join("libpaceline_fake_nvml.so");
    for node in ["n1", "n2", "n3", "n4"] {
        fs::create_dir(cluster.path(node)).unwrap();
        let library = cluster.path(node).join("libnvidia-ml.so.1");
        fs::copy(&built, &library).unwrap();
        let scenario = if node == "n3" { ILL } else { WELL };
        fs::write(library.with_extension("1.toml"), scenario).unwrap();
    }
    cluster
}

/// A prefix for a node's tasks, with which each node uses its own simulated GPU.
const ON_ITS_GPU: &str = "export PACELINE_NVML_LIB=$PWD/$SLURMD_NODENAME/libnvidia-ml.so.1; ";

#[test]
#[ignore = "needs Slurm: tests/run"]
fn the_bad_node_is_named() {
    let cluster = one_bad_gpu();
    let check = format!("{ON_ITS_GPU} paceline preflight quick --json > $SLURMD_NODENAME/report");
    let ran = cluster.run(&["srun", "-N4", "bash", "-c", &check]);
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    let reports: Vec<Value> = ["n1", "n2", "n3", "n4"]
        .iter()
        .map(|node| serde_json::from_str(&cluster.read(&format!("{node}/report"))).unwrap())
        .collect();
    // The reports of all nodes must be equal.
    assert!(reports.iter().all(|report| *report == reports[0]));
    let nodes: Vec<&String> = reports[0]["nodes"].as_object().unwrap().keys().collect();
    assert_eq!(nodes, ["n1", "n2", "n3", "n4"]);
    assert_eq!(reports[0]["job"], "1.0");
    let critical = |finding: &&Value| finding["severity"] == "critical" && finding["what"] == "remap_failed";
    let findings = reports[0]["findings"].as_array().unwrap();
    let accused: Vec<&Value> = findings
        .iter()
        .filter(critical)
        .map(|finding| &finding["place"]["node"])
        .collect();
    assert_eq!(accused, ["n3"], "{findings:?}");
}

/// Four nodes are allocated, and the job must use the good ones.
#[test]
#[ignore = "needs Slurm: tests/run"]
fn the_job_starts_on_the_good_nodes() {
    let cluster = one_bad_gpu();
    let training = format!(
        "env | grep ^PACELINE_N > $SLURMD_NODENAME/env; env | grep ^PACELINE_.*NODE >> $SLURMD_NODENAME/env; \
         RANK=$PACELINE_NODE_RANK WORLD_SIZE=$PACELINE_NNODES exec python3 {} --say rank --steps 60",
        trainer("steps.py")
    );
    fs::write(cluster.path("train.sh"), training).unwrap();
    let gated = "exec paceline run --preflight quick --preflight-policy exclude -- bash train.sh";
    let ran = cluster.run(&["srun", "-N4", "bash", "-c", &format!("{ON_ITS_GPU} {gated}")]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(
        ran.stderr.contains("this node, n3, is excluded from the job"),
        "{}",
        ran.stderr
    );
    // Allows one difference: on a busy machine the measurements may reject another node as well.
    let started: Vec<&str> = ["n1", "n2", "n3", "n4"]
        .into_iter()
        .filter(|node| cluster.path(node).join("env").exists())
        .collect();
    assert!(!started.contains(&"n3") && started.len() > 1, "{started:?}");
    for (rank, node) in started.iter().enumerate() {
        let env = cluster.read(&format!("{node}/env"));
        for wanted in [
            format!("PACELINE_NODE_RANK={rank}"),
            format!("PACELINE_NNODES={}", started.len()),
            format!("PACELINE_FIRST_NODE={}", started[0]),
        ] {
            assert!(env.lines().any(|line| line == wanted), "{wanted}: {env}");
        }
    }
    if started == ["n1", "n2", "n4"] {
        let env = cluster.read("n1/env");
        assert!(
            env.contains("PACELINE_NODES=n[1-2,4]\n") && env.contains("PACELINE_EXCLUDED_NODES=n3\n"),
            "{env}"
        );
    }
    let report = cluster.report("paceline-1.0");
    let ranks = started.len() as u64;
    assert_eq!(
        (
            report["world_size"].as_u64(),
            report["coverage"]["ranks_seen"].as_u64()
        ),
        (Some(ranks), Some(ranks))
    );
}
