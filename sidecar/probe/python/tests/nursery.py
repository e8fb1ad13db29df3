"""A Python that has imported torch under the hook and forks test programs: importing takes seconds, a fork does not.

Started by `support.Nursery`, which sends a line for each program and gets two back: its process id, its exit code. The
hook is made to treat such a fork as an independent program and not as a helper; its detection of helpers is tested in
separate programs (`test_ranks.Helpers`) and in the forks of these.
"""

import json
import os
import runpy
import sys

import torch._dynamo  # noqa: F401 - the first optimizer loads it
import torch.distributed  # noqa: F401
import torch.nn.parallel  # noqa: F401
import torch.utils.data  # noqa: F401
from paceline import _helper


def next_program():
    """In a fork, return the next program to run. In the nursery, return None when there are no more."""
    for line in sys.stdin:
        program = json.loads(line)
        child = os.fork()
        if child == 0:
            return program
        print(child, flush=True)
        status = os.waitpid(child, 0)[1]
        print(-os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status), flush=True)
    return None


def become(program):
    """Set up the process as if started this way: session, streams, folder, environment, arguments."""
    os.setsid()
    for number, name, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, program["out"], os.O_WRONLY | os.O_CREAT),
        (2, program["err"], os.O_WRONLY | os.O_CREAT),
    ):
        opened = os.open(name, flags, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    sys.stdin = open(0, closefd=False)  # the nursery's stdin has read ahead
    os.environ.clear()
    os.environ.update(program["environment"])
    os.chdir(program["folder"])
    sys.argv[:] = [program["path"]]
    sys.path[0] = program["folder"]
    _helper._forked = False


if __name__ == "__main__":
    program = next_program()
    if program is not None:
        become(program)
        runpy.run_path(program["path"], run_name="__main__")
