//! Tests real PyTorch as it is usually started on Slurm: a batch script that starts one torchrun on each node.

use crate::cluster::{Cluster, Seating, ring_dirs, trainer};

/// Four nodes have one rank each. The slow rank must be named with its node.
#[test]
#[ignore = "needs Slurm and PyTorch: tests/run"]
fn a_torchrun_on_each_node() {
    let (before, cluster) = (ring_dirs(), Cluster::of(4));
    let torch = std::env::var("PACELINE_TORCH").expect("PACELINE_TORCH is set by tests/run: run that");
    let script = format!(
        "head=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)\n\
         export PATH={torch}/bin:$PATH PYTHONWARNINGS=ignore\n\
         srun paceline run -- torchrun --nnodes 4 --nproc-per-node 1 --rdzv-id $SLURM_JOB_ID --rdzv-backend c10d \
         --rdzv-endpoint $head:29500 {} --steps 60 --sleep-ms 60 --slow-rank 2 --slow-pct 30",
        trainer("ddp.py")
    );
    let job = cluster.sbatch(&["-N4", "--ntasks-per-node=1"], &script);
    assert_eq!(cluster.until_over(&job), "COMPLETED", "{}", cluster.read("out"));
    let run_dir = format!("paceline-{job}.0");
    let report = cluster.report(&run_dir);
    assert_eq!(report["coverage"]["ranks_seen"], 4, "{report}");
    let seating = Seating::of(&cluster.journal(&run_dir));
    assert_eq!(seating.sidecars, ["n1", "n2", "n3", "n4"]);
    // torchrun numbers nodes in order of arrival, so rank 2 may be on any node.
    let verdicts = report["verdicts"].as_array().unwrap();
    let stragglers: Vec<_> = verdicts
        .iter()
        .filter(|verdict| verdict["finding"] == "straggler")
        .collect();
    assert_eq!(stragglers.len(), 1, "{report}");
    assert_eq!(stragglers[0]["subject"]["rank"], 2);
    assert_eq!(
        stragglers[0]["subject"]["node"].as_str(),
        Some(seating.node_of(2))
    );
    assert_eq!(
        cluster.read("out").matches("paceline: job").count(),
        1,
        "{}",
        cluster.read("out")
    );
    cluster.nothing_is_left(&before);
}
