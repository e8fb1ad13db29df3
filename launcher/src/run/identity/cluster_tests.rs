//! Tests of variables from schedulers and launchers.

use super::*;

/// Returns the value of the variable `name` in words such as `A=1 B=2`.
pub(in crate::run) fn among(variables: &str, name: &str) -> Option<String> {
    let mut pairs = variables
        .split_whitespace()
        .filter_map(|pair| pair.split_once('='));
    pairs
        .find(|(known, _)| *known == name)
        .map(|(_, value)| value.to_owned())
}

fn with<T>(variables: &str, ask: impl Fn(Variable<'_>) -> T) -> T {
    ask(&|name| among(variables, name))
}

fn words(command: &str) -> Vec<OsString> {
    command.split_whitespace().map(OsString::from).collect()
}

/// Returns the variables that deepspeed's launcher sets for local rank 1 of two, on the last of `nodes` nodes.
fn deepspeed(master: &str, nodes: u32) -> String {
    format!(
        "CUDA_VISIBLE_DEVICES=0,1 MASTER_ADDR={master} MASTER_PORT=29500 WORLD_SIZE={} CROSS_RANK={} CROSS_SIZE={nodes} \
         LOCAL_SIZE=2 RANK={} LOCAL_RANK=1",
        2 * nodes,
        nodes - 1,
        2 * nodes - 1
    )
}

#[test]
fn the_first_node() {
    let step = "SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_STEP_NODELIST=n[3-4]";
    let mpi = "OMPI_COMM_WORLD_RANK=1 OMPI_MCA_orte_num_nodes=2 \
               OMPI_MCA_orte_hnp_uri=96.0;tcp://192.0.2.2,198.51.100.2:533;tcp6://[fd00::2]:589";
    for (command, variables, wanted) in [
        ("python t.py", step, Some("n3")),
        ("torchrun --nnodes=2 --rdzv-endpoint=x:1 t.py", step, Some("n3")),
        (
            "python t.py",
            "SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_STEP_NODELIST=n3",
            None,
        ),
        // The batch script runs on one node of the allocation.
        (
            "python t.py",
            "SLURM_JOB_ID=7 SLURM_STEP_ID=4294967291 SLURM_JOB_NODELIST=n[3-4]",
            None,
        ),
        ("torchrun --nnodes=2:4 --rdzv_endpoint x:1 t.py", "", Some("x")),
        ("torchrun --nnodes 2 --master-addr=y t.py", "", Some("y")),
        ("torchrun --nnodes 1:1 --rdzv-endpoint=x:1 t.py", "", None),
        ("torchrun --nnodes 2 --rdzv-endpoint=localhost:0 t.py", "", None),
        (
            "torchrun --nnodes 2 --rdzv-backend etcd-v2 --rdzv-endpoint=x:1 t.py",
            "",
            None,
        ),
        (
            "torchrun t.py",
            "PET_NNODES=2 PET_RDZV_ENDPOINT=[fd00::1]:4",
            Some("fd00::1"),
        ),
        ("python t.py", "WORLD_SIZE=4 MASTER_ADDR=z", Some("z")),
        (
            "python t.py",
            "WORLD_SIZE=4 LOCAL_WORLD_SIZE=4 MASTER_ADDR=z",
            None,
        ),
        ("python t.py", &deepspeed("z", 1), None),
        ("python t.py", &deepspeed("z", 2), Some("z")),
        ("python t.py", "WORLD_SIZE=4 MASTER_ADDR=127.0.0.1", None),
        ("python t.py", mpi, Some("192.0.2.2")),
        // In an allocation, mpirun has started its daemons as a step with one task on each other node.
        (
            "python t.py",
            &format!("SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_STEP_NODELIST=n4 {mpi}"),
            Some("192.0.2.2"),
        ),
        // Here, mpirun runs on a login node.
        (
            "python t.py",
            &format!("SLURM_JOB_NODELIST=n[5-6] {mpi}"),
            Some("n5"),
        ),
        (
            "python t.py",
            &step.replace("0 ", "0 PACELINE_FIRST_NODE=n4 "),
            Some("n4"),
        ),
        ("python t.py", "", None),
    ] {
        let found = with(variables, |variable| first_node(&words(command), variable));
        assert_eq!(found.as_deref(), wanted, "{command} {variables}");
    }
}

#[test]
fn where_a_preflight_meets() {
    let at = |command: &str, variables: &str| with(variables, |variable| meeting(&words(command), variable));
    let x = |count| Some(("x".to_owned(), count));
    assert_eq!(at("torchrun --nnodes 2:4 --rdzv_endpoint=x:29400 t.py", ""), x(2));
    assert_eq!(at("ft_launcher --nnodes=3 --rdzv-endpoint x t.py", ""), x(3));
    assert_eq!(
        at(
            "ft_launcher --ft-ignore-missing-cfg --nnodes 2 --rdzv-endpoint x t.py",
            ""
        ),
        x(2)
    );
    assert_eq!(at("torchrun --nnodes 1:4 --rdzv_endpoint=x:29400 t.py", ""), None);
    assert_eq!(at("torchrun t.py", "PET_NNODES=3 PET_MASTER_ADDR=x"), x(3));
    // A script's own options do not count.
    assert_eq!(at("python t.py --nnodes 2 --rdzv-endpoint x", ""), None);
    assert_eq!(at("torchrun --nnodes 2 t.py --rdzv-endpoint x", ""), None);

    let of = |variables: &str| with(variables, allocation);
    let whole = "SLURM_JOB_ID=7 SLURM_JOB_NODELIST=n[1-4]";
    assert_eq!(of(whole).as_deref(), Some("n[1-4]"));
    let step = format!("{whole} SLURM_STEP_ID=0 SLURM_STEP_NODELIST=n[3-4]");
    assert_eq!(of(&step).as_deref(), Some("n[3-4]"));
    // The batch script runs on the first node only, so no other node would join.
    assert_eq!(of(&format!("{whole} SLURM_STEP_ID=4294967291")), None);
    assert_eq!(of("SLURM_JOB_NODELIST=n1"), None);
}

#[test]
fn which_task_of_a_node() {
    let step =
        "SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_STEP_TASKS_PER_NODE=3,1(x2) SLURM_PROCID=2 SLURM_LOCALID=2";
    let task = |on_node| Some(Task { on_node });
    for (variables, wanted) in [
        (format!("{step} SLURM_NODEID=0"), task(3)),
        (format!("{step} SLURM_NODEID=1"), None),
        (
            format!("{step} SLURM_NODEID=0 RANK=5 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4"),
            task(4),
        ),
        // There is one torchrun agent on each node, and the pod has its own RANK.
        ("RANK=1 WORLD_SIZE=2".to_owned(), None),
        (
            format!(
                "{step} SLURM_NODEID=1 OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2"
            ),
            task(2),
        ),
        (deepspeed("127.0.0.1", 1), task(2)),
        (format!("{step} SLURM_NODEID=0 {}", deepspeed("n1", 2)), task(2)),
        // MPICH's mpirun runs alone, and inside a Slurm step with one task for it on each node. Then srun runs with its
        // own PMI.
        (
            "PMI_RANK=3 PMI_SIZE=4 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2".to_owned(),
            task(2),
        ),
        (
            format!("{step} SLURM_NODEID=1 PMI_RANK=3 PMI_SIZE=4 MPI_LOCALNRANKS=2"),
            task(2),
        ),
        (format!("{step} SLURM_NODEID=0 PMI_RANK=2 PMI_SIZE=5"), task(3)),
        // This variable is unrelated, and there is no rank.
        ("LOCAL_SIZE=4".to_owned(), None),
        (String::new(), None),
    ] {
        assert_eq!(with(&variables, super::task), wanted, "{variables}");
    }
    assert_eq!(repeated("3,1(x2)"), Some(vec![3, 1, 1]));
    assert_eq!(repeated("3(x99999999)"), None);
    assert_eq!(repeated("3(2"), None);
}

#[test]
fn what_mpirun_starts_elsewhere() {
    assert!(is_daemon_of_mpi(&words("/usr/bin/orted -mca ess slurm")));
    assert!(!is_daemon_of_mpi(&words("python orted")) && !is_daemon_of_mpi(&[]));
    let first = |nodes: &str| with(&format!("SLURM_JOB_NODELIST={nodes}"), first_of_allocation);
    assert_eq!((first("n[3-4]").as_deref(), first("n3")), (Some("n3"), None));
}

#[test]
fn who_speaks() {
    let follows = |variables: &str| with(variables, is_follower);
    assert!(follows("SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_PROCID=1"));
    assert!(!follows("SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_PROCID=0"));
    assert!(!follows("SLURM_JOB_ID=7 SLURM_PROCID=1") && !follows(""));
    let hydra = "PMI_SIZE=4 MPI_LOCALNRANKS=2 PMI_RANK=";
    assert!(follows(&format!("{hydra}3")) && !follows(&format!("{hydra}0")));
    assert!(follows(&deepspeed("z", 2)) && !follows(&deepspeed("z", 2).replace("L_RANK=1", "L_RANK=0")));
}
