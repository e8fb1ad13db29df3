//! Determines this process's rank from the variables that launchers set, with the same table as the Python hook.

use std::ffi::CStr;

use crate::text;

/// A rank, its place in the job, and its epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// Global rank.
    pub rank: u32,
    /// Rank on its node.
    pub local_rank: u32,
    /// Number of ranks in the job.
    pub world_size: u32,
    /// Number of restarts of the worker group so far.
    pub restart: u32,
}

/// Launchers' variables; the first match wins. torchrun comes before mpirun and mpirun before Slurm, because each may
/// be started inside the next one.
const TABLE: [[&CStr; 3]; 5] = [
    [c"RANK", c"LOCAL_RANK", c"WORLD_SIZE"],
    [
        c"OMPI_COMM_WORLD_RANK",
        c"OMPI_COMM_WORLD_LOCAL_RANK",
        c"OMPI_COMM_WORLD_SIZE",
    ],
    [c"PMI_RANK", c"MPI_LOCALRANKID", c"PMI_SIZE"],
    [c"SLURM_PROCID", c"SLURM_LOCALID", c"SLURM_STEP_NUM_TASKS"],
    [c"SLURM_PROCID", c"SLURM_LOCALID", c"SLURM_NTASKS"],
];
const RESTARTS: [&CStr; 2] = [c"TORCHELASTIC_RESTART_COUNT", c"SLURM_RESTART_COUNT"];
/// Largest ordinary step ID. Larger values are Slurm's batch, extern and interactive steps, which are single processes.
const LARGEST_STEP: u32 = 0xffff_ff00;

/// Returns the rank from the environment, or `None` if no variable gives one.
pub fn identity<'a>(variable: impl Fn(&CStr) -> Option<&'a CStr>) -> Option<Identity> {
    let number = |name: &CStr| text::number(variable(name)?.to_bytes());
    let restart = RESTARTS.into_iter().find_map(number).unwrap_or(0);
    for [rank_name, local_name, world_name] in TABLE {
        let (Some(rank), Some(world_size)) = (number(rank_name), number(world_name)) else {
            continue;
        };
        let is_batch =
            rank_name == c"SLURM_PROCID" && number(c"SLURM_STEP_ID").unwrap_or(LARGEST_STEP) >= LARGEST_STEP;
        if rank < world_size && !is_batch {
            return Some(Identity {
                rank,
                local_rank: number(local_name).unwrap_or(rank),
                world_size,
                restart,
            });
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(set: &[(&CStr, &'static CStr)]) -> Option<Identity> {
        identity(|name| {
            set.iter()
                .find(|(other, _)| *other == name)
                .map(|(_, value)| *value)
        })
    }

    #[test]
    fn launchers() {
        let torchrun = of(&[
            (c"RANK", c"5"),
            (c"LOCAL_RANK", c"1"),
            (c"WORLD_SIZE", c"8"),
            (c"TORCHELASTIC_RESTART_COUNT", c"2"),
            (c"SLURM_PROCID", c"0"),
            (c"SLURM_NTASKS", c"2"),
        ]);
        let wanted = Identity {
            rank: 5,
            local_rank: 1,
            world_size: 8,
            restart: 2,
        };
        assert_eq!(torchrun, Some(wanted));
        let slurm = of(&[
            (c"SLURM_PROCID", c"3"),
            (c"SLURM_LOCALID", c"0"),
            (c"SLURM_NTASKS", c"4"),
            (c"SLURM_STEP_ID", c"0"),
        ]);
        assert_eq!(slurm.map(|found| (found.rank, found.world_size)), Some((3, 4)));
    }

    #[test]
    fn none_of_a_job() {
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[(c"RANK", c"8"), (c"WORLD_SIZE", c"8")]), None);
        assert_eq!(of(&[(c"RANK", c"x"), (c"WORLD_SIZE", c"8")]), None);
        let batch = [(c"SLURM_PROCID", c"0"), (c"SLURM_NTASKS", c"4")];
        assert_eq!(of(&batch), None, "the batch script of Slurm");
    }
}
