"""Determines whether this process is a trainer, or a helper started by a trainer. Data loader workers, compile pools
and evaluation scripts inherit RANK, but none of them may pose as the rank."""

import os
import sys
import threading

_CLAIM = "PACELINE_RANK_PID"  # set in a trainer's environment once it has attached, so its children inherit it
_forked = False
_group_was_up = False


def claim():
    """Make this process the rank. Processes that it starts from now on are not the rank."""
    os.environ[_CLAIM] = str(os.getpid())


def watch_forks(after):
    """Call `after` in every forked child."""

    def in_child():
        global _forked, _group_was_up
        _forked, _group_was_up = True, _group_is_up(sys.modules.get("torch.distributed"))
        after()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=in_child)


def is_helper(distributed):
    """Return whether this process is a helper. A child of a trainer is a helper unless it has joined a process group
    itself, because programs start trainers with multiprocessing too."""
    if _is_loader_worker():
        return True
    if not (_forked or _is_multiprocessing_child() or _is_claimed()):
        return False
    return _group_was_up or not _group_is_up(distributed)


def is_foreign_thread(ident):
    """Return whether the thread was not started by Python, such as one of autograd's."""
    thread = threading._active.get(ident)
    return thread is None or isinstance(thread, threading._DummyThread)


def _group_is_up(distributed):
    try:
        return distributed is not None and distributed.is_available() and distributed.is_initialized()
    except Exception:
        return False


def _is_claimed():
    owner = os.environ.get(_CLAIM)
    return owner is not None and owner != str(os.getpid())


def _is_multiprocessing_child():
    process = sys.modules.get("multiprocessing.process")
    return process is not None and process.parent_process() is not None


def _is_loader_worker():
    data = sys.modules.get("torch.utils.data")
    info = getattr(data, "get_worker_info", None)  # missing while torch itself is being imported
    return info is not None and info() is not None
