//! Tests how Slurm ends jobs: by signals to all or some processes of a step, at the time limit, and by a requeue.

use std::time::{Duration, Instant};

use paceline_health::event::{Event, TroubleKind};

use crate::cluster::{Cluster, ring_dirs, trainer};

fn signals(said: &str) -> Vec<&str> {
    said.lines()
        .filter_map(|line| line.strip_prefix("got SIG"))
        .collect()
}

/// Checks that the trainer gets each signal once. Which processes of a step get a signal depends on how Slurm tracks
/// them.
fn each_once(proctrack: &str) {
    let (before, cluster) = (ring_dirs(), Cluster::tracked_by(2, proctrack));
    let script = trainer("steps.py");
    let mut words = vec!["srun", "-N2", "paceline", "run", "--", "python3", &script];
    words.extend(["--say", "rank", "--until-term"]);
    let mut srun = cluster.command(&words).spawn().unwrap();
    let has_steps = |count: usize| {
        let journal = cluster.read("paceline-1.0/journal.ndjson");
        (journal.matches("{\"step\":{").count() >= count).then_some(())
    };
    cluster.until("steps of both", || has_steps(40));
    assert_eq!(cluster.run(&["scancel", "--signal=USR1", "1"]).code, Some(0));
    cluster.until("the signal", || {
        (!signals(&cluster.read("rank1")).is_empty()).then_some(())
    });
    cluster.until("more steps", || has_steps(120));
    assert_eq!(cluster.run(&["scancel", "1"]).code, Some(0));
    srun.wait().unwrap();
    for rank in ["rank0", "rank1"] {
        let said = cluster.read(rank);
        assert_eq!(signals(&said), ["USR1", "TERM"], "{proctrack} {said}");
        assert!(said.contains("ends after"), "it was given time: {said}");
    }
    let report = cluster.report("paceline-1.0");
    assert_eq!(report["coverage"]["ranks_seen"], 2);
    assert_eq!(
        report["coverage"]["gaps"].as_array().unwrap().len(),
        0,
        "{report}"
    );
    assert_eq!(report["exits"].as_array().unwrap().len(), 2, "{report}");
    assert_eq!(report["end"]["reason"], "cancelled", "{report}");
    assert_eq!(report["end"]["heard"][0]["says"], "SIGTERM", "{report}");
    cluster.nothing_is_left(&before);
}

#[test]
#[ignore = "needs Slurm: tests/run"]
fn scancel_where_slurm_signals_all_that_a_step_has() {
    each_once("linuxproc");
}

#[test]
#[ignore = "needs Slurm: tests/run"]
fn scancel_where_slurm_signals_what_it_started() {
    each_once("cgroup");
}

/// A trainer ignores signals. At the time limit the batch script sends its own signal, and then Slurm sends SIGTERM and
/// SIGKILL to everything. The next run removes what is left.
#[test]
#[ignore = "needs Slurm: tests/run"]
fn the_time_limit() {
    let (before, cluster) = (ring_dirs(), Cluster::tracked_by(1, "cgroup"));
    let train = format!(
        "paceline run -- python3 {} --say rank --stubborn",
        trainer("steps.py")
    );
    // A signal interrupts the shell's wait, so it waits again.
    let script = format!(
        "trap 'kill -USR1 $run' USR1\ntrap 'kill -TERM $run' TERM\nexport RANK=0 WORLD_SIZE=1\n{train} & run=$!\nwhile kill -0 $run; do wait $run; done"
    );
    let began = Instant::now();
    let job = cluster.sbatch(&["--time=1", "--signal=B:USR1@50"], &script);
    cluster.until("the early signal", || {
        (!signals(&cluster.read("rank0")).is_empty()).then_some(())
    });
    assert_eq!(cluster.until_over(&job), "TIMEOUT");
    assert!(began.elapsed() > Duration::from_secs(40));
    assert_eq!(signals(&cluster.read("rank0")), ["USR1", "TERM"]);
    let report = cluster.report(&format!("paceline-{job}"));
    assert!(
        report["steps"].as_u64().unwrap() > 500,
        "written while it ran: {report}"
    );
    let told = cluster.journal(&format!("paceline-{job}"));
    let why = told.iter().find_map(|entry| match &entry.frame.event {
        Event::Trouble(trouble) if trouble.kind == TroubleKind::TimeLimit => Some(trouble.says.to_string()),
        _ => None,
    });
    assert!(
        why.is_some_and(|says| says.contains("TimeLimit=00:01:00")),
        "told while it lasted"
    );
    cluster.until("the end of all", || cluster.ours().is_empty().then_some(()));
    // Waits, because the killed processes could not clean up, and fresh leftovers are kept in case they belong to a
    // live process.
    std::thread::sleep(Duration::from_secs(11));
    let next = cluster.run(&["srun", "-N1", "-n1", "paceline", "run", "--", "true"]);
    assert_eq!(next.code, Some(0), "{}", next.stderr);
    cluster.nothing_is_left(&before);
}

/// A requeued job must be a separate run with its own number.
#[test]
#[ignore = "needs Slurm: tests/run"]
fn a_requeue() {
    let cluster = Cluster::of(1);
    let script = format!(
        "srun paceline run -- python3 {} --say rank --until-term",
        trainer("steps.py")
    );
    let job = cluster.sbatch(&["--requeue"], &script);
    let first = format!("paceline-{job}.0");
    cluster.until("steps", || {
        (cluster.read(&format!("{first}/journal.ndjson")).lines().count() > 100).then_some(())
    });
    assert_eq!(cluster.run(&["scontrol", "requeue", &job]).code, Some(0));
    cluster.start_requeued(&job);
    let second = format!("paceline-{job}.0-r1");
    cluster.until("the second run", || {
        (cluster.read(&format!("{second}/journal.ndjson")).lines().count() > 100).then_some(())
    });
    cluster.run(&["scancel", &job]);
    cluster.until_over(&job);
    cluster.until("the end of all", || cluster.ours().is_empty().then_some(()));
    let attached = cluster
        .journal(&second)
        .into_iter()
        .find_map(|entry| match entry.frame.event {
            Event::Attach(attach) => Some(attach.restart),
            _ => None,
        });
    assert_eq!(attached, Some(1));
    for (run_dir, why) in [(&first, "requeued"), (&second, "cancelled")] {
        let report = cluster.report(run_dir);
        assert!(report["steps"].as_u64().unwrap() > 20, "{run_dir}");
        assert_eq!(report["end"]["reason"], why, "{report}");
    }
}
