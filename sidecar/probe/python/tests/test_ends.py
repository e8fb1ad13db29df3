"""The exception that ended a trainer must be written beside the rings, and printed as usual."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

from support import HOOK

from paceline._ends import kind_of


def ended(script, **variables):
    """Return the exit code, the output, and what was written about the end."""
    with tempfile.TemporaryDirectory() as rings:
        environment = dict(os.environ, PACELINE_RING_DIR=rings, PYTHONPATH=HOOK, RANK="3", WORLD_SIZE="4", **variables)
        environment.pop("PACELINE_RANK_PID", None)
        done = subprocess.run(
            [sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        folder = os.path.join(rings, "ends")
        said = []
        for name in os.listdir(folder) if os.path.isdir(folder) else ():
            with open(os.path.join(folder, name)) as file:
                said.append(json.load(file))
        return done, said


class Ends(unittest.TestCase):
    def test_an_exception_that_nobody_caught(self):
        script = "import paceline\npaceline.step()\nraise ValueError('loss is nan')"
        done, said = ended(script)
        self.assertEqual(done.returncode, 1)
        self.assertIn("ValueError: loss is nan", done.stderr)
        (said,) = said
        self.assertEqual((said["rank"], said["kind"]), (3, "error"))
        self.assertTrue(said["says"].endswith("ValueError: loss is nan"), said)
        self.assertIn("line 3", said["says"])

    def test_a_long_exception_is_told_from_its_beginning(self):
        script = "import paceline\npaceline.step()\nraise ValueError('x' * 1000000 + '<b>' + '\\nmore')"
        ((says,),) = [[end["says"] for end in ended(script)[1]]]
        self.assertIn("\nValueError: xxx", says)
        self.assertTrue(says.endswith("x\nmore"), says[-80:])
        self.assertLess(len(says), 2049)

    def test_what_it_is_stands_in_its_first_line(self):
        begin = "import paceline\npaceline.step()\n"
        for script, says in (
            ("raise RuntimeError('\\n\\nCUDA error: gone\\nmore')", "\nRuntimeError: CUDA error: gone\nmore"),
            ("compile('x =', 's', 'exec')", '\n  File "s", line 1\n    x =\n'),
        ):
            ((end,),) = [ended(begin + script)[1]]
            self.assertIn(says, end["says"])

    def test_an_end_in_order_says_nothing(self):
        for end in ("", "import sys; sys.exit()", "import sys; sys.exit(0)"):
            self.assertEqual(ended("import paceline\npaceline.step()\n" + end)[1], [], end)

    def test_a_code_and_a_signal_are_said(self):
        begin = "import sys, paceline\npaceline.step()\n"
        for end, wanted, returned in (
            ("sys.exit(7)", ("exit", "sys.exit(7)", 7), 7),
            ("sys.exit('no data left')", ("error", "no data left", 1), 1),
            ("raise KeyboardInterrupt", ("signal", "SIGINT", None), -2),
        ):
            done, said = ended(begin + end)
            self.assertEqual([(end["kind"], end["says"], end["code"]) for end in said], [wanted])
            self.assertEqual(done.returncode, returned)

    def test_an_exit_that_is_caught_is_none(self):
        caught = "import sys, paceline\npaceline.step()\ntry:\n    sys.exit(3)\nexcept SystemExit:\n    pass\n"
        # As with argparse, the program continued, and ended minutes later.
        later = "from paceline import _ends\n_ends._AT_ONCE = 0\n"
        self.assertEqual(ended(later + caught)[1], [])

    def test_a_worker_of_multiprocessing_says_its_exception(self):
        # This is how torch.multiprocessing.spawn ends a process that has raised.
        script = "import sys, paceline\npaceline.step()\ntry:\n    raise ValueError('x')\nexcept Exception:\n    sys.exit(1)"
        ((end,),) = [ended(script)[1]]
        self.assertEqual(end["kind"], "error")
        self.assertTrue(end["says"].endswith("ValueError: x"), end)

    def test_the_users_own_frame_is_never_left_out(self):
        script = "import paceline, json\npaceline.step()\ndef deep(n):\n    return eval('n and deep(n - 1)') or json.loads('{' * 5 + '[')\ndeep(0)"
        ((end,),) = [ended(script)[1]]
        self.assertIn('File "<string>", line 4, in deep', end["says"])

    def test_a_launcher_says_which_worker_failed(self):
        """Use a module that resembles torch.distributed.elastic.multiprocessing."""
        script = """
