//! Tests the reasons for which Slurm ends a job. The signal is always SIGTERM, but the reasons differ.

use serde_json::Value;

use crate::cluster::{Cluster, ring_dirs, trainer};

/// Two partitions, of which one's jobs preempt the other's.
const PREEMPTED: &str = "PreemptType=preempt/partition_prio\nPreemptMode=CANCEL\n\
    PartitionName=low Nodes=ALL PriorityTier=1 PreemptMode=CANCEL\nPartitionName=high Nodes=ALL PriorityTier=9 PreemptMode=OFF";

/// Returns the end in the report of a two-node job that trains until `act` ends it.
fn end(extra: &str, options: &[&str], act: impl Fn(&Cluster, &str)) -> Value {
    let before = ring_dirs();
    let cluster = Cluster::with(2, "linuxproc", |_| extra.to_owned());
    let train = format!(
        "srun paceline run -- python3 {} --say rank --until-term",
        trainer("steps.py")
    );
    let options = [&["-N2", "-n2", "--exclusive", "--no-requeue"], options].concat();
    let job = cluster.sbatch(&options, &train);
    let run_dir = format!("paceline-{job}.0");
    cluster.until("steps of both", || {
        let journal = cluster.read(&format!("{run_dir}/journal.ndjson"));
        (journal.matches("{\"step\":{").count() > 40).then_some(())
    });
    act(&cluster, &job);
    cluster.until_over(&job);
    cluster.nothing_is_left(&before);
    let report = cluster.report(&run_dir);
    report["end"].clone()
}

#[test]
#[ignore = "needs Slurm: tests/run"]
fn another_job_needs_its_place() {
    let end = end(PREEMPTED, &["-p", "low"], |cluster, _| {
        assert_eq!(cluster.run(&["srun", "-p", "high", "-N2", "true"]).code, Some(0));
    });
    assert_eq!(end["reason"], "preempted", "{end}");
    assert!(end["says"].as_str().unwrap().contains("PreemptTime="), "{end}");
}

#[test]
#[ignore = "needs Slurm: tests/run"]
fn a_node_that_slurm_gave_up() {
    let end = end("", &[], |cluster, _| {
        let down = ["scontrol", "update", "nodename=n2", "state=down", "reason=test"];
        assert_eq!(cluster.run(&down).code, Some(0));
    });
    assert_eq!(end["reason"], "node-lost", "{end}");
    assert!(end["says"].as_str().unwrap().contains("Reason=NodeDown"), "{end}");
}

/// The step gets a signal, but Slurm has no reason for an end, so none may be reported.
#[test]
#[ignore = "needs Slurm: tests/run"]
fn a_signal_and_no_more() {
    let end = end("", &[], |cluster, job| {
        let signal = ["scancel", "--signal=TERM", &format!("{job}.0")];
        assert_eq!(cluster.run(&signal).code, Some(0));
    });
    assert_eq!(
        (&end["reason"], &end["says"]),
        (&"stopped".into(), &"SIGTERM".into()),
        "{end}"
    );
}

/// The trainer uses more memory than the step's limit. The kernel kills it, and Slurm's control group has counted that.
#[test]
#[ignore = "needs Slurm: tests/run"]
fn more_memory_than_the_step_has() {
    let (before, extra) = (
        ring_dirs(),
        "TaskPlugin=task/cgroup\nSelectTypeParameters=CR_CPU_Memory\n",
    );
    let cluster = Cluster::with(1, "cgroup", |_| extra.to_owned());
    let script = trainer("steps.py");
    let mut words = vec![
        "srun",
        "-N1",
        "-n1",
        "--mem=300",
        "paceline",
        "run",
        "--",
        "python3",
        &script,
    ];
    words.extend([
        "--say",
        "rank",
        "--steps",
        "40",
        "--fail-rank",
        "0",
        "--eat-mb",
        "600",
    ]);
    let ran = cluster.run(&words);
    assert_ne!(ran.code, Some(0), "{}", ran.stderr);
    assert!(!cluster.read("rank0").contains("took"), "it was ended");
    let end = cluster.report("paceline-1.0")["end"].clone();
    assert_eq!(
        (&end["reason"], &end["kind"]),
        (&"out-of-memory".into(), &"oom_kill".into()),
        "{end}"
    );
    assert!(end["says"].as_str().unwrap().contains("job_1/step_0"), "{end}");
    cluster.nothing_is_left(&before);
}
