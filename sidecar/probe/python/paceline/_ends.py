"""Writes the reason why this trainer ended, for the report: the uncaught exception or the exit code, in a file beside
the rings. It is written just before Python prints the exception, after everything else in the trainer, and changes
neither the output nor the exit code. A launcher of workers writes which worker failed, and with which code.
"""

import functools
import os
import signal
import sys
import threading
import time
import weakref

FOLDER = "ends"  # in the ring directory
_LINES = 12  # the last lines of the traceback
_CHARACTERS = 300  # the first characters of a line of the exception: they contain its type and message
_OWN_BYTES = 1024  # bytes that are kept of the exception
_BYTES = 2048
_AT_ONCE = 5_000_000_000  # ns: a sys.exit() after which the process lives longer was caught
_watching = False
_exiting = None  # the latest sys.exit() of the main thread: time, status, and the exception being handled

# Exceptions with which a launcher summarizes the errors of its workers.
_OF_LAUNCHERS = ("ChildFailedError", "SignalException")
# Exceptions that torch raises about other ranks. A lost data server raises other exceptions and is not a rank.
_OF_PEERS = ("DistBackendError", "DistNetworkError", "DistStoreError", "DistError", "RuntimeError")
# Parts of exception messages, in lower case, by which the kinds of errors are recognized.
_GPU_MEMORY = ("cuda out of memory", "hip out of memory", "cublas_status_alloc_failed", "cuda error: out of memory")
_TIMEOUT = ("timed out", "timeout")
_PEER = (
    "connection closed by peer",
    "connection reset by peer",
    "connection refused",
    "broken pipe",
    "socket timeout",
)
# NCCL's own messages, in any exception that contains them.
_OF_NCCL = ("remote process exited", "ncclremoteerror", "communicator was aborted")
# Messages of ProcessGroupWrapper (TORCH_DISTRIBUTED_DEBUG=DETAIL), of gloo with differing sizes, and of NCCL.
_MISMATCH = ("detected mismatch between collectives", "op.preamble.length <= op.nbytes", "mismatched collective")
# Paths that do not contain the user's code.
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python", "<frozen ")


def watch():
    """Install the hooks."""
    global _watching
    if _watching:
        return
    _watching = True
    before, leave = sys.excepthook, sys.exit

    def excepthook(kind, error, trace):
        try:
            _report(kind, error, trace)
        except Exception:  # the trainer's own error must not be replaced by one of the hook
            pass
        before(kind, error, trace)

    @functools.wraps(leave)
    def exit(*status):
        try:
            _note_exit(status[0] if status else None)
        except Exception:
            pass
        return leave(*status)

    sys.excepthook = excepthook
    sys.exit = exit


def kind_of(name, says):
    """Return the kind of error, from the name and the message of the exception."""
    words = says.lower()
    if name == "OutOfMemoryError" or any(part in words for part in _GPU_MEMORY):
        return "gpu_memory"
    if name == "MemoryError" or "cannot allocate memory" in words:
        return "host_memory"
    if any(part in words for part in _MISMATCH):
        return "collective_mismatch"
    if any(part in words for part in _OF_NCCL):
        return "peer_lost"
    if name in _OF_PEERS:
        if any(part in words for part in _PEER):
            return "peer_lost"
        if any(part in words for part in _TIMEOUT):
            return "collective_timeout"
    return "error"


def _note_exit(status):
    """Record a call of `sys.exit(status)`, which may still be caught."""
    global _exiting
    if threading.current_thread() is not threading.main_thread():
        return
    now, handled = time.monotonic_ns(), sys.exc_info()
    # A multiprocessing worker calls sys.exit once while it handles its exception, and once more at its end.
    if handled[0] is None and _exiting is not None and now - _exiting[0] < _AT_ONCE:
        handled = _exiting[2]
    _exiting = now, status, handled


def at_exit():
    """Write the code that `sys.exit` was called with, if any, when Python ends. Return True if the end is orderly."""
    if getattr(sys, "last_type", None) is not None:
        return False  # an uncaught exception, already reported
    if _exiting is None or time.monotonic_ns() - _exiting[0] > _AT_ONCE:
        return True
    _, status, (kind, error, trace) = _exiting
    if status is None or status == 0:
        return True
    try:
        if kind is not None and not issubclass(kind, SystemExit):
            _report(kind, error, trace)
        elif isinstance(status, int):
            _write_own("exit", "sys.exit(%d)" % status, status & 0xFF)
        else:
            _write_own("error", str(status), 1)
    except Exception:
        pass
    return False


def _is_users(path):
    own = os.path.dirname(os.path.abspath(__file__))
    return not path.startswith(own) and not any(part in path for part in _LIBRARIES)


