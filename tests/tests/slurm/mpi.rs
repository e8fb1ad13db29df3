//! Tests mpirun, whose tasks are identified by Open MPI's variables, on one host and in an allocation.

use std::fs;
use std::process::Stdio;

use crate::cluster::{Cluster, Seating, ring_dirs, straggler, trainer};

pub const MPIRUN: &str = "mpirun --allow-run-as-root --oversubscribe";

#[test]
#[ignore = "needs Slurm and Open MPI: tests/run"]
fn four_ranks_of_an_allocation() {
    let (before, cluster) = (ring_dirs(), Cluster::of(2));
    let train = format!(
        "python3 {} --say rank --steps 120 --slow-rank 2",
        trainer("steps.py")
    );
    // mpirun gets its nodes from Slurm and starts its daemons there with srun.
    let script = format!(
        "{MPIRUN} -n 4 --map-by node --mca btl_tcp_if_include eth0 --mca oob_tcp_if_include eth0 \
         -x PATH -x XDG_CONFIG_HOME paceline run --run-dir run -- {train}"
    );
    let job = cluster.sbatch(&["-N2", "--ntasks-per-node=2"], &script);
    assert_eq!(cluster.until_over(&job), "COMPLETED", "{}", cluster.read("out"));
    let report = cluster.report("run");
    let name = report["job"].as_str().unwrap();
    assert!(name.starts_with(&format!("{job}-mpi")), "{name}");
    let seating = Seating::of(&cluster.journal("run"));
    let ranks: Vec<(u32, &str)> = seating
        .ranks
        .iter()
        .map(|(rank, node)| (*rank, node.as_str()))
        .collect();
    assert_eq!(ranks, [(0, "n1"), (1, "n2"), (2, "n1"), (3, "n2")]);
    assert_eq!(seating.sidecars, ["n1", "n2"]);
    assert_eq!(report["coverage"]["steps_ratio"], 1.0, "{report}");
    assert_eq!(straggler(&report)["subject"]["rank"], 2, "{report}");
    cluster.nothing_is_left(&before);
}

/// Runs without a scheduler, with variables set by hand and one `paceline run` per rank.
#[test]
#[ignore = "needs Slurm: tests/run"]
fn plain_variables() {
    let (before, cluster) = (ring_dirs(), Cluster::of(2));
    let train = format!(
        "exec paceline run -- python3 {} --say rank --steps 60",
        trainer("steps.py")
    );
    let start = |rank: u32| {
        let node = cluster.node(rank / 2 + 1);
        let variables = format!(
            "RANK={rank} LOCAL_RANK={} WORLD_SIZE=4 LOCAL_WORLD_SIZE=2 MASTER_ADDR=n1 MASTER_PORT=29511",
            rank % 2
        );
        let mut words: Vec<&str> = node.iter().map(String::as_str).collect();
        let line = format!("export {variables}; {train}");
        words.extend(["bash", "-c", &line]);
        let log = fs::File::create(cluster.path(&format!("err{rank}"))).unwrap();
        cluster
            .bare(&words)
            .stderr(log)
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    };
    let started: Vec<_> = (0..4).map(start).collect();
    for mut rank in started {
        assert!(rank.wait().unwrap().success(), "{}", cluster.read("err0"));
    }
    let run_dir = "paceline-n1-29511";
    let report = cluster.report(run_dir);
    assert_eq!(
        (report["job"].as_str(), report["coverage"]["ranks_seen"].as_u64()),
        (Some("n1-29511"), Some(4))
    );
    assert_eq!(Seating::of(&cluster.journal(run_dir)).sidecars, ["n1", "n2"]);
    cluster.nothing_is_left(&before);
}
