"""The expected behavior of each NCCL with the plugin, by docs/measurements/nccl-plugin.md and
sidecar/probe/ring/layout.md."""

import struct
from dataclasses import dataclass, field
from typing import Callable

# The interface version of each minor version: src/plugin/profiler.cc of https://github.com/NVIDIA/nccl.
INTERFACES = {"2.27": 4, "2.28": 5, "2.29": 6, "2.30": 6, "2.31": 7, "2.32": 7}
COLL, P2P, KERNEL_CH, GROUP_API = 1 << 1, 1 << 2, 1 << 6, 1 << 8
RANK = {"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "8"}
# As passed to NCCL by probe.py.
COMMUNICATOR = {"id": 0x0000_0002_0000_0002, "ranks": 2, "name": b"wheels"}
MAGIC = b"PACERING"
ATTACH, GROUP = 2, 9
FRAMEWORK_NCCL_PLUGIN = 4


@dataclass
class Case:
    name: str
    set: dict
    has_times: Callable[[int], bool] = lambda interface: False
    is_silent: bool = False
    rings: Callable[[str], dict] = lambda rings: {"PACELINE_RING_DIR": rings}

    def environment(self, rings):
        return {**self.set, **self.rings(rings)}

    def mask(self, interface):
        if self.is_silent:
            return 0
        return COLL | P2P | (GROUP_API if interface > 4 else 0) | (KERNEL_CH if self.has_times(interface) else 0)


# run.py prints the masks of the first three.
CASES = [
    Case("at first", {}),
    Case("from the first step on", {"PACELINE_NCCL_AFTER": "0"}, lambda interface: interface < 7),
    Case("all of them asked for", {"PACELINE_NCCL_SAMPLE": "1"}, lambda interface: interface >= 7),
    Case("switched off", {"PACELINE_NCCL_AFTER": "0", "PACELINE_NCCL_SAMPLE": "off"}),
    Case("ring directory missing", {}, is_silent=True, rings=lambda rings: {"PACELINE_RING_DIR": rings + "/missing"}),
    Case("ring directory not named", {}, is_silent=True, rings=lambda rings: {}),
]


@dataclass
class Seen:
    """The results of one process of a case."""

    case: Case
    failure: str | None
    facts: dict = field(default_factory=dict)
    log: str = ""
    left: dict = field(default_factory=dict)


def problems(version, seen):
    """The problems as text; none if everything is as expected."""
    if seen.failure:
        return [seen.failure]
    found = [*library(version, seen.facts), *interface(version, seen.facts)]
    if not seen.facts["used"]:
        said = [line.partition("NCCL ")[2] for line in seen.log.splitlines() if "lugin" in line]
        return [*found, f"NCCL did not load the plugin: {'; '.join(said)}"]
    return [*found, *loading(seen), *quiet(seen), *rings(seen)]


def library(version, facts):
    parts = [int(part) for part in version.split(".")]
    code = parts[0] * 10000 + parts[1] * 100 + parts[2]
    if (facts["version_code"], facts["version"]) != (0, code):
        yield f"ncclGetVersion returned {facts['version_code']} and gave {facts['version']}, not {code}"
    if facts["missing"]:
        yield f"lacks what nccl-bench calls: {', '.join(facts['missing'])}"


def interface(version, facts):
    minor = version.rsplit(".", 1)[0]
    asked, given = max(facts["known"], default=0), max(facts["used"], default=0)
    if minor not in INTERFACES:
        yield f"which interface {minor} has is not known here (INTERFACES in expect.py): it asks for v{asked}"
    elif asked != INTERFACES[minor]:
        yield f"asks for v{asked} first, and v{INTERFACES[minor]} was expected"
    if given != asked:
        yield f"asks for v{asked} first, and the plugin gave {f'v{given}' if given else 'none'}"


def loading(seen):
    facts = seen.facts
    if facts["own"] != facts["used"] or facts["name"] != "Paceline":
        yield f"the plugin in use is not Paceline's: {facts['name']}"
    if "oaded Paceline" not in seen.log or "failed with error" in seen.log:
        yield "NCCL's log does not say that Paceline was loaded, or says that its init failed"
    if (facts["init"], facts["finalize"]) != (0, 0):
        yield f"init gave {facts['init']}, finalize {facts['finalize']}"
    wanted = seen.case.mask(max(facts["used"]))
    if (facts["mask_before"], facts["mask"]) != (0, wanted):
        yield f"NCCL's mask is {facts['mask']:#x}, and {wanted:#x} was expected"
    # In the memory of the fake communicator, init may write one word, the context: null where the plugin is inactive.
    contexts = facts["contexts"]
    if len(contexts) != 1 or bool(contexts[0]) == seen.case.is_silent:
        yield f"the plugin wrote these words to the communicator: {contexts}"


def quiet(seen):
    facts = seen.facts
    if facts["threads"]:
        yield f"{facts['threads']} threads more after finalize"
    if facts["open"]:
        yield f"open after finalize: {', '.join(facts['open'])}"
    if not (facts["mapped"] and facts["mapped_after"]):
        yield "the plugin did not stay mapped when NCCL unloaded it"


def rings(seen):
    """The ring stays for the sidecar; no other file does."""
    names = [name for name in seen.left if name.startswith("rings/") and name.endswith("-nccl.ring")]
    others = sorted(set(seen.left) - set(names))
    if others or len(names) != (0 if seen.case.is_silent else 1):
        yield f"files left behind: {', '.join(sorted(seen.left)) or 'none'}"
        return
    for name in names:
        records = list(slots(seen.left[name]))
        if [kind for kind, _ in records] != [ATTACH, GROUP]:
            yield f"records in the ring: {[kind for kind, _ in records]}"
            return
        rank, local_rank, world_size, framework = *struct.unpack_from("<3I", records[0][1], 16), records[0][1][55]
        if [str(number) for number in (rank, local_rank, world_size)] != list(RANK.values()) or framework != FRAMEWORK_NCCL_PLUGIN:
            yield f"the ring says rank {rank}, local rank {local_rank} of {world_size}, framework {framework}"
        identity, ranks, text = struct.unpack_from("<QI4x24s", records[1][1], 16)
        if {"id": identity, "ranks": ranks, "name": text.rstrip(b"\0")} != COMMUNICATOR:
            yield f"the ring says communicator {identity:#x} of {ranks} ranks, {text}"


def slots(ring):
    """Kind and bytes of each record."""
    if ring[:8] != MAGIC:
        return
    header, size, capacity = struct.unpack_from("<III", ring, 12)
    for index in range(min(struct.unpack_from("<Q", ring, 64)[0], capacity)):
        slot = ring[header + size * index : header + size * (index + 1)]
        yield struct.unpack_from("<H", slot, 12)[0], slot
