//! Tests, all on one cluster, job arrays, heterogeneous steps, and a requeue away from a node that does not host the
//! aggregator.

use std::fs;

use serde_json::Value;

use crate::cluster::{Cluster, Seating, ring_dirs, trainer};

#[test]
#[ignore = "needs Slurm: tests/run"]
fn arrays_heterogeneous_steps_and_a_requeue() {
    let (before, cluster) = (ring_dirs(), Cluster::of(3));
    an_array(&cluster);
    a_heterogeneous_step(&cluster);
    a_requeue_away_from_the_bad_node(&cluster);
    cluster.nothing_is_left(&before);
}

/// Each task of an array must be a separate job with a separate run directory.
fn an_array(cluster: &Cluster) {
    let train = format!(
        "srun paceline run -- python3 {} --say array$SLURM_ARRAY_TASK_ID- --steps 40; touch over$SLURM_ARRAY_TASK_ID-$SLURM_JOB_ID",
        trainer("steps.py")
    );
    cluster.sbatch(&["-N1", "-n2", "--array=1-2"], &train);
    let ids: Vec<String> = ["over1-", "over2-"]
        .iter()
        .map(|start| {
            cluster.until("both tasks", || {
                let entries = fs::read_dir(cluster.path("")).unwrap().flatten();
                let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
                names
                    .filter_map(|name| name.strip_prefix(start).map(str::to_owned))
                    .next()
            })
        })
        .collect();
    assert_ne!(ids[0], ids[1]);
    for id in &ids {
        let report = cluster.report(&format!("paceline-{id}.0"));
        assert_eq!(report["job"], format!("{id}.0"), "{report}");
        assert_eq!(report["coverage"]["ranks_seen"], 2, "{report}");
        assert_eq!(report["end"]["reason"], "success", "{report}");
    }
}

/// Slurm gives the parts of a heterogeneous step one step ID, one node list and consecutive ranks, so they are one job.
fn a_heterogeneous_step(cluster: &Cluster) {
    let script = trainer("steps.py");
    let part = [
        "paceline",
        "run",
        "--run-dir",
        "het",
        "--",
        "python3",
        &script,
        "--say",
        "het",
        "--steps",
        "60",
    ];
    let words = [&["srun", "-N1", "-n2"][..], &part, &[":", "-N1", "-n1"], &part].concat();
    let ran = cluster.run(&words);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let report = cluster.report("het");
    assert_eq!(report["world_size"], 3, "{report}");
    assert_eq!(report["coverage"]["ranks_seen"], 3, "{report}");
    let seating = Seating::of(&cluster.journal("het"));
    let ranks: Vec<u32> = seating.ranks.iter().map(|(rank, _)| *rank).collect();
    assert_eq!(
        (ranks, seating.sidecars.len()),
        (vec![0, 1, 2], 2),
        "{:?}",
        seating.ranks
    );
}

