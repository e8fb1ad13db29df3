"""This process's rank, from the variables that launchers set."""

import os
from collections import namedtuple

Rank = namedtuple("Rank", "rank local_rank world_size restart")

# The first match wins. torchrun comes before mpirun and mpirun before Slurm, because each may be started inside the
# next one and then sees the outer one's variables too (under torchrun SLURM_PROCID is the agent's, under mpirun the
# batch step's).
_TABLE = (
    ("RANK", "LOCAL_RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_NUM_TASKS"),
    ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS"),
)
_RESTARTS = ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")
_LARGEST_STEP = 0xFFFFFF00  # larger values are Slurm's batch, extern and interactive steps


def _number(env, name, otherwise=None):
    value = env.get(name, "")
    return min(int(value), 0xFFFFFFFF) if value.isdigit() else otherwise


def from_environment(env=None):
    """Return the rank from the environment; rank 0 of 1 by default."""
    env = os.environ if env is None else env
    restart = next((n for n in (_number(env, name) for name in _RESTARTS) if n is not None), 0)
    for rank_name, local_name, world_name in _TABLE:
        rank, world = _number(env, rank_name), _number(env, world_name)
        if rank is None or world is None or rank >= world:
            continue
        # Skips the batch script, which has SLURM_PROCID=0 and the whole job's task count but is a single process.
        if rank_name == "SLURM_PROCID" and _number(env, "SLURM_STEP_ID", _LARGEST_STEP) >= _LARGEST_STEP:
            continue
        return Rank(rank, _number(env, local_name, rank), world, restart)
    return Rank(0, 0, 1, restart)


def is_told():
    """Return whether the environment specifies this process's rank."""
    return any(os.environ.get(rank, "").isdigit() for rank, _, _ in _TABLE)


def identity(distributed, env=None):
    """Return the rank from `torch.distributed` if its group is up in this process, because programs may number ranks
    themselves. Otherwise return the rank from the environment."""
    rank = from_environment(env)
    if distributed is None or not initialized(distributed):
        return rank
    mine, world = distributed.get_rank(), distributed.get_world_size()
    if (mine, world) == (rank.rank, rank.world_size):
        return rank
    local = _number(os.environ if env is None else env, "LOCAL_RANK", mine)
    return Rank(mine, local, world, rank.restart)


def initialized(distributed):
    """Return whether `torch.distributed` is available and its default group is up."""
    return distributed.is_available() and distributed.is_initialized()
