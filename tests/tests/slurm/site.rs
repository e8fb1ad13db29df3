//! Tests a site's Slurm programs: prolog, epilog, health check, and a requeue away from a bad node. GPUs are simulated
//! by a library that slurmd's programs load instead of NVIDIA's.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use paceline_health::Detector;
use serde_json::Value;

use crate::cluster::{Cluster, trainer};

const WELL: &str = "gpus = 1\nprofile = \"h100\"\n";
/// A GPU whose memory can no longer be repaired.
const ILL: &str = "gpus = 1\nprofile = \"h100\"\n[gpu.0]\nremap_failed = 1\n";
/// An ordinary user, not root.
const NOBODY: &str = "65534";

/// A cluster whose slurmd calls `programs` (`Prolog=prolog --drain`), with a healthy GPU on each node.
fn site(nodes: u32, programs: &[&str], more: &str) -> Cluster {
    Cluster::with(nodes, "linuxproc", |dir| {
        fs::set_permissions(dir, fs::Permissions::from_mode(0o1777)).unwrap();
        for node in 1..=nodes {
            gpu(dir, &format!("n{node}"), WELL);
        }
        let lines = programs.iter().map(|line| program(dir, line));
        lines.collect::<String>() + more
    })
}

fn gpu(dir: &Path, node: &str, scenario: &str) {
    let program = std::env::current_exe().unwrap();
    let built = program.parent().unwrap().join("libpaceline_fake_nvml.so");
    let library = dir.join(node).join("libnvidia-ml.so.1");
    if !library.exists() {
        fs::create_dir(dir.join(node)).unwrap();
        fs::copy(&built, &library).unwrap();
    }
    fs::write(library.with_extension("1.toml"), scenario).unwrap();
}

/// Writes a script like those in deploy/slurm, with this test's paceline, log, state and GPUs; returns its line for
/// slurm.conf.
fn program(dir: &Path, line: &str) -> String {
    let (key, words) = line.split_once('=').unwrap();
    let (verb, options) = words.split_once(' ').unwrap();
    let at = dir.display();
    let options = options.replace("DIR", &at.to_string());
    let state = if verb == "health-check" {
        format!(" --state {at}/state")
    } else {
        String::new()
    };
    let script = dir.join(key);
    let text = format!(
        "#!/bin/sh\nexport PACELINE_NVML_LIB={at}/$SLURMD_NODENAME/libnvidia-ml.so.1 HOME={at} SLURM_CONF={at}/slurm/slurm.conf\n\
         exec {at}/bin/paceline slurm {verb} {options} --log {at}/log{state} 2>> {at}/said\n"
    );
    fs::write(&script, text).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    format!("{key}={}\n", script.display())
}

/// Returns a node's state and reason.
fn node(cluster: &Cluster, name: &str) -> (String, String) {
    let shown = cluster.run(&["scontrol", "show", "node", name]).stdout;
    let after = |mark: &str, end: char| {
        let rest = shown.split(mark).nth(1).unwrap_or_default();
        rest.split(end).next().unwrap_or_default().to_owned()
    };
    (after("State=", ' '), after("Reason=", '\n'))
}

