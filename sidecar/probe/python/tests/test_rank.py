"""A process's rank, from its launcher's variables. No torch."""

import unittest

import support  # noqa: F401 - puts the hook on sys.path
from paceline._rank import from_environment, identity

TORCHRUN = {"RANK": "5", "LOCAL_RANK": "1", "WORLD_SIZE": "8", "TORCHELASTIC_RESTART_COUNT": "2"}
MPIRUN = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"}
SRUN = {"SLURM_PROCID": "2", "SLURM_LOCALID": "0", "SLURM_NTASKS": "4", "SLURM_STEP_ID": "0"}
BATCH = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "4"}


class Group:
    """A torch.distributed whose group is up."""

    def is_available(self):
        return True

    is_initialized = is_available

    def get_rank(self):
        return 1

    def get_world_size(self):
        return 2


class Environment(unittest.TestCase):
    def check(self, expected, *parts):
        env = {}
        for part in parts:
            env.update(part)
        self.assertEqual(tuple(from_environment(env)), expected)

    def test_launchers(self):
        self.check((0, 0, 1, 0))
        self.check((5, 1, 8, 2), TORCHRUN)
        self.check((3, 1, 4, 0), MPIRUN)
        self.check((2, 0, 4, 0), SRUN)
        self.check((2, 0, 3, 0), SRUN, {"SLURM_STEP_NUM_TASKS": "3"})
        self.check((1, 1, 2, 0), {"PMI_RANK": "1", "PMI_SIZE": "2"})

    def test_inner_launcher_wins(self):
        self.check((5, 1, 8, 2), SRUN, TORCHRUN)
        self.check((3, 1, 4, 0), BATCH, MPIRUN)

    def test_batch_step_is_alone(self):
        self.check((0, 0, 1, 0), BATCH)
        self.check((0, 0, 1, 0), BATCH, {"SLURM_STEP_ID": "4294967291"})

    def test_restarts(self):
        self.check((2, 0, 4, 3), SRUN, {"SLURM_RESTART_COUNT": "3"})

    def test_nonsense_is_passed_over(self):
        self.check((0, 0, 1, 0), {"RANK": "x", "WORLD_SIZE": "8"})
        self.check((0, 0, 1, 0), {"RANK": "8", "WORLD_SIZE": "8"})
        self.check((0, 0, 1, 0), {"RANK": "-1", "WORLD_SIZE": "8"})

    def test_the_group_knows_better(self):
        self.assertEqual(tuple(identity(Group(), {})), (1, 1, 2, 0))
        self.assertEqual(tuple(identity(Group(), TORCHRUN)), (1, 1, 2, 2))
        self.assertEqual(tuple(identity(None, TORCHRUN)), (5, 1, 8, 2))


if __name__ == "__main__":
    unittest.main()
