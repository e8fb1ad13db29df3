//! Reads what schedulers and launchers put into the environment and the command: the job's first node, and this task's
//! place among the tasks of this node.
//!
//! The innermost launcher counts, as it does for the hook's rank. Under torchrun or mpirun, Slurm's variables belong to
//! the outer launcher.

use std::ffi::OsString;
use std::path::Path;

use paceline_nccl_bench::preflight::hosts::expand;

use super::agents::Agents;
use super::torchrun::Options;

/// Returns the value of an environment variable, if it is not empty.
pub(crate) type Variable<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Default port of torchrun's rendezvous.
const TORCHRUN_PORT: &str = "29500";
/// Steps with this number or a higher one are Slurm's own, such as the batch script (slurm.h:
/// SLURM_MAX_NORMAL_STEP_ID).
const FIRST_PSEUDO_STEP: u32 = 0xffff_fff0;

/// This `paceline run` is one of several identical tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Task {
    /// Number of tasks on this node.
    pub(crate) on_node: u32,
}

/// The rendezvous of the ranks, taken from a command or torchrun's variables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint {
    /// Host of the rendezvous.
    pub(crate) host: String,
    /// Port of the rendezvous.
    pub(crate) port: String,
}

impl Endpoint {
    /// Creates an endpoint with the launchers' default port, if no port is given.
    pub(super) fn at(host: String, port: Option<String>) -> Endpoint {
        let port = port.unwrap_or_else(|| TORCHRUN_PORT.to_owned());
        Endpoint { host, port }
    }
}

/// Returns the number of our Slurm step. The batch script has none, because it runs on the first node only.
pub(crate) fn step(variable: Variable<'_>) -> Option<u32> {
    variable("SLURM_JOB_ID")?;
    let step: u32 = variable("SLURM_STEP_ID")?.parse().ok()?;
    (step < FIRST_PSEUDO_STEP).then_some(step)
}

/// Returns true if a scheduler started us. It may signal all processes of the step, not only us.
pub(crate) fn is_scheduled(variable: Variable<'_>) -> bool {
    variable("SLURM_JOB_ID").is_some()
}

