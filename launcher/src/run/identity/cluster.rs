//! What schedulers and launchers have put into the environment and the command: where the job's first node is, and which
//! of how many tasks of this node we are.
//!
//! The innermost launcher counts, as it does for the hook's rank: under torchrun or mpirun Slurm's variables are the
//! outer ones.

use std::ffi::OsString;
use std::path::Path;

use paceline_nccl_bench::preflight::hosts::expand;

use super::agents::Agents;
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

impl Endpoint {
    /// Of a host, with the port at which launchers meet when nobody names one.
    pub(super) fn at(host: String, port: Option<String>) -> Endpoint {
        let port = port.unwrap_or_else(|| TORCHRUN_PORT.to_owned());
        Endpoint { host, port }
    }
}

/// The number of the Slurm step that we are a task of. The batch script is none: it runs on the first node only.
pub(crate) fn step(variable: Variable<'_>) -> Option<u32> {
    variable("SLURM_JOB_ID")?;
    let step: u32 = variable("SLURM_STEP_ID")?.parse().ok()?;
    (step < FIRST_PSEUDO_STEP).then_some(step)
}

/// Whether somebody started us who may signal all that he started, and not only us.
pub(crate) fn is_scheduled(variable: Variable<'_>) -> bool {
    variable("SLURM_JOB_ID").is_some()
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

/// Where the nodes of torchrun or accelerate meet, if there are several and it is not this host's own address.
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
    let (world, local) = (variable("WORLD_SIZE")?, ranks_here(variable));
    let host = variable("MASTER_ADDR")?;
    let many = world != "1" && local.as_ref() != Some(&world);
    let port = variable("MASTER_PORT").unwrap_or_else(|| TORCHRUN_PORT.to_owned());
    (many && !is_local(&host)).then_some(Endpoint { host, port })
}

/// Where the ranks of this node meet, if we stand in front of one of several, on whatever nodes the others are.
pub(crate) fn meeting_of_ranks(variable: Variable<'_>) -> Option<Endpoint> {
    ranks_here(variable)?;
    task(variable)?;
    let host = variable("MASTER_ADDR")?;
    let port = variable("MASTER_PORT").unwrap_or_else(|| TORCHRUN_PORT.to_owned());
    Some(Endpoint { host, port })
}

/// How many ranks this node has, as torchrun tells its workers; deepspeed's launcher has another word for it
/// (<https://github.com/deepspeedai/DeepSpeed/blob/master/deepspeed/launcher/launch.py>).
fn ranks_here(variable: Variable<'_>) -> Option<String> {
    variable("LOCAL_WORLD_SIZE").or_else(|| variable("LOCAL_RANK").and(variable("LOCAL_SIZE")))
}

/// The host of mpirun's first rank. In an allocation that is its first node, wherever mpirun itself runs; else mostly the
/// host of mpirun, which Open MPI 4 names by its addresses, `965476352.0;tcp://192.0.2.2,198.51.100.2:53357;...`.
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

/// Whether a command is what an mpirun starts on other nodes, to start its ranks there: that of Open MPI 4, of Open MPI 5, and
/// of MPICH and Intel MPI.
pub(crate) fn is_daemon_of_mpi(command: &[OsString]) -> bool {
    let program = command.first().map(Path::new).and_then(Path::file_name);
    program.is_some_and(|name| {
        ["orted", "prted", "hydra_pmi_proxy"]
            .iter()
            .any(|known| name == *known)
    })
}

/// Which of several tasks of this node we are; `None`: the only one.
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

/// Ranks of this node that MPICH's or Intel MPI's mpirun has started. Where srun is it there is a PMI_RANK too, but no such count.
pub(super) fn ranks_of_hydra(variable: Variable<'_>) -> Option<u32> {
    variable("PMI_RANK")?;
    variable("MPI_LOCALNRANKS")?.parse().ok()
}

/// Whether others that were started with us speak on the same terminal, and we are not the first of them.
pub(crate) fn is_follower(variable: Variable<'_>) -> bool {
    let global = match (step(variable), variable("OMPI_COMM_WORLD_RANK")) {
        (_, Some(rank)) => Some(rank),
        _ if ranks_of_hydra(variable).is_some() => variable("PMI_RANK"),
        (Some(_), None) => variable("SLURM_PROCID"),
        // Elsewhere each node has a terminal of its own, perhaps.
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