/// Two tasks on each of two nodes share a sidecar, and a GPU of the second node fails. Every trainer must get one
/// checkpoint signal, and Slurm must requeue the job and restart it without that node.
fn a_requeue_away_from_the_bad_node(cluster: &Cluster) {
    for node in ["n1", "n2", "n3"] {
        fs::write(cluster.path(&format!("kmsg.{node}")), "").unwrap();
    }
    let train = format!(
        "srun bash -c 'exec paceline run --on-fault requeue --act --remedy-limit hold_s=0 --checkpoint-wait 60 \
         --remedy-ledger ledger.json --kmsg kmsg.$SLURMD_NODENAME -- python3 {} --say again --until-term --save'",
        trainer("steps.py")
    );
    let job = cluster.sbatch(
        &["-N2", "--ntasks-per-node=2", "--requeue", "--comment=mine"],
        &train,
    );
    let first = format!("paceline-{job}.0");
    cluster.until("steps of all", || {
        let journal = cluster.read(&format!("{first}/journal.ndjson"));
        (journal.matches("\"attach\"").count() >= 4 && journal.matches("{\"step\":{").count() > 80)
            .then_some(())
    });
    let seating = Seating::of(&cluster.journal(&first));
    let bad = seating.node_of(3).to_owned();
    assert_ne!(bad, seating.node_of(0), "two on each node");
    let fault = "4,1,77000000,-;NVRM: Xid (PCI:0000:01:00): 119, pid=7, name=a, Timeout of GSP\n";
    fs::write(cluster.path(&format!("kmsg.{bad}")), fault).unwrap();
    let second = format!("paceline-{job}.0-r1");
    cluster.start_requeued(&job);
    cluster.until("the second run", || {
        (cluster
            .read(&format!("{second}/journal.ndjson"))
            .matches("{\"step\":{")
            .count()
            > 80)
            .then_some(())
    });
    let shown = cluster.run(&["scontrol", "show", "job", &job]).stdout;
    assert!(
        shown.contains(&format!("ExcNodeList={bad}")) && shown.contains("Comment=mine"),
        "{shown}"
    );
    let again = Seating::of(&cluster.journal(&second));
    assert!(!again.sidecars.contains(&bad), "{:?}", again.ranks);
    // There must be one decision and its result, and no other request.
    let lines: Vec<Value> = cluster
        .read(&format!("{first}/remedies.ndjson"))
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let decided: Vec<&Value> = lines.iter().filter_map(|line| line.get("decision")).collect();
    assert_eq!(
        (decided.len(), &decided[0]["outcome"]),
        (1, &Value::from("act")),
        "{lines:?}"
    );
    assert_eq!(decided[0]["ask"]["subject"]["node"], *bad, "{lines:?}");
    let course: Vec<&str> = lines
        .iter()
        .filter_map(|line| line["course"]["what"].as_str())
        .collect();
    let command = format!("runs paceline slurm requeue {job} --exclude {bad}");
    // Compares only the first entries, because whether the aggregator is still running when its command ends depends on
    // Slurm.
    assert_eq!(
        course[..3],
        ["SIGUSR1 to the trainers", "a checkpoint was written", &command],
        "{course:?}"
    );
    assert!(!cluster.path(&format!("{second}/remedies.ndjson")).exists());
    it_is_not_requeued_again(cluster, &job, again.node_of(0));
    cluster.run(&["scancel", &job]);
    cluster.until_over(&job);
    cluster.until("the end of all", || cluster.ours().is_empty().then_some(()));
    for rank in 0..4 {
        let said = cluster.read(&format!("again{rank}"));
        let signals: Vec<&str> = said
            .lines()
            .filter_map(|line| line.strip_prefix("got SIG"))
            .collect();
        // There are two signals of the first run, and scancel's signal in the second.
        assert_eq!(signals, ["USR1", "TERM", "TERM"], "{said}");
    }
}

/// Slurm's job ID identifies the job across its runs, so the recent remedy still counts against its budget.
fn it_is_not_requeued_again(cluster: &Cluster, job: &str, bad: &str) {
    let fault = "4,1,77000000,-;NVRM: Xid (PCI:0000:02:00): 119, pid=7, name=a, Timeout of GSP\n";
    fs::write(cluster.path(&format!("kmsg.{bad}")), fault).unwrap();
    let audit = format!("paceline-{job}.0-r1/remedies.ndjson");
    let said = cluster.until("a decision", || {
        Some(cluster.read(&audit)).filter(|text| text.ends_with('\n'))
    });
    let line: Value = serde_json::from_str(said.lines().next().unwrap()).unwrap();
    let decision = &line["decision"];
    assert!(decision["outcome"]["refuse"]["cool-down"].is_u64(), "{said}");
    assert_eq!(
        decision["ask"]["account"],
        format!("slurm:paceline-test:{job}"),
        "{said}"
    );
    let shown = cluster.run(&["scontrol", "show", "job", job]).stdout;
    assert!(
        shown.contains("Restarts=1") && shown.contains("JobState=RUNNING"),
        "{shown}"
    );
}
