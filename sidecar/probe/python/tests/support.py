"""Runs small programs under the hook, as `paceline run` starts them, and reads the rings that they leave."""

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections import namedtuple

import ringdump

HOOK = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
if HOOK not in sys.path:
    sys.path.insert(0, HOOK)

Run = namedtuple("Run", "code out err rings files")


def has(module):
    """Whether the Python that runs the tests has it; without importing it into the tests."""
    import importlib.util

    return importlib.util.find_spec(module) is not None


def torch_version():
    """Of the Python that runs the tests, as (major, minor); (0, 0) where there is none."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return tuple(int(part) for part in version("torch").split(".")[:2])
    except PackageNotFoundError:
        return (0, 0)


def run(script, *flags, path=(), timeout=120, **env):
    """Run `script` with the hook's directory first on PYTHONPATH, `path` after it, a ring directory of its own."""
    with tempfile.TemporaryDirectory() as directory:
        program = os.path.join(directory, "program.py")
        with open(program, "w") as file:
            file.write(textwrap.dedent(script))
        rings = os.path.join(directory, "rings")
        os.mkdir(rings, 0o700)
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PACELINE_", "SLURM_", "OMPI_", "PMI_")) and name not in ("RANK", "WORLD_SIZE")
        }
        environment.update(PACELINE_RING_DIR=rings, OMP_NUM_THREADS="1", PYTHONWARNINGS="ignore")
        environment["PYTHONPATH"] = os.pathsep.join([HOOK, *path])
        environment.update(env)
        process = subprocess.Popen(
            [sys.executable, *flags, program],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            universal_newlines=True,
            cwd=directory,
            start_new_session=True,
        )
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # the program and what it has started
            process.communicate()
            raise
        found = ringdump.rings(rings)
        return Run(process.returncode, out, err, found, sorted(os.listdir(rings)))