import types, paceline
from paceline import _ends
class Proc: returncode = None
class Handler: proc = Proc()
class PContext:
    def __init__(self, envs): self.envs, self.subprocess_handlers = envs, {1: Handler()}
    def close(self, death_sig=None, timeout=30): pass
class ProcessFailure:
    def __init__(self, **fields):
        self.__dict__.update(fields)
        self.__post_init__()
    def __post_init__(self): pass
_ends.watch_launcher(types.SimpleNamespace(PContext=PContext, ProcessFailure=ProcessFailure))
group = PContext({0: {"RANK": "4"}, 1: {"RANK": "5"}})
ProcessFailure(local_rank=1, pid=77, exitcode=-9)
ProcessFailure(local_rank=1, pid=77, exitcode=-9)
group.close()
Proc.returncode = 0
group.close(timeout=1)
"""
        said = sorted(ended(script)[1], key=lambda end: end["at_ns"])
        self.assertEqual(
            [(end["rank"], end["kind"], end["says"], end["code"]) for end in said],
            [(5, "exit", "SIGKILL", 137), (None, "launcher_stop", "the launcher ends its workers", None)],
        )

    def test_a_ring_directory_that_is_gone_stays_gone(self):
        script = "import os, shutil, paceline\npaceline.step()\nshutil.rmtree(os.environ['PACELINE_RING_DIR'])\nraise ValueError('x')"
        with tempfile.TemporaryDirectory() as folder:
            rings = os.path.join(folder, "rings")
            os.mkdir(rings)
            environment = dict(os.environ, PACELINE_RING_DIR=rings, PYTHONPATH=HOOK)
            done = subprocess.run([sys.executable, "-c", script], env=environment, stderr=subprocess.PIPE, text=True)
            self.assertIn("ValueError: x", done.stderr)
            self.assertEqual(os.listdir(folder), [])

    def test_a_helper_says_nothing(self):
        script = "import os, paceline\npaceline.step()\nif os.fork() == 0:\n    raise ValueError('worker')\nos.wait()"
        self.assertEqual(ended(script)[1], [])

    def test_a_program_that_hooks_exceptions_itself(self):
        script = "import sys, paceline\nsys.excepthook = lambda *_: print('mine')\npaceline.step()\nraise ValueError('x')"
        done, said = ended(script)
        self.assertEqual((done.stdout, len(said)), ("mine\n", 1))

    def test_kinds(self):
        for name, says, wanted in (
            ("OutOfMemoryError", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", "gpu_memory"),
            ("RuntimeError", "RuntimeError: CUDA error: out of memory", "gpu_memory"),
            ("MemoryError", "MemoryError", "host_memory"),
            ("RuntimeError", "RuntimeError: [tcp/pair.cc:547] Connection closed by peer [10.0.0.2]:3122", "peer_lost"),
            ("RuntimeError", "RuntimeError: Timed out waiting 1800000ms for recv operation", "collective_timeout"),
            ("DistBackendError", "torch.distributed.DistBackendError: wait timeout after 60000ms", "collective_timeout"),
            ("DistStoreError", "torch.distributed.DistStoreError: Broken pipe", "peer_lost"),
            ("XlaRuntimeError", "XlaRuntimeError: INTERNAL: NCCL failed: remote process exited", "peer_lost"),
            ("KeyError", "KeyError: timeout", "error"),
            ("ConnectionRefusedError", "ConnectionRefusedError: [Errno 111] Connection refused", "error"),
            ("BrokenPipeError", "BrokenPipeError: [Errno 32] Broken pipe", "error"),
            ("ValueError", "ValueError: bad timeout", "error"),
            ("RuntimeError", "RuntimeError: Detected mismatch between collectives on ranks.", "collective_mismatch"),
        ):
            self.assertEqual(kind_of(name, says), wanted, says)


if __name__ == "__main__":
    unittest.main()
