"""This rank's progress before its first step, for the sidecar: a small file mapped into memory, so that a collective
costs two stores and no system call. At the first step the ring takes over, and the file is removed.

Layout, little-endian, 128 bytes: 0 magic `PACESTRT`; 8 u32 version; 12 u32 process id; 16 u32 rank; 20 u32 local rank;
24 u32 world size; 28 u32 restart count; 32 u64 since when, CLOCK_MONOTONIC ns; 40 u64 stage; 48 [u8; 48] the call,
UTF-8, zero padded.
"""

import functools
import mmap
import os
import struct
import sys
import threading
import time

FOLDER = "starts"  # in the ring directory
LOADING, JOINING, JOINED, WAITING = 1, 2, 3, 4
_SIZE = 128
_HEAD = struct.Struct("<8sIIIIII")
_SINCE, _STAGE, _CALL = 4, 5, 48  # indices of 8-byte words; the last is a byte offset

place = None  # Place, until the first step


class Place:
    """The file of this process."""

    def __init__(self, directory, rank):
        self._rank = rank
        self.thread = threading.get_ident()
        self.stage = LOADING
        folder = os.path.join(directory, FOLDER)
        try:
            os.mkdir(folder, 0o700)
        except FileExistsError:
            pass
        self.path = os.path.join(folder, "%d-%x" % (os.getpid(), time.monotonic_ns()))
        temporary = os.path.join(folder, "." + os.path.basename(self.path))
        fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(fd, 0, _SIZE)  # a full file system is an error here, instead of a SIGBUS later
            self._map = mmap.mmap(fd, _SIZE, mmap.MAP_SHARED)
            self._words = memoryview(self._map).cast("Q")
            self.declare(rank)
            self.move(LOADING, "")
            os.rename(temporary, self.path)
        except BaseException:
            os.unlink(temporary)
            raise
        finally:
            os.close(fd)

    def declare(self, rank):
        _HEAD.pack_into(self._map, 0, b"PACESTRT", 1, os.getpid(), rank.rank, rank.local_rank, rank.world_size, rank.restart)

    def move(self, stage, call):
        self.stage = stage
        self._map[_CALL : _CALL + 48] = call.encode("utf-8", "replace")[:48].ljust(48, b"\0")
        self._words[_SINCE] = time.monotonic_ns()
        self._words[_STAGE] = stage


def begin():
    """Create the file. torch.distributed is loaded, and the environment specifies this process's rank."""
    global place
    from . import _helper, _rank, _ring, _stacks

    directory = os.environ.get("PACELINE_RING_DIR")
    # Not in a pod. The reader does not see our process there, and the ring's own lock shows that it is alive.
    if place is not None or not directory or _ring.is_shared() or _helper.is_helper(None):
        return
    rank = _rank.from_environment()
    if rank.world_size > 1:
        place = Place(directory, rank)
        _stacks.watch()


def end():
    """Remove the file, because the first step has ended or this process is not a rank after all."""
    global place
    known, place = place, None
    if known is not None:
        try:
            os.unlink(known.path)
        except OSError:
            pass


def forked():
    """Forget the file in a forked child, because it belongs to the parent."""
    global place
    place = None


def _move(stage, call):
    """Change the stage and return True. Do nothing in another thread or in a nested call."""
    known = place
    try:
        if known is None or known.thread != threading.get_ident() or known.stage in (JOINING, WAITING):
            return False
        known.move(stage, call)
        return True
    except Exception:
        end()
        return False


def _leave(before):
    known = place
    try:
        if known is not None:
            known.stage = before
            known.move(before, "")
    except Exception:
        end()


def waiting(function, args, kwargs, call=None):
    """Call a collective before the first step, and record the wait."""
    before = place.stage if place is not None else JOINED
    if not _move(WAITING, call or getattr(function, "__name__", "a collective")):
        return function(*args, **kwargs)
    try:
        return function(*args, **kwargs)
    finally:
        _leave(before)


def joining(function):
    """Wrap torch.distributed.init_process_group."""

    @functools.wraps(function)
    def init_process_group(*args, **kwargs):
        if place is None:
            return function(*args, **kwargs)
        moved = _move(JOINING, "init_process_group")
        before = LOADING
        try:
            result = function(*args, **kwargs)
            before = JOINED
            return result
        finally:
            if moved:
                if before == JOINED:
                    _joined()
                _leave(before)

    return init_process_group


def _joined():
    """Take the rank from torch.distributed, because programs may number their ranks themselves."""
    from . import _patch, _rank

    try:
        torch = sys.modules["torch"]
        _patch.watch_compiler(torch)
        rank = _rank.identity(torch.distributed)
        if place is not None and rank.world_size > 1:
            place.declare(rank)
    except Exception:
        end()
