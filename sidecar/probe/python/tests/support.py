"""Runs small programs under the hook, as `paceline run` starts them, and reads the rings that they leave."""

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


def environment_for(rings, path, env):
    """What a program sees: nothing of a job that the tests themselves may run in."""
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
    """See nursery.py. One for each process that runs tests, started when the first test asks for it."""

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
        """This process's."""
        if cls._mine is None or cls._mine.process.poll() is not None:
            cls._mine = cls()
        return cls._mine

    def close(self):
        self.process.stdin.close()
        self.process.wait()

    def run(self, program, environment, timeout):
        """Exit code, stdout and stderr of the program at that path; after `timeout` seconds it is killed."""
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
    """The same, in a Python of its own."""
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
    """Run `script` with the hook's directory first on PYTHONPATH, `path` after it, a ring directory of its own.
    `nursery`: as a fork of a Python that has torch loaded, for what does not depend on how a program starts."""
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
    """The same program in two environments, at the same time."""
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        both = [pool.submit(run, script, **env) for env in (first, second)]
        return [one.result() for one in both]
