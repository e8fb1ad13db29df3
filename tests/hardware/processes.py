"""A part of the program as a process that ends in time, with all that it started, and nothing else.

torchrun's workers begin sessions of their own, so a process group does not hold them. Whoever loses its parent becomes a child
of this program instead (PR_SET_CHILD_SUBREAPER): all of its descendants are the part's.
"""

import ctypes
import os
import signal
import sys
import time
import traceback

PR_SET_CHILD_SUBREAPER = 36
LOOK_EVERY = 0.05


def adopt_orphans():
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


def parents():
    """The parent of each process of this machine that can be seen."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open("/proc/%s/stat" % name, encoding="utf-8", errors="replace") as file:
                    state, parent = file.read().rpartition(")")[2].split()[:2]
            except OSError:
                continue  # gone meanwhile
            if state != "Z":
                found[int(name)] = int(parent)
    return found


def descendants(of):
    of_parent = {}
    for pid, parent in parents().items():
        of_parent.setdefault(parent, []).append(pid)
    found, open_ones = [], [of]
    while open_ones:
        children = of_parent.get(open_ones.pop(), [])
        found += children
        open_ones += children
    return found


def end_all():
    """Kills what descends from this process, until nothing does."""
    for _ in range(100):
        left = descendants(os.getpid())
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        reap()
        if not left:
            return
        time.sleep(LOOK_EVERY)


def reap():
    """The exit codes of children that have ended."""
    ended = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if not pid:
            return ended
        ended[pid] = os.waitstatus_to_exitcode(status)


def in_time(part, seconds, log):
    """Runs a function in a process of its own; how it ended (`done`, `late`, `failed`), and after how many seconds."""
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        os._exit(as_child(part, log))
    state = None
    try:
        while state is None:
            code = reap().get(child)
            if code is not None:
                state = "failed" if code else "done"
            elif time.monotonic() - began > seconds:
                state = "late"
            else:
                time.sleep(LOOK_EVERY)
    finally:  # also where this program is asked to end
        end_all()
    return state, time.monotonic() - began


def as_child(part, log):
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.setsid()
        with open(log, "ab", buffering=0) as output, open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), 0)
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        part()
        return 0
    except BaseException:  # whatever it is, the next part is to run
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
