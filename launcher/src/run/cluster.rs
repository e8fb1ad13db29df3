//! What schedulers and launchers have put into the environment and the command: where the job's first node is, and which
//! of how many tasks of this node we are.
//!
//! The innermost launcher counts, as it does for the hook's rank: under torchrun or mpirun Slurm's variables are the
//! outer ones.

use std::ffi::OsString;

use paceline_nccl_bench::preflight::hosts::expand;

use super::torchrun::Options;

/// The environment: what stands in a variable that is not empty.
pub(crate) type Variable<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Port of torchrun's rendezvous when nobody names one.
const TORCHRUN_PORT: &str = "29500";
/// Steps from here on are Slurm's own, such as that of the batch script (slurm.h: SLURM_MAX_NORMAL_STEP_ID).
const FIRST_PSEUDO_STEP: u32 = 0xffff_fff0;

/// `paceline run` as one of several tasks that were started alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Task {
    /// Tasks on this node.
    pub(crate) on_node: u32,
}

/// Where a command or a torchrun's variables say that ranks meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint {
    /// Host.
    pub(crate) host: String,
    /// Port.
    pub(crate) port: String,
}

/// The number of the Slurm step that we are a task of. The batch script is none: it runs on the first node only.
pub(crate) fn step(variable: Variable<'_>) -> Option<u32> {
    variable("SLURM_JOB_ID")?;
    let step: u32 = variable("SLURM_STEP_ID")?.parse().ok()?;
    (step < FIRST_PSEUDO_STEP).then_some(step)
}

/// Host on which the job's aggregator is to be, when the job has several nodes and nobody said where.
pub(crate) fn first_node(command: &[OsString], variable: Variable<'_>) -> Option<String> {
    // Of what a preflight has left.
    if let Some(chosen) = variable("PACELINE_FIRST_NODE") {
        let alone = variable("PACELINE_NNODES").is_some_and(|count| count == "1");
        return (!alone).then_some(chosen);
    }
    if variable("OMPI_COMM_WORLD_RANK").is_some() {
        return of_mpirun(variable);
    }
    if step(variable).is_some() {
        let nodes = expand(&variable("SLURM_STEP_NODELIST")?).ok()?;
        return (nodes.len() > 1).then(|| nodes[0].clone());
    }
    endpoint(command, variable)
        .or_else(|| of_plain(variable))
        .map(|endpoint| endpoint.host)
}

/// Where torchrun's nodes meet, if there are several: from its arguments, or the variables that it reads for them.
pub(crate) fn endpoint(command: &[OsString], variable: Variable<'_>) -> Option<Endpoint> {
    let option = |name: &str| torchrun_option(command, variable, name);
    let most = option("nnodes")?.rsplit(':').next()?.parse::<u32>().ok()?;
    // A store of its own need not be on any of the nodes.
    let elsewhere = option("rdzv-backend").is_some_and(|backend| backend.starts_with("etcd"));
    if most < 2 || elsewhere {
        return None;
    }
    let (host, port) = match option("rdzv-endpoint") {
        Some(endpoint) => split(&endpoint),
        None => (option("master-addr")?, option("master-port")),
    };
    let port = port.unwrap_or_else(|| TORCHRUN_PORT.to_owned());
    (!is_local(&host)).then_some(Endpoint { host, port })
}

/// The value of one of torchrun's options in the command, or of PET_NAME.
pub(crate) fn torchrun_option(command: &[OsString], variable: Variable<'_>, name: &str) -> Option<String> {
    Options::of(command)
        .value(command, &format!("--{name}"))
        .or_else(|| variable(&format!("PET_{}", name.to_uppercase().replace('-', "_"))))
}

/// The host at which torchrun's nodes meet, and how many must be there.
pub(crate) fn meeting(command: &[OsString], variable: Variable<'_>) -> Option<(String, usize)> {
    let host = endpoint(command, variable)?.host;
    let nodes = torchrun_option(command, variable, "nnodes")?;
    // MIN:MAX of an elastic job: those that must be there.
    let least = nodes.split(':').next()?.parse().ok()?;
    (least > 1).then_some((host, least))
}

/// Slurm's nodes that a command was started on: those of the step, or of the whole allocation where somebody else than
/// Slurm started it.
pub(crate) fn allocation(variable: Variable<'_>) -> Option<String> {
    variable("SLURM_JOB_ID")?;
    match (variable("SLURM_STEP_ID"), step(variable)) {
        (Some(_), None) => None,
        _ => variable("SLURM_STEP_NODELIST").or_else(|| variable("SLURM_JOB_NODELIST")),
    }
}

/// MASTER_ADDR and MASTER_PORT of a job that has more ranks than those of this node.
pub(crate) fn of_plain(variable: Variable<'_>) -> Option<Endpoint> {
    let (world, local) = (variable("WORLD_SIZE")?, variable("LOCAL_WORLD_SIZE"));
    let host = variable("MASTER_ADDR")?;
    let many = world != "1" && local.as_ref() != Some(&world);
    let port = variable("MASTER_PORT").unwrap_or_else(|| TORCHRUN_PORT.to_owned());
    (many && !is_local(&host)).then_some(Endpoint { host, port })
}

/// The host of mpirun's first rank. In an allocation that is its first node, wherever mpirun itself runs; else mostly the
/// host of mpirun, which Open MPI 4 names by its addresses, `965476352.0;tcp://192.0.2.2,198.51.100.2:53357;...`.
fn of_mpirun(variable: Variable<'_>) -> Option<String> {
    let nodes: u32 = variable("OMPI_MCA_orte_num_nodes")?.parse().ok()?;
    let allocated = variable("SLURM_JOB_NODELIST").and_then(|nodes| expand(&nodes).ok());
    if let Some(first) = allocated.and_then(|names| names.into_iter().next()) {
        return (nodes > 1).then_some(first);
    }
    let uri = variable("OMPI_MCA_orte_hnp_uri")?;
    let addresses = uri.split(';').find_map(|part| part.strip_prefix("tcp://"))?;
    let host = addresses.split([',', ':']).next()?;
    (nodes > 1 && !host.is_empty()).then(|| host.to_owned())
}

