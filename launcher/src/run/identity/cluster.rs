//! Information from schedulers and launchers in the environment and the command: the job's first node, and this task's
//! place among the tasks of this node.
//!
//! The innermost launcher counts, as for the hook's rank: under torchrun or mpirun, Slurm's variables belong to the
//! outer one.

use std::ffi::OsString;
use std::path::Path;

use paceline_nccl_bench::preflight::hosts::expand;

use super::agents::Agents;
use super::torchrun::Options;

/// The environment: the value of a variable that is not empty.
pub(crate) type Variable<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Default port of torchrun's rendezvous.
const TORCHRUN_PORT: &str = "29500";
/// Steps from here on are Slurm's own, such as that of the batch script (slurm.h: SLURM_MAX_NORMAL_STEP_ID).
const FIRST_PSEUDO_STEP: u32 = 0xffff_fff0;

/// `paceline run` as one of several identical tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Task {
    /// Tasks on this node.
    pub(crate) on_node: u32,
}

/// The rendezvous of the ranks, from a command or torchrun's variables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint {
    /// Host.
    pub(crate) host: String,
    /// Port.
    pub(crate) port: String,
}

impl Endpoint {
    /// A host with the launchers' default port, if none is given.
    pub(super) fn at(host: String, port: Option<String>) -> Endpoint {
        let port = port.unwrap_or_else(|| TORCHRUN_PORT.to_owned());
        Endpoint { host, port }
    }
}

/// The number of our Slurm step. The batch script has none: it runs on the first node only.
pub(crate) fn step(variable: Variable<'_>) -> Option<u32> {
    variable("SLURM_JOB_ID")?;
    let step: u32 = variable("SLURM_STEP_ID")?.parse().ok()?;
    (step < FIRST_PSEUDO_STEP).then_some(step)
}

/// Whether a scheduler started us, which may signal all processes of the step, not only us.
pub(crate) fn is_scheduled(variable: Variable<'_>) -> bool {
    variable("SLURM_JOB_ID").is_some()
}

/// Default host of the job's aggregator, if the job has several nodes.
pub(crate) fn first_node(command: &[OsString], variable: Variable<'_>) -> Option<String> {
    // After a preflight, the first of the remaining nodes.
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

/// The rendezvous of torchrun's or accelerate's nodes, if there are several and it is not this host's own address.
pub(crate) fn endpoint(command: &[OsString], variable: Variable<'_>) -> Option<Endpoint> {
    let endpoint = Agents::of(command, variable)?.endpoint;
    (!is_local(&endpoint.host)).then_some(endpoint)
}

/// The value of one of torchrun's options in the command, or of PET_NAME.
pub(crate) fn torchrun_option(command: &[OsString], variable: Variable<'_>, name: &str) -> Option<String> {
    Options::of(command)
        .value(command, &format!("--{name}"))
        .or_else(|| variable(&format!("PET_{}", name.to_uppercase().replace('-', "_"))))
}

/// The host of torchrun's rendezvous, and the minimum number of nodes.
pub(crate) fn meeting(command: &[OsString], variable: Variable<'_>) -> Option<(String, usize)> {
    let host = endpoint(command, variable)?.host;
    let nodes = torchrun_option(command, variable, "nnodes")?;
    // MIN:MAX of an elastic job: the minimum.
    let least = nodes.split(':').next()?.parse().ok()?;
    (least > 1).then_some((host, least))
}

/// The Slurm nodes of a command: those of the step, or of the whole allocation if Slurm did not start the command.
pub(crate) fn allocation(variable: Variable<'_>) -> Option<String> {
    variable("SLURM_JOB_ID")?;
    match (variable("SLURM_STEP_ID"), step(variable)) {
        (Some(_), None) => None,
        _ => variable("SLURM_STEP_NODELIST").or_else(|| variable("SLURM_JOB_NODELIST")),
    }
}

/// MASTER_ADDR and MASTER_PORT of a job with more ranks than those of this node.
pub(crate) fn of_plain(variable: Variable<'_>) -> Option<Endpoint> {
    let (world, local) = (variable("WORLD_SIZE")?, ranks_here(variable));
    let host = variable("MASTER_ADDR")?;
    let many = world != "1" && local.as_ref() != Some(&world);
    let port = variable("MASTER_PORT").unwrap_or_else(|| TORCHRUN_PORT.to_owned());
    (many && !is_local(&host)).then_some(Endpoint { host, port })
}

/// The rendezvous of this node's ranks, if we run in front of one of several, on whatever nodes the others are.
pub(crate) fn meeting_of_ranks(variable: Variable<'_>) -> Option<Endpoint> {
    ranks_here(variable)?;
    task(variable)?;
    let host = variable("MASTER_ADDR")?;
    let port = variable("MASTER_PORT").unwrap_or_else(|| TORCHRUN_PORT.to_owned());
    Some(Endpoint { host, port })
}

/// The number of ranks on this node, from torchrun's variable for its workers; deepspeed's launcher has another name
/// for it (<https://github.com/deepspeedai/DeepSpeed/blob/master/deepspeed/launcher/launch.py>).
fn ranks_here(variable: Variable<'_>) -> Option<String> {
    variable("LOCAL_WORLD_SIZE").or_else(|| variable("LOCAL_RANK").and(variable("LOCAL_SIZE")))
}

/// The host of mpirun's first rank. In an allocation that is its first node, wherever mpirun itself runs; else usually
/// mpirun's host, which Open MPI 4 passes by addresses, `965476352.0;tcp://192.0.2.2,198.51.100.2:53357;...`.
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

/// The first node of an allocation of several, where batch scripts run.
pub(crate) fn first_of_allocation(variable: Variable<'_>) -> Option<String> {
    let names = allocated(variable).filter(|names| names.len() > 1)?;
    names.into_iter().next()
}

/// Whether a command is a daemon that an mpirun starts on other nodes, to start its ranks there: of Open MPI 4, of Open
/// MPI 5, or of MPICH and Intel MPI.
pub(crate) fn is_daemon_of_mpi(command: &[OsString]) -> bool {
    let program = command.first().map(Path::new).and_then(Path::file_name);
    program.is_some_and(|name| {
        ["orted", "prted", "hydra_pmi_proxy"]
            .iter()
            .any(|known| name == *known)
    })
}

/// Our place among several tasks of this node; `None`: the only one.
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

/// Number of ranks on this node under the mpirun of MPICH or Intel MPI. Under srun there is also a PMI_RANK, but no
/// such count.
pub(super) fn ranks_of_hydra(variable: Variable<'_>) -> Option<u32> {
    variable("PMI_RANK")?;
    variable("MPI_LOCALNRANKS")?.parse().ok()
}

/// Whether several instances started together print to the same terminal, and we are not the first of them.
pub(crate) fn is_follower(variable: Variable<'_>) -> bool {
    let global = match (step(variable), variable("OMPI_COMM_WORLD_RANK")) {
        (_, Some(rank)) => Some(rank),
        _ if ranks_of_hydra(variable).is_some() => variable("PMI_RANK"),
        (Some(_), None) => variable("SLURM_PROCID"),
        // Otherwise each node may have its own terminal.
        (None, None) => ranks_here(variable).and(variable("LOCAL_RANK")),
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