def _bounded(where, users, own):
    """Return the end of a traceback, including the innermost frame of the user's own code, and the beginning of an
    exception, as lines in one text."""
    own = [line for line in own if line.strip()]
    if len(own) > 1 and own[0].rstrip().endswith(":"):
        own[:2] = [own[0].rstrip() + " " + own[1].strip()]  # its message begins on a separate line
    own = "\n".join(line[:_CHARACTERS] for line in own[:_LINES]).encode("utf-8", "replace")[:_OWN_BYTES]
    where = where[-_LINES:]
    kept = 0
    if users and users[0] not in where:
        kept = len(users)
        where = users + where[kept:]
    size = len(own) + sum(len(line.encode("utf-8", "replace")) + 1 for line in where)
    while size > _BYTES and len(where) > kept:
        size -= len(where.pop(kept).encode("utf-8", "replace")) + 1
    where = "".join(line + "\n" for line in where).encode("utf-8", "replace")[: _BYTES - len(own)]
    return (where + own).decode("utf-8", "ignore")


def _report(kind, error, trace):
    if issubclass(kind, KeyboardInterrupt):
        return _write_own("signal", "SIGINT")
    if kind.__name__ == "SignalException":  # torchrun received a signal
        return _write(None, "signal", _signal(getattr(error, "sigval", signal.SIGTERM)))
    if kind.__name__ in _OF_LAUNCHERS:
        return
    import traceback

    own = "".join(traceback.format_exception_only(kind, error)).rstrip()
    frames = traceback.extract_tb(trace)
    users = [frame for frame in frames if _is_users(frame.filename)][-1:]
    lines = ["".join(traceback.format_list(part)).rstrip().splitlines() for part in (frames, users)]
    _write_own(kind_of(kind.__name__, own), _bounded(*lines, own.splitlines()))


def _write_own(kind, says, code=None):
    """Write the reason why this process ended, if it is a rank."""
    from . import _helper, _rank

    distributed = sys.modules.get("torch.distributed")
    if _workers is not None and not _rank.is_told():
        _write(None, kind, says, code)  # the launcher itself
    elif not _helper.is_helper(distributed):
        _write(_rank.identity(distributed).rank, kind, says, code)


def _write(rank, kind, says, code=None):
    directory = os.environ.get("PACELINE_RING_DIR")
    if not directory:
        return
    from . import _files

    said = {"rank": rank, "kind": kind, "says": says[:_BYTES], "code": code, "at_ns": time.monotonic_ns()}
    _files.leave(directory, FOLDER, said)


# The rest is for launchers that use torch.distributed.elastic, which torchrun and accelerate are based on.

_workers = None  # weak reference to the latest group of workers
_failed = set()  # process ids


def watch_launcher(module):
    """Hook a module of torch.distributed.elastic.multiprocessing that has been loaded. A failed worker is reported as
    soon as the launcher detects it. A stop of the other workers is reported before the launcher stops them."""
    if hasattr(module, "ProcessFailure"):
        _after(module.ProcessFailure, "__post_init__", _worker_failed)
    if hasattr(module, "PContext"):
        _after(module.PContext, "__init__", _workers_made)
        _before(module.PContext, "close", _workers_end)
        watch()


def _after(owner, name, call):
    function = getattr(owner, name)

    @functools.wraps(function)
    def wrapper(self, *args, **kwargs):
        result = function(self, *args, **kwargs)
        try:
            call(self)
        except Exception:  # a launcher must never see an internal error of the hook
            pass
        return result

    setattr(owner, name, wrapper)


def _before(owner, name, call):
    function = getattr(owner, name)

    @functools.wraps(function)
    def wrapper(self, *args, **kwargs):
        try:
            call(self)
        except Exception:
            pass
        return function(self, *args, **kwargs)

    setattr(owner, name, wrapper)


def _workers_made(context):
    global _workers
    _workers = weakref.ref(context)
    _failed.clear()


def _worker_failed(failure):
    context = _workers() if _workers is not None else None
    code = int(failure.exitcode)
    if context is None or code == 0 or failure.pid in _failed:
        return
    _failed.add(failure.pid)
    rank = context.envs[failure.local_rank].get("RANK", "")
    if rank.isdigit():
        says = "exit code %d" % code if code > 0 else _signal(-code)
        _write(int(rank), "exit", says, code if code > 0 else 128 - code)


def _workers_end(context):
    handlers = getattr(context, "subprocess_handlers", {})
    if any(handler.proc.returncode is None for handler in handlers.values()):
        _write(None, "launcher_stop", "the launcher ends its workers")


def _signal(number):
    try:
        return signal.Signals(number).name
    except ValueError:
        return "signal %d" % number
