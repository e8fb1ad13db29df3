"""What ended this trainer, for the report: the exception that nobody caught, in a file beside the rings. It is written when
Python is about to print it, after everything else of the trainer, and changes neither what is printed nor the exit code.
"""

import json
import os
import sys
import time

FOLDER = "ends"  # in the ring directory
_LINES = 12  # of the traceback, its last
_CHARACTERS = 300  # of a line of the exception, its first: there stands what it is
_OWN_BYTES = 1024  # of the exception
_BYTES = 2048
_watching = False

# The launcher's own summary of what its workers met.
_OF_LAUNCHERS = ("ChildFailedError", "SignalException")
# What torch raises about other ranks. A data server that is gone raises others, and is no rank.
_OF_PEERS = ("DistBackendError", "DistNetworkError", "DistStoreError", "DistError", "RuntimeError")
# Words of exceptions, in lower case.
_GPU_MEMORY = ("cuda out of memory", "hip out of memory", "cublas_status_alloc_failed", "cuda error: out of memory")
_TIMEOUT = ("timed out", "timeout")
_PEER = (
    "connection closed by peer",
    "connection reset by peer",
    "connection refused",
    "broken pipe",
    "socket timeout",
)
# NCCL's own, whoever has passed them on.
_OF_NCCL = ("remote process exited", "ncclremoteerror", "communicator was aborted")


def watch():
    """From now on."""
    global _watching
    if _watching:
        return
    _watching = True
    before = sys.excepthook

    def excepthook(kind, error, trace):
        try:
            _tell(kind, error, trace)
        except Exception:  # the trainer's own error is what counts
            pass
        before(kind, error, trace)

    sys.excepthook = excepthook


def kind_of(name, says):
    """A kind of trouble by the name of the exception and its own words."""
    words = says.lower()
    if name == "OutOfMemoryError" or any(part in words for part in _GPU_MEMORY):
        return "gpu_memory"
    if name == "MemoryError" or "cannot allocate memory" in words:
        return "host_memory"
    if any(part in words for part in _OF_NCCL):
        return "peer_lost"
    if name in _OF_PEERS:
        if any(part in words for part in _PEER):
            return "peer_lost"
        if any(part in words for part in _TIMEOUT):
            return "collective_timeout"
    return "error"


def _bounded(where, own):
    """The end of a traceback and the beginning of an exception, as lines, in one text."""
    own = [line for line in own if line.strip()]
    if len(own) > 1 and own[0].rstrip().endswith(":"):
        own[:2] = [own[0].rstrip() + " " + own[1].strip()]  # its message begins on a line of its own
    own = "\n".join(line[:_CHARACTERS] for line in own[:_LINES]).encode("utf-8", "replace")[:_OWN_BYTES]
    where = "".join(line + "\n" for line in where[-_LINES:]).encode("utf-8", "replace")[len(own) - _BYTES :]
    return (where + own).decode("utf-8", "ignore")


def _tell(kind, error, trace):
    directory = os.environ.get("PACELINE_RING_DIR")
    if not directory or kind.__name__ in _OF_LAUNCHERS or issubclass(kind, KeyboardInterrupt):
        return
    from . import _helper, _rank, _ring

    distributed = sys.modules.get("torch.distributed")
    if _helper.is_helper(distributed):
        return
    import traceback

    own = "".join(traceback.format_exception_only(kind, error)).rstrip()
    where = "".join(traceback.format_tb(trace)).rstrip().splitlines()
    said = {
        "rank": _rank.identity(distributed).rank,
        "kind": kind_of(kind.__name__, own),
        "says": _bounded(where, own.splitlines()),
    }
    folder = os.path.join(directory, FOLDER)
    try:
        os.mkdir(folder, 0o700)  # no parents: a ring directory that is gone stays gone
        if _ring.is_shared():
            os.chmod(folder, 0o777)
    except FileExistsError:
        pass
    name = str(os.getpid())
    if _ring.is_shared():
        name += "-%x" % time.monotonic_ns()
    temporary = os.path.join(folder, "." + name)
    with open(temporary, "w") as file:
        json.dump(said, file)
        if _ring.is_shared():
            os.fchmod(file.fileno(), 0o644)
    os.rename(temporary, os.path.join(folder, name))
