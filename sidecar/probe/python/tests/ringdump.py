"""Reads rings like the sidecar, for humans and for tests: python ringdump.py DIRECTORY-OR-FILE..."""

import glob
import os
import struct
import sys
import zlib
from collections import namedtuple

PHASES = "other data compute wait optimizer checkpoint evaluation".split()
Step = namedtuple("Step", "step dur_ns data compute wait optimizer checkpoint passes kind known tokens")
Attach = namedtuple("Attach", "rank local_rank world_size restart device uuid major minor patch framework")
Mark = namedtuple("Mark", "step value kind")
Layout = namedtuple("Layout", "dp tp pp ep cp micro_batches")
Work = namedtuple("Work", "step sum_sq expert_tokens gc")
Group = namedtuple("Group", "comm size name")
Comm = namedtuple("Comm", "step comm bytes ns collectives")
Dump = namedtuple("Dump", "path header head tail dropped progress records")


def _record(slot, kind):
    def text(raw):
        return raw.rstrip(b"\0").decode()

    if kind == 1:
        return Step(*struct.unpack_from("<QQIIIIIHBBQ", slot, 16))
    if kind == 2:
        return Attach(*struct.unpack_from("<IIIIi16sBBBB", slot, 16))
    if kind == 3:
        step, value, word = struct.unpack_from("<QQ32s", slot, 16)
        return Mark(step, value, text(word))
    if kind == 4:
        return ("detach", struct.unpack_from("<Q", slot, 16)[0])
    if kind == 7:
        *axes, micro_batches = struct.unpack_from("<10HI", slot, 16)
        return Layout(*zip(axes[::2], axes[1::2]), micro_batches)
    if kind == 8:
        return Work(*struct.unpack_from("<QQQI", slot, 16))
    if kind == 9:
        comm, size, name = struct.unpack_from("<QI4x24s", slot, 16)
        return Group(comm, size, text(name))
    if kind == 10:
        return Comm(*struct.unpack_from("<QQQQI", slot, 16))
    return ({5: "note", 6: "role"}.get(kind, kind), text(slot[16:64]))


def dump(path):
    """Return all published and complete records in the ring, oldest first."""
    with open(path, "rb") as file:
        data = file.read()
    header = struct.unpack_from("<8sIIIIII", data, 0)
    _, _, header_bytes, slot_bytes, capacity, _, _ = header
    head, tail, dropped, progress = [struct.unpack_from("<Q", data, at)[0] for at in (64, 128, 192, 256)]
    records = []
    for index in range(max(tail, head - capacity), head):
        at = header_bytes + index % capacity * slot_bytes
        slot = data[at : at + slot_bytes]
        sequence, checksum, kind = struct.unpack_from("<QIH", slot, 0)
        if sequence == index + 1 and checksum == zlib.adler32(slot[12:], sequence % 65521):
            records.append(_record(slot, kind))
        else:
            records.append(("torn", index))
    return Dump(path, header, head, tail, dropped, (progress >> 8, PHASES[progress & 255]), records)


def steps(ring):
    """Return the step records of a dump."""
    return [record for record in ring.records if isinstance(record, Step)]


def of(ring, kind):
    """Return the records of one kind, which is a namedtuple of this module."""
    return [record for record in ring.records if isinstance(record, kind)]


def attach(ring):
    """Return the attach record of a dump."""
    return next(record for record in ring.records if isinstance(record, Attach))


def rings(directory):
    """Return the dumps of a directory's rings, by rank."""
    found = [dump(path) for path in glob.glob(os.path.join(directory, "*.ring"))]
    return sorted(found, key=lambda ring: attach(ring).rank)


def median(values):
    """Return the middle value, or zero if there are none."""
    values = sorted(values)
    return values[len(values) // 2] if values else 0


def main(paths):
    """Print one line per ring: medians in ms, and the self time that the detector compares."""
    for path in paths:
        for ring in rings(path) if os.path.isdir(path) else [dump(path)]:
            who, all_steps = attach(ring), steps(ring)[5:]
            own = median(s.dur_ns / 1e6 - s.wait / 1e3 - s.checkpoint / 1e3 for s in all_steps)
            columns = [
                "%s %.2f" % (name, median(getattr(s, name) for s in all_steps) / 1e3)
                for name in ("data", "compute", "wait", "optimizer", "checkpoint")
            ]
            print(
                "rank %d/%d steps %d dropped %d at %s | step %.2f self %.2f | %s | passes %s kinds %s tokens %s | %s"
                % (
                    who.rank, who.world_size, len(steps(ring)), ring.dropped, "%d %s" % ring.progress,
                    median(s.dur_ns for s in all_steps) / 1e6, own, " ".join(columns),
                    sorted({s.passes for s in all_steps}), sorted({s.kind for s in all_steps}),
                    sorted({s.tokens for s in all_steps})[:3],
                    [r for r in ring.records if not isinstance(r, (Step, Attach, Work, Comm))],
                )
            )  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1:])