/// Returns the default host of the job's aggregator, if the job has several nodes.
pub(crate) fn first_node(command: &[OsString], variable: Variable<'_>) -> Option<String> {
    // After a preflight, use the first of the remaining nodes.
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

/// Returns the rendezvous of torchrun's or accelerate's nodes, if there are several nodes and the host is not this one.
pub(crate) fn endpoint(command: &[OsString], variable: Variable<'_>) -> Option<Endpoint> {
    let endpoint = Agents::of(command, variable)?.endpoint;
    (!is_local(&endpoint.host)).then_some(endpoint)
}

/// Returns the value of one of torchrun's options, from the command or the variable PET_NAME.
pub(crate) fn torchrun_option(command: &[OsString], variable: Variable<'_>, name: &str) -> Option<String> {
    Options::of(command)
        .value(command, &format!("--{name}"))
        .or_else(|| variable(&format!("PET_{}", name.to_uppercase().replace('-', "_"))))
}

/// Returns the host of torchrun's rendezvous, and the minimum number of nodes.
pub(crate) fn meeting(command: &[OsString], variable: Variable<'_>) -> Option<(String, usize)> {
    let host = endpoint(command, variable)?.host;
    let nodes = torchrun_option(command, variable, "nnodes")?;
    // Take MIN from the MIN:MAX of an elastic job.
    let least = nodes.split(':').next()?.parse().ok()?;
    (least > 1).then_some((host, least))
}

/// Returns the Slurm nodes of a command. These are the nodes of the step or, if Slurm did not start the command, of the
/// whole allocation.
pub(crate) fn allocation(variable: Variable<'_>) -> Option<String> {
    variable("SLURM_JOB_ID")?;
    match (variable("SLURM_STEP_ID"), step(variable)) {
        (Some(_), None) => None,
        _ => variable("SLURM_STEP_NODELIST").or_else(|| variable("SLURM_JOB_NODELIST")),
    }
}

/// Returns MASTER_ADDR and MASTER_PORT, if the job has ranks on other nodes too.
pub(crate) fn of_plain(variable: Variable<'_>) -> Option<Endpoint> {
    let (world, local) = (variable("WORLD_SIZE")?, ranks_here(variable));
    let host = variable("MASTER_ADDR")?;
    let many = world != "1" && local.as_ref() != Some(&world);
    let port = variable("MASTER_PORT").unwrap_or_else(|| TORCHRUN_PORT.to_owned());
    (many && !is_local(&host)).then_some(Endpoint { host, port })
}

/// Returns the rendezvous of the ranks if we run in front of a single rank. The other ranks may be on any node.
pub(crate) fn meeting_of_ranks(variable: Variable<'_>) -> Option<Endpoint> {
    ranks_here(variable)?;
    task(variable)?;
    let host = variable("MASTER_ADDR")?;
    let port = variable("MASTER_PORT").unwrap_or_else(|| TORCHRUN_PORT.to_owned());
    Some(Endpoint { host, port })
}

/// Returns the number of ranks on this node, from torchrun's variable for its workers or from that of deepspeed's
/// launcher, which has another name
/// (<https://github.com/deepspeedai/DeepSpeed/blob/master/deepspeed/launcher/launch.py>).
fn ranks_here(variable: Variable<'_>) -> Option<String> {
    variable("LOCAL_WORLD_SIZE").or_else(|| variable("LOCAL_RANK").and(variable("LOCAL_SIZE")))
}

/// Returns the host of mpirun's first rank. In an allocation this is the first node, wherever mpirun itself runs.
/// Otherwise it is usually mpirun's host, which Open MPI 4 passes by addresses, such as
/// `965476352.0;tcp://192.0.2.2,198.51.100.2:53357;...`.
fn of_mpirun(variable: Variable<'_>) -> Option<String> {
    let nodes: u32 = variable("OMPI_MCA_orte_num_nodes")?.parse().ok()?;
    if let Some(names) = allocated(variable) {
        return names.into_iter().next().filter(|_| nodes > 1);
    }
    let uri = variable("OMPI_MCA_orte_hnp_uri")?;
    let addresses = uri.split(';').find_map(|part| part.strip_prefix("tcp://"))?;
    let host = addresses.split([',', ':']).next()?;
    (nodes > 1 && !host.is_empty()).then(|| host.to_owned())
}

fn allocated(variable: Variable<'_>) -> Option<Vec<String>> {
    let names = expand(&variable("SLURM_JOB_NODELIST")?).ok()?;
    (!names.is_empty()).then_some(names)
}

/// Returns the first node of an allocation of several nodes. Batch scripts run there.
pub(crate) fn first_of_allocation(variable: Variable<'_>) -> Option<String> {
    let names = allocated(variable).filter(|names| names.len() > 1)?;
    names.into_iter().next()
}

/// Returns true if the command is a daemon that mpirun starts on other nodes to start its ranks there. Knows the
/// daemons of Open MPI 4, Open MPI 5, MPICH and Intel MPI.
pub(crate) fn is_daemon_of_mpi(command: &[OsString]) -> bool {
    let program = command.first().map(Path::new).and_then(Path::file_name);
    program.is_some_and(|name| {
        ["orted", "prted", "hydra_pmi_proxy"]
            .iter()
            .any(|known| name == *known)
    })
}

/// Returns our place among several tasks of this node, or `None` if this is the only one.
pub(crate) fn task(variable: Variable<'_>) -> Option<Task> {
    let number = |name: &str| variable(name)?.parse::<u32>().ok();
    let one_of = |on_node: u32| (on_node > 1).then_some(Task { on_node });
    let ranks = ranks_here(variable).and_then(|count| count.parse().ok());
    if let (Some(_), Some(on_node)) = (number("LOCAL_RANK"), ranks) {
        return one_of(on_node);
    }
    if number("OMPI_COMM_WORLD_RANK").is_some() {
        number("OMPI_COMM_WORLD_LOCAL_RANK")?;
        return one_of(number("OMPI_COMM_WORLD_LOCAL_SIZE")?);
    }
    if let Some(on_node) = ranks_of_hydra(variable) {
        return one_of(on_node);
    }
    step(variable)?;
    let counts = repeated(&variable("SLURM_STEP_TASKS_PER_NODE")?)?;
    one_of(*counts.get(number("SLURM_NODEID")? as usize)?)
}

/// Returns the number of ranks on this node under the mpirun of MPICH or Intel MPI. srun also sets a PMI_RANK, but no
/// such number.
pub(super) fn ranks_of_hydra(variable: Variable<'_>) -> Option<u32> {
    variable("PMI_RANK")?;
    variable("MPI_LOCALNRANKS")?.parse().ok()
}

/// Returns true if several instances started together print to the same terminal, and we are not the first of them.
pub(crate) fn is_follower(variable: Variable<'_>) -> bool {
    let global = match (step(variable), variable("OMPI_COMM_WORLD_RANK")) {
        (_, Some(rank)) => Some(rank),
        _ if ranks_of_hydra(variable).is_some() => variable("PMI_RANK"),
        (Some(_), None) => variable("SLURM_PROCID"),
        // Without Slurm and mpirun, compare only the ranks of this node, because each node may have its own terminal.
        (None, None) => ranks_here(variable).and(variable("LOCAL_RANK")),
    };
    global.is_some_and(|rank| rank != "0")
}

/// Parses Slurm's repeated counts, such as `3,1(x2)` for 3, 1, 1.
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

/// Splits an endpoint such as `host:port`, `[v6]:port` or `host`.
pub(super) fn split(endpoint: &str) -> (String, Option<String>) {
    if let Some((host, rest)) = endpoint.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        return (host.to_owned(), rest.strip_prefix(':').map(str::to_owned));
    }
    match endpoint.split_once(':') {
        Some((host, port)) if !port.contains(':') => (host.to_owned(), Some(port.to_owned())),
        _ => (endpoint.to_owned(), None),
    }
}

pub(super) fn is_local(host: &str) -> bool {
    let address = host.parse::<std::net::IpAddr>();
    host.is_empty() || host == "localhost" || address.is_ok_and(|ip| ip.is_loopback() || ip.is_unspecified())
}

#[cfg(test)]
#[path = "cluster_tests.rs"]
pub(crate) mod tests;
