//! Determines the default job, node and directory. The submodules read the sources for these: the cluster's variables,
//! agents started by hand, torchrun's options, and other runs on this node.

pub(super) mod agents;
pub(crate) mod cluster;
pub(super) mod neighbours;
pub(crate) mod torchrun;

use std::ffi::OsString;
use std::hash::{BuildHasher, Hasher};
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use paceline_health::text::date::Date;

use self::cluster::Variable;

/// Returns the job's name. It is that of its launcher or scheduler, else its rendezvous, else a generated name. The
/// name must be the same on every node, so a generated one works for a single node only.
pub(crate) fn job(command: &[OsString], variable: Variable<'_>) -> String {
    found_job(command, variable).unwrap_or_else(made_up)
}

/// Like [`job`], but returns `None` instead of a generated name.
pub(crate) fn found_job(command: &[OsString], variable: Variable<'_>) -> Option<String> {
    known_job(variable)
        .or_else(|| cluster::torchrun_option(command, variable, "rdzv-id"))
        .or_else(|| {
            let endpoint = agents::meeting(command, variable)
                .or_else(|| cluster::of_plain(variable))
                .or_else(|| cluster::meeting_of_ranks(variable))?;
            Some(format!("{}-{}", endpoint.host, endpoint.port))
        })
        .or_else(|| hydra(variable))
}

/// Ranks of MPICH's or Intel MPI's mpirun on one node are children of the same proxy, which gives them a common name.
/// Across nodes there is none.
fn hydra(variable: Variable<'_>) -> Option<String> {
    let here = cluster::ranks_of_hydra(variable)?;
    let all: u32 = variable("PMI_SIZE")?.parse().ok()?;
    let proxy = rustix::process::getppid()?.as_raw_nonzero();
    (here == all).then(|| format!("mpi-{proxy}"))
}

/// Returns the job's name from the environment of its launcher or scheduler.
pub(crate) fn known_job(variable: Variable<'_>) -> Option<String> {
    torchrun(variable)
        .or_else(|| mpirun(variable))
        .or_else(|| slurm(variable))
}

/// Returns torchrun's name for the job. torchrun uses "none" for every job without a name.
fn torchrun(variable: Variable<'_>) -> Option<String> {
    let id = variable("TORCHELASTIC_RUN_ID")?;
    if id != "none" {
        return Some(id);
    }
    let (host, port) = (variable("MASTER_ADDR")?, variable("MASTER_PORT")?);
    slurm(variable).or_else(|| Some(format!("{host}-{port}")))
}

/// Returns Open MPI's number of the job. In an allocation, the Slurm step cannot be used, because it is mpirun's own
/// and differs between nodes.
fn mpirun(variable: Variable<'_>) -> Option<String> {
    variable("OMPI_COMM_WORLD_RANK")?;
    let number = variable("PMIX_NAMESPACE").or_else(|| variable("OMPI_MCA_ess_base_jobid"))?;
    Some(match allocation(variable) {
        Some(allocation) => format!("{allocation}-mpi{number}"),
        None => format!("mpi{number}"),
    })
}

/// Returns a name for one `srun`, which the job and step identify.
fn slurm(variable: Variable<'_>) -> Option<String> {
    let restarts = restarts(variable);
    let id = variable("SLURM_JOB_ID")?;
    let step = cluster::step(variable).map_or_else(String::new, |step| format!(".{step}"));
    Some(format!("{id}{step}{restarts}"))
}

/// Returns the name of Slurm's job, independent of its steps.
pub(crate) fn allocation(variable: Variable<'_>) -> Option<String> {
    Some(format!("{}{}", variable("SLURM_JOB_ID")?, restarts(variable)))
}

/// Returns the restart count as a suffix, because a requeued job keeps its id.
fn restarts(variable: Variable<'_>) -> String {
    let count = variable("SLURM_RESTART_COUNT").filter(|count| count != "0");
    count.map_or_else(String::new, |count| format!("-r{count}"))
}

/// Returns a name such as `20261121-035012-7f3a`, in UTC. Such names sort by time, and two created in the same second
/// differ.
fn made_up() -> String {
    let seconds = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |span| span.as_secs());
    format!("{}-{:04x}", stamp(seconds), chance() & 0xffff)
}

/// Formats seconds since 1970 as UTC.
fn stamp(seconds: u64) -> String {
    let at = Date::of(seconds.saturating_mul(1000));
    format!(
        "{:04}{:02}{:02}-{:02}{:02}{:02}",
        at.year, at.month, at.day, at.hour, at.minute, at.second
    )
}