fn decisions(cluster: &Cluster) -> Vec<Value> {
    let log = cluster.read("log");
    log.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn job_field(cluster: &Cluster, job: &str, name: &str) -> String {
    let shown = cluster.run(&["scontrol", "show", "job", job]).stdout;
    let rest = shown.split(&format!("{name}=")).nth(1).unwrap_or_default();
    rest.lines().next().unwrap_or_default().trim().to_owned()
}

/// A node is bad before the job. It must be drained with a reason that has source, finding and evidence, and the job
/// must run elsewhere.
#[test]
#[ignore = "needs Slurm: tests/run"]
fn the_prolog_drains_and_the_job_starts_elsewhere() {
    let cluster = site(2, &["Prolog=prolog --drain"], "");
    gpu(&cluster.path(""), "n1", ILL);
    let job = cluster.sbatch(&["-N1", "--requeue"], "echo started on $SLURMD_NODENAME");
    // Skips Slurm's delay of two minutes.
    let now = ["scontrol", "update", &format!("jobid={job}"), "StartTime=now"];
    cluster.until("the start elsewhere", || {
        cluster.run(&now);
        cluster.read("out").contains("started on").then_some(())
    });
    assert_eq!(cluster.until_over(&job), "COMPLETED");
    // Compares the end only, because Slurm also writes messages about the prolog to this file.
    assert!(
        cluster.read("out").trim().ends_with("started on n2"),
        "{}",
        cluster.read("out")
    );
    let (state, reason) = node(&cluster, "n1");
    assert!(state.contains("DRAIN"), "{state} {reason}");
    assert!(
        reason.starts_with("paceline[read]: ") && reason.contains("of node n1"),
        "{reason}"
    );
    assert!(
        reason.contains(&format!("(prolog, job {job} of root)")),
        "{reason}"
    );
    let done: Vec<(String, String)> = decisions(&cluster)
        .iter()
        .map(|line| {
            (
                line["node"].as_str().unwrap().into(),
                line["done"].as_str().unwrap().into(),
            )
        })
        .collect();
    assert_eq!(
        done,
        [("n1".into(), "drain".into()), ("n2".into(), "none".into())]
    );
}

/// Twelve prologs of one job run at the same time, and each finds its node bad. Only the allowed number may be drained.
#[test]
#[ignore = "needs Slurm: tests/run"]
fn a_storm_of_prologs_stays_within_its_budget() {
    let cluster = site(
        12,
        &["Prolog=prolog --drain --most-drained 3"],
        "PrologFlags=Alloc\n",
    );
    for number in 1..=12 {
        gpu(&cluster.path(""), &format!("n{number}"), ILL);
    }
    let job = cluster.sbatch(&["-N12", "--requeue"], "true");
    let log = cluster.until("twelve decisions", || {
        let log = decisions(&cluster);
        (log.len() >= 12).then_some(log)
    });
    let count = |done: &str| log.iter().filter(|line| line["done"] == done).count();
    assert_eq!(count("drain"), 3, "{log:?}");
    assert_eq!(count("yield") + count("refuse"), 9, "{log:?}");
    let drained = (1..=12).filter(|number| node(&cluster, &format!("n{number}")).0.contains("DRAIN"));
    assert_eq!(drained.count(), 3, "{log:?}");
    cluster.run(&["scancel", &job]);
}

/// If the check is inconclusive, that must be logged, and the job must start.
#[test]
#[ignore = "needs Slurm: tests/run"]
fn what_the_prolog_cannot_tell_it_lets_pass() {
    let cluster = site(1, &["Prolog=prolog --drain"], "");
    fs::write(cluster.path("n1/libnvidia-ml.so.1"), "no library").unwrap();
    let ran = cluster.run(&["srun", "-N1", "true"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert_eq!(node(&cluster, "n1").1, "");
    let log = decisions(&cluster);
    let why = log[0]["why"].as_str().unwrap();
    assert!(
        log[0]["done"] == "none" && why.starts_with("no result: "),
        "{why}"
    );
}

/// A GPU fails during a job. The epilog must drain the node, and after the repair the health check must resume it.
#[test]
#[ignore = "needs Slurm: tests/run"]
fn drained_by_the_epilog_and_given_back_by_the_health_check() {
    let programs = [
        "Epilog=epilog --drain",
        "HealthCheckProgram=health-check --drain --resume",
    ];
    let cluster = site(2, &programs, "HealthCheckInterval=2\nHealthCheckNodeState=IDLE\n");
    let broken = cluster.path("n1/libnvidia-ml.so.1.toml");
    fs::write(cluster.path("ill"), ILL).unwrap();
    let train = format!(
        "srun paceline run -- python3 {} --say rank --steps 200\nmv ill {}",
        trainer("steps.py"),
        broken.display()
    );
    let job = cluster.sbatch(&["-N1", "-w", "n1"], &train);
    let listed = cluster.until("its place among the targets", || {
        let ran = cluster.run(&["paceline", "slurm", "targets", "--node", "n1"]);
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        serde_json::from_str::<Value>(&ran.stdout)
            .unwrap()
            .get(0)
            .cloned()
    });
    assert!(
        listed["targets"][0].as_str().unwrap().starts_with("127.0.0.1:"),
        "{listed}"
    );
    let labels = &listed["labels"];
    assert_eq!(
        (&labels["slurm_job"], &labels["run"]),
        (&Value::from(job.clone()), &format!("{job}.0").into())
    );
    assert_eq!(cluster.until_over(&job), "COMPLETED", "{}", cluster.read("out"));
    let (state, reason) = cluster.until("the drain", || {
        let (state, reason) = node(&cluster, "n1");
        state.contains("DRAIN").then_some((state, reason))
    });
    let epilog = format!("(epilog, job {job} of root)");
    assert!(
        reason.starts_with("paceline[read]: ") && reason.contains(&epilog),
        "{state} {reason}"
    );
    let of_epilog = |line: &Value| line["by"] == "epilog" && line["ended"] == "success, 200 steps";
    assert!(
        decisions(&cluster).iter().any(of_epilog),
        "{}",
        cluster.read("log")
    );
    // The node must stay drained while the fault persists.
    cluster.until("a check that leaves it", || {
        let left = |line: &Value| line["why"].as_str().unwrap().starts_with("stays drained: GPU-");
        decisions(&cluster).iter().any(left).then_some(())
    });
    gpu(&cluster.path(""), "n1", WELL);
    cluster.until("the return", || (node(&cluster, "n1").0 == "IDLE").then_some(()));
    let resumed = decisions(&cluster)
        .into_iter()
        .filter(|line| line["done"] == "resume")
        .count();
    assert_eq!(resumed, 1);
    // A node that an administrator drained must not be resumed.
    let by_hand = [
        "scontrol",
        "update",
        "nodename=n2",
        "state=drain",
        "reason=bad disk",
    ];
    cluster.run(&by_hand);
    std::thread::sleep(std::time::Duration::from_secs(5));
    assert!(node(&cluster, "n2").1.starts_with("bad disk"));
}

/// A user forges a report about the node. The epilog must check the node, find nothing, and do nothing.
#[test]
#[ignore = "needs Slurm: tests/run"]
fn a_forged_verdict_drains_nobody() {
    let cluster = site(1, &["Epilog=epilog --drain"], "");
    fs::write(cluster.path("forged"), forged("n1")).unwrap();
    let script = "mkdir paceline-$SLURM_JOB_ID && cp forged paceline-$SLURM_JOB_ID/report.json && id -u";
    fs::write(cluster.path("out"), "").unwrap();
    fs::set_permissions(cluster.path("out"), fs::Permissions::from_mode(0o666)).unwrap();
    let job = cluster.sbatch(
        &["-N1", &format!("--uid={NOBODY}"), &format!("--gid={NOBODY}")],
        script,
    );
    assert_eq!(cluster.until_over(&job), "COMPLETED", "{}", cluster.read("out"));
    assert_eq!(cluster.read("out").trim(), NOBODY);
    let line = cluster.until("the epilog", || decisions(&cluster).into_iter().next());
    assert_eq!(line["done"], "none", "{line}");
    assert_eq!(line["why"], "the job's finding could not be confirmed", "{line}");
    let said = line["said"][0].as_str().unwrap();
    assert!(said.starts_with("critical gpu-"), "{said}");
    let (state, reason) = cluster.until("the node to be free", || {
        let (state, reason) = node(&cluster, "n1");
        (!state.contains("COMPLETING")).then_some((state, reason))
    });
    assert_eq!((&*state, &*reason), ("IDLE", ""));
}

/// The ends of two runs of a job must be counted, and a node with another job on it must not be measured.
#[test]
#[ignore = "needs Slurm: tests/run"]
fn the_epilog_counts_ends_and_disturbs_nobody() {
    let cluster = site(1, &["Epilog=epilog --measure --textfile DIR/ends.prom"], "");
    let other = cluster.sbatch(&["-n1"], "sleep 600");
    let script = "srun paceline run -- true; srun paceline run -- sh -c 'exit 3'; true";
    let job = cluster.sbatch(&["-n1"], script);
    assert_eq!(cluster.until_over(&job), "COMPLETED", "{}", cluster.read("out"));
    let line = cluster.until("the epilog", || decisions(&cluster).into_iter().next());
    let why = line["why"].as_str().unwrap();
    let wanted = format!("; only read, not measured: job {other} also runs here");
    assert!(line["job"] == *job && why.ends_with(&wanted), "{line}");
    let counted = cluster.until("the counts", || {
        Some(cluster.read("ends.prom")).filter(|text| !text.is_empty())
    });
    for wanted in [
        "{reason=\"success\"} 1",
        "{reason=\"error\"} 1",
        "{reason=\"killed\"} 0",
    ] {
        assert!(counted.contains(wanted), "{counted}");
    }
    cluster.run(&["scancel", &other]);
    assert_eq!(cluster.until_over(&other), "CANCELLED");
}

/// Returns a report with a verdict that no detector raised.
fn forged(node: &str) -> String {
    let mut report =
        serde_json::to_value(Detector::new(paceline_health::Policy::default()).report()).unwrap();
    let verdict = serde_json::json!({
        "id": 1, "finding": "gpu-fault", "subject": {"kind": "node", "node": node}, "severity": "critical", "state": "raised",
        "since_s": 1.0, "since_step": null, "raised_s": 2.0, "raised_step": null, "cleared_s": null, "signals": [],
        "provenance": "live", "slowdown_ratio": null, "cause": "unknown", "evidence": [], "impact_ratio": null,
        "lost_gpu_hours": 0.0, "action": "drain it"
    });
    report["verdicts"] = serde_json::json!([verdict]);
    report.to_string()
}

/// The job must restart on another node, with the same options.
#[test]
#[ignore = "needs Slurm: tests/run"]
fn a_requeue_away_from_a_node() {
    let cluster = Cluster::of(2);
    let script = "echo started on $SLURMD_NODENAME; [ -n \"$SLURM_RESTART_COUNT\" ] || sleep 600";
    let job = cluster.sbatch(&["-N1", "--requeue", "--time=30", "--comment=mine"], script);
    cluster.until("the start", || {
        cluster.read("out").contains("started on").then_some(())
    });
    let first = cluster.read("out").trim().replace("started on ", "");
    let ran = cluster.run(&["paceline", "slurm", "requeue", &job, "--exclude", &first]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert!(job_field(&cluster, &job, "ExcNodeList").starts_with(&first));
    cluster.start_requeued(&job);
    cluster.until("the second start", || {
        (cluster.read("out").matches("started on").count() == 2).then_some(())
    });
    assert_eq!(cluster.until_over(&job), "COMPLETED");
    let second = if first == "n1" { "n2" } else { "n1" };
    assert!(
        cluster
            .read("out")
            .trim()
            .ends_with(&format!("started on {second}")),
        "{}",
        cluster.read("out")
    );
    assert_eq!(job_field(&cluster, &job, "Comment"), "mine");
    let bad = cluster.run(&["paceline", "slurm", "requeue", &job, "--exclude", "n[1"]);
    assert_eq!(bad.code, Some(64), "{}", bad.stderr);
}
