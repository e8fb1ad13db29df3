"""Writes the ring that the sidecar reads; `sidecar/probe/ring/layout.md` is the specification.

There is one writer (this process), without locks or waiting. If the ring is full, the record is dropped and counted.
"""

import fcntl
import mmap
import os
import struct
import sys
import time
import zlib

MAGIC = b"PACERING"
VERSION = 1
HEADER = 512
SLOT = 64
CAPACITY = 4096
SPARE = 64  # slots kept free for writers that race past the check; also observed by a single writer

STEP, ATTACH, MARK, DETACH, NOTE, ROLE, LAYOUT, WORK, GROUP, COMM = range(1, 11)
TORCH, OTHER = 1, 3  # framework, in attach

_FIXED = struct.Struct("<8sIIIIII")
_KIND = struct.Struct("<HH")
_BODY = struct.Struct("<I52s")
_STEP = struct.Struct("<HHQQIIIIIHBBQ")  # with the preceding kind and flags
_ATTACH = struct.Struct("<IIIIi16s9B3x")
_MARK = struct.Struct("<QQ32s")
_DETACH = struct.Struct("<Q40x")
_LAYOUT = struct.Struct("<10HI24x")
_WORK = struct.Struct("<QQQI20x")
_GROUP = struct.Struct("<QI4x24s8x")
_COMM = struct.Struct("<QQQQI12x")

# Header fields as indices of 8-byte words. Each word is written by one aligned store.
_HEAD, _TAIL, _DROPPED, _PROGRESS, _CONTROL = 8, 16, 24, 32, 40
_LONGEST = 0xFFFFFFFF * 1000  # largest duration, ns, that fits a phase in µs


def text(value, size):
    """Return the text in UTF-8, cut at a character boundary."""
    return str(value).encode("utf-8", "replace")[:size].decode("utf-8", "ignore").encode("utf-8")


def is_shared():
    """Return whether the reader is in another container of this pod."""
    return bool(os.environ.get("PACELINE_RING_SHARED"))


class Ring:
    """A ring file of this process. Only the constructor raises (OSError or ValueError, if the file cannot be
    created)."""

    def __init__(self, directory, capacity=CAPACITY):
        if sys.byteorder != "little":
            raise ValueError("the ring is little-endian")
        pid = os.getpid()
        held = shared = is_shared()
        # A restarted container begins its process ids again, so the id alone would not be unique.
        name = "%d-%x.ring" % (pid, time.monotonic_ns()) if shared else "%d.ring" % pid
        self.path = os.path.join(directory, name)
        size = HEADER + capacity * SLOT
        temporary = os.path.join(directory, ".%d.ring.%d" % (pid, time.monotonic_ns()))
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(temporary, flags, 0o600)
        try:
            if shared:
                # The reader is in another container. It runs as another user and does not see our process. A lock that
                # a fork does not inherit shows that we are alive; closing any descriptor of the file would release it.
                os.fchmod(fd, 0o666)
                fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Without allocated pages, a full /dev/shm would cause a SIGBUS at a later store.
            os.posix_fallocate(fd, 0, size)
            self._map = mmap.mmap(fd, size, mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0))
            _FIXED.pack_into(self._map, 0, MAGIC, VERSION, HEADER, SLOT, capacity, pid, os.getuid())
            self.words = memoryview(self._map).cast("Q")
            # These words have the step and phase, and then the time of the last change. All code that knows them writes
            # them here, before anything that may block.
            self.progress = self.words[_PROGRESS : _PROGRESS + 2]
            os.rename(temporary, self.path)
        except BaseException:
            held = False
            os.unlink(temporary)
            raise
        finally:
            if not held:
                os.close(fd)
        self._mask = capacity - 1
        self._limit = capacity - SPARE
        self._head = 0

    def stopped(self):
        """Return whether the reader has set the kill switch."""
        return self.words[_CONTROL] & 1

    def write(self, kind, payload):
        """Append one record of 48 bytes. Return False if the ring was full."""
        return self._append(_KIND.pack(kind, 0) + payload)

    def _append(self, body):
        words, head = self.words, self._head
        if head - words[_TAIL] >= self._limit:
            words[_DROPPED] += 1
            return False
        sequence = head + 1
        at = HEADER + (head & self._mask) * SLOT
        _BODY.pack_into(self._map, at + 8, zlib.adler32(body, sequence % 65521), body)
        words[at >> 3] = sequence
        words[_HEAD] = self._head = sequence
        return True

    def step(self, step, duration, spent, passes, kind, known, tokens):
        """Write a step. `spent` has nanoseconds by phase, with the indices of progress."""
        _, data, compute, wait, optimizer, checkpoint, _ = spent
        if duration > _LONGEST:
            data, compute, wait, optimizer, checkpoint = [min(ns, _LONGEST) for ns in spent[1:6]]
        return self._append(
            _STEP.pack(
                STEP, 0, step, duration, data // 1000, compute // 1000, wait // 1000, optimizer // 1000,
                checkpoint // 1000, passes if passes < 65535 else 65535, kind, known, tokens,
            )
        )  # fmt: skip

    def attach(self, rank, device, uuid, framework, version, nccl=(0, 0, 0), cuda=(0, 0)):
        """Write the rank. `rank` is an identity of `_rank`; version numbers are at most 255."""
        numbers = *version, framework, *nccl, *cuda
        return self.write(
            ATTACH, _ATTACH.pack(rank.rank, rank.local_rank, rank.world_size, rank.restart, device, uuid, *numbers)
        )

    def mark(self, step, kind, value):
        return self.write(MARK, _MARK.pack(step, value, text(kind, 32)))

    def detach(self, step):
        return self.write(DETACH, _DETACH.pack(step))

    def note(self, why):
        return self.write(NOTE, struct.pack("48s", text(why, 48)))

    def role(self, role):
        return self.write(ROLE, struct.pack("48s", text(role, 48)))

    def layout(self, axes, micro_batches):
        """Write the layout. `axes` has the (index, size) of dp, tp, pp, ep and cp."""
        return self.write(LAYOUT, _LAYOUT.pack(*(number for axis in axes for number in axis), micro_batches))

    def work(self, step, sum_sq, expert_tokens, garbage):
        """Write the step's work. `garbage` is the time in garbage collection, in ns."""
        return self.write(WORK, _WORK.pack(step, sum_sq, expert_tokens, min(garbage, _LONGEST) // 1000))

    def group(self, comm, size, name):
        return self.write(GROUP, _GROUP.pack(comm, size, text(name, 24)))

    def comm(self, step, comm, collectives, size, spent):
        """Write the sums of a communicator. `size` is in bytes, `spent` in ns."""
        return self.write(COMM, _COMM.pack(step, comm, size, spent, min(collectives, 0xFFFFFFFF)))
