"""Runs small programs under the hook, as `paceline run` starts them, and reads the rings that they write."""

import atexit
import concurrent.futures
import json
import os
import select
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
    """Return whether this Python has the module, without importing it into the tests."""
    import importlib.util

    return importlib.util.find_spec(module) is not None


def torch_version():
    """Return this Python's torch version as (major, minor), or (0, 0) without torch."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return tuple(int(part) for part in version("torch").split(".")[:2])
    except PackageNotFoundError:
        return (0, 0)


def environment_for(rings, path, env):
    """Return the environment of a program, without variables of a job in which the tests themselves may run."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PACELINE_", "SLURM_", "OMPI_", "PMI_")) and name not in ("RANK", "WORLD_SIZE")
    }
    environment.update(PACELINE_RING_DIR=rings, OMP_NUM_THREADS="1", PYTHONWARNINGS="ignore")
    environment["PYTHONPATH"] = os.pathsep.join([HOOK, *path])
    environment.update(env)
    return environment


class Nursery:
    """See nursery.py. One per process that runs tests, started on first use."""

    _mine = None

    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, os.path.join(HOOK, "tests", "nursery.py")],
            env=environment_for("/nonexistent/rings", (), {}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            universal_newlines=True,
        )
        atexit.register(self.close)

    @classmethod
    def mine(cls):
        """Return this process's nursery."""
        if cls._mine is None or cls._mine.process.poll() is not None:
            cls._mine = cls()
        return cls._mine

    def close(self):
        self.process.stdin.close()
        self.process.wait()

    def run(self, program, environment, timeout):
        """Run the program at that path. Return exit code, stdout and stderr. It is killed after `timeout` seconds."""
        folder = os.path.dirname(program)
        out, err = os.path.join(folder, "out"), os.path.join(folder, "err")
        job = {"path": program, "folder": folder, "out": out, "err": err, "environment": environment}
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        child = int(self.process.stdout.readline())
        if not select.select([self.process.stdout], [], [], timeout)[0]:
            os.killpg(child, signal.SIGKILL)
            self.process.stdout.readline()
            raise subprocess.TimeoutExpired(program, timeout)
        code = int(self.process.stdout.readline())
        with open(out) as said, open(err) as complained:
            return code, said.read(), complained.read()


def fresh(program, flags, environment, timeout):
    """Like `Nursery.run`, in a new Python process."""
    process = subprocess.Popen(
        [sys.executable, *flags, program],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        universal_newlines=True,
        cwd=os.path.dirname(program),
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # the program and what it has started
        process.communicate()
        raise
    return process.returncode, out, err


def run(script, *flags, path=(), timeout=120, nursery=False, **env):
    """Run `script` with the hook's directory first on PYTHONPATH, `path` after it, and its own ring directory.
    `nursery` runs it as a fork of a Python that has torch loaded, for tests that do not depend on how a program starts.
    """
    with tempfile.TemporaryDirectory() as directory:
        program = os.path.join(directory, "program.py")
        with open(program, "w") as file:
            file.write(textwrap.dedent(script))
        rings = os.path.join(directory, "rings")
        os.mkdir(rings, 0o700)
        environment = environment_for(rings, path, env)
        if nursery:
            done = Nursery.mine().run(program, environment, timeout)
        else:
            done = fresh(program, flags, environment, timeout)
        return Run(*done, ringdump.rings(rings), sorted(os.listdir(rings)))


def run_both(script, first, second):
    """Run the same program in two environments, at the same time."""
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        both = [pool.submit(run, script, **env) for env in (first, second)]
        return [one.result() for one in both]