/// Which of several tasks of this node we are; `None`: the only one.
pub(crate) fn task(variable: Variable<'_>) -> Option<Task> {
    let number = |name: &str| variable(name)?.parse::<u32>().ok();
    let of = |local: &str, on_node: &str| {
        number(local)?;
        let on_node = number(on_node)?;
        (on_node > 1).then_some(Task { on_node })
    };
    if number("LOCAL_RANK").is_some() && number("LOCAL_WORLD_SIZE").is_some() {
        return of("LOCAL_RANK", "LOCAL_WORLD_SIZE");
    }
    if number("OMPI_COMM_WORLD_RANK").is_some() {
        return of("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE");
    }
    step(variable)?;
    let counts = repeated(&variable("SLURM_STEP_TASKS_PER_NODE")?)?;
    let on_node = *counts.get(number("SLURM_NODEID")? as usize)?;
    (on_node > 1).then_some(Task { on_node })
}

/// Whether others that were started with us speak on the same terminal, and we are not the first of them.
pub(crate) fn is_follower(variable: Variable<'_>) -> bool {
    let global = match (step(variable), variable("OMPI_COMM_WORLD_RANK")) {
        (_, Some(rank)) => Some(rank),
        (Some(_), None) => variable("SLURM_PROCID"),
        (None, None) => None,
    };
    global.is_some_and(|rank| rank != "0")
}

/// Slurm's `3,1(x2)`: 3, 1, 1.
fn repeated(text: &str) -> Option<Vec<u32>> {
    let mut counts: Vec<u32> = Vec::new();
    for part in text.split(',') {
        let (count, times) = match part.split_once("(x") {
            Some((count, times)) => (count, times.strip_suffix(')')?.parse().ok()?),
            None => (part, 1),
        };
        if counts.len() + times > paceline_nccl_bench::preflight::hosts::MOST {
            return None;
        }
        counts.extend(std::iter::repeat_n(count.parse::<u32>().ok()?, times));
    }
    Some(counts)
}

/// `host:port`, `[v6]:port`, `host`.
fn split(endpoint: &str) -> (String, Option<String>) {
    if let Some((host, rest)) = endpoint.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        return (host.to_owned(), rest.strip_prefix(':').map(str::to_owned));
    }
    match endpoint.split_once(':') {
        Some((host, port)) if !port.contains(':') => (host.to_owned(), Some(port.to_owned())),
        _ => (endpoint.to_owned(), None),
    }
}

fn is_local(host: &str) -> bool {
    let address = host.parse::<std::net::IpAddr>();
    host.is_empty() || host == "localhost" || address.is_ok_and(|ip| ip.is_loopback() || ip.is_unspecified())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with<T>(variables: &str, ask: impl Fn(Variable<'_>) -> T) -> T {
        ask(&|name| {
            let mut pairs = variables
                .split_whitespace()
                .filter_map(|pair| pair.split_once('='));
            pairs
                .find(|(known, _)| *known == name)
                .map(|(_, value)| value.to_owned())
        })
    }

    fn words(command: &str) -> Vec<OsString> {
        command.split_whitespace().map(OsString::from).collect()
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
            // The batch script, which runs on one node of the allocation.
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
            ("python t.py", "WORLD_SIZE=4 MASTER_ADDR=127.0.0.1", None),
            ("python t.py", mpi, Some("192.0.2.2")),
            // Of an allocation: mpirun has started its daemons as a step of one task on each other node.
            (
                "python t.py",
                &format!("SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_STEP_NODELIST=n4 {mpi}"),
                Some("192.0.2.2"),
            ),
            // mpirun stands on a login node.
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
        let at =
            |command: &str, variables: &str| with(variables, |variable| meeting(&words(command), variable));
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
        // A script's own options.
        assert_eq!(at("python t.py --nnodes 2 --rdzv-endpoint x", ""), None);
        assert_eq!(at("torchrun --nnodes 2 t.py --rdzv-endpoint x", ""), None);

        let of = |variables: &str| with(variables, allocation);
        let whole = "SLURM_JOB_ID=7 SLURM_JOB_NODELIST=n[1-4]";
        assert_eq!(of(whole).as_deref(), Some("n[1-4]"));
        let step = format!("{whole} SLURM_STEP_ID=0 SLURM_STEP_NODELIST=n[3-4]");
        assert_eq!(of(&step).as_deref(), Some("n[3-4]"));
        // The batch script runs on the first node only, and nobody would come.
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
            // One agent of torchrun on each node, and the pod's own RANK.
            ("RANK=1 WORLD_SIZE=2".to_owned(), None),
            (
                format!(
                    "{step} SLURM_NODEID=1 OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2"
                ),
                task(2),
            ),
            (String::new(), None),
        ] {
            assert_eq!(with(&variables, super::task), wanted, "{variables}");
        }
        assert_eq!(repeated("3,1(x2)"), Some(vec![3, 1, 1]));
        assert_eq!(repeated("3(x99999999)"), None);
        assert_eq!(repeated("3(2"), None);
    }

    #[test]
    fn who_speaks() {
        let follows = |variables: &str| with(variables, is_follower);
        assert!(follows("SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_PROCID=1"));
        assert!(!follows("SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_PROCID=0"));
        assert!(!follows("SLURM_JOB_ID=7 SLURM_PROCID=1") && !follows(""));
    }
}