/// Returns a random number, taken from the seed of the standard library's hash tables.
pub(crate) fn chance() -> u64 {
    std::collections::hash_map::RandomState::new()
        .build_hasher()
        .finish()
}

/// Returns the scheduler's name of the node, because several nodes of a virtual cluster may share a host name.
pub(crate) fn node(variable: Variable<'_>) -> String {
    variable("SLURMD_NODENAME")
        .unwrap_or_else(|| rustix::system::uname().nodename().to_string_lossy().into_owned())
}

/// Returns `./paceline-JOB`. Characters that a file name should not contain are replaced.
pub(crate) fn run_dir(job: &str) -> PathBuf {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let name: String = job
        .chars()
        .map(|c| if plain(c) { c } else { '_' })
        .take(128)
        .collect();
    PathBuf::from(format!("./paceline-{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(command: &str, variables: &[(&str, &str)]) -> String {
        let command: Vec<OsString> = command.split(' ').map(OsString::from).collect();
        job(&command, &|name| {
            variables
                .iter()
                .find(|(known, _)| *known == name)
                .map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn a_job_is_called_what_its_launcher_calls_it() {
        let torchrun = "torchrun --rdzv-id=r7 t.py";
        for (command, variables, expected) in [
            (
                torchrun,
                vec![("TORCHELASTIC_RUN_ID", "e"), ("SLURM_JOB_ID", "9")],
                "e",
            ),
            (
                torchrun,
                vec![("SLURM_JOB_ID", "9"), ("SLURM_STEP_ID", "4294967291")],
                "9",
            ),
            (
                torchrun,
                vec![
                    ("SLURM_JOB_ID", "9"),
                    ("SLURM_STEP_ID", "0"),
                    ("SLURM_RESTART_COUNT", "0"),
                ],
                "9.0",
            ),
            (
                torchrun,
                vec![("SLURM_JOB_ID", "9"), ("SLURM_RESTART_COUNT", "2")],
                "9-r2",
            ),
            (torchrun, vec![], "r7"),
            ("torchrun --rdzv_id r8 t.py", vec![], "r8"),
            ("torchrun --nnodes 2 --master_addr a t.py", vec![], "a-29500"),
            ("torchrun --nnodes 2 --rdzv-endpoint a:7 t.py", vec![], "a-7"),
            (
                "torchrun --nnodes 2 --master-addr localhost --master-port 7 t.py",
                vec![],
                "localhost-7",
            ),
            (
                "accelerate launch --num_machines 2 --main_process_ip a --main_process_port 7 t.py",
                vec![],
                "a-7",
            ),
            (
                "python t.py",
                vec![("WORLD_SIZE", "2"), ("MASTER_ADDR", "a"), ("MASTER_PORT", "8")],
                "a-8",
            ),
            // This is one of two ranks of one node. Each has its own `paceline run`.
            (
                "python t.py",
                vec![
                    ("RANK", "1"),
                    ("LOCAL_RANK", "1"),
                    ("WORLD_SIZE", "2"),
                    ("LOCAL_SIZE", "2"),
                    ("MASTER_ADDR", "127.0.0.1"),
                    ("MASTER_PORT", "29500"),
                ],
                "127.0.0.1-29500",
            ),
            (
                "python t.py",
                vec![
                    ("TORCHELASTIC_RUN_ID", "none"),
                    ("MASTER_ADDR", "a"),
                    ("MASTER_PORT", "8"),
                ],
                "a-8",
            ),
            (
                "python t.py",
                vec![
                    ("SLURM_JOB_ID", "9"),
                    ("SLURM_STEP_ID", "3"),
                    ("OMPI_COMM_WORLD_RANK", "0"),
                    ("PMIX_NAMESPACE", "77"),
                ],
                "9-mpi77",
            ),
        ] {
            assert_eq!(named(command, &variables), expected, "{command} {variables:?}");
        }
        assert_ne!(named("true", &[]), named("true", &[]));
        // Two ranks of one MPICH mpirun have the same parent.
        let rank = [("PMI_RANK", "1"), ("PMI_SIZE", "2"), ("MPI_LOCALNRANKS", "2")];
        assert_eq!(named("python t.py", &rank), named("python t.py", &rank));
        assert_ne!(named("python t.py", &rank[..2]), named("python t.py", &rank[..2]));
    }

    #[test]
    fn stamps() {
        assert_eq!(stamp(0), "19700101-000000");
        assert_eq!(stamp(951_782_400), "20000229-000000");
        assert_eq!(stamp(1_795_233_012), "20261121-035012");
    }

    #[test]
    fn a_run_directory_is_one_folder_here() {
        assert_eq!(run_dir("a/../b c"), PathBuf::from("./paceline-a_.._b_c"));
    }
}
