"""probe.py LIBNCCL PLUGIN FUNCTION...: lets a real libnccl load and unload the plugin; prints the results as JSON.

Without a GPU, ncclCommInitRank returns an error before NCCL loads plugins. So NCCL's function that loads them is called
by its address in the library's symbol table: ncclProfilerPluginInit(ncclComm*). It reads NCCL_PROFILER_PLUGIN, opens
the library, chooses the interface version and calls the plugin's init.

The communicator's fields have other offsets in each version, but none has to be known: the memory that is passed has
the same word everywhere. Both halves of the word are 2, so each count and each rank is 2; as a pointer, the word refers
to a name in that memory.
"""

import ctypes
import json
import mmap
import os
import re
import sys

import elf

WORD = 0x0000_0002_0000_0002
BASE = WORD & ~0xFFFF
SIZE = 16 << 20  # ncclComm has 1.2 MB in 2.32
COMM = BASE + (64 << 10)
NAME = b"wheels\0"
WANTED = re.compile(rb"_Z\d+ncclProfilerPlugin(Init|Finalize)P8ncclComm|ncclProfilerEventMask|_ZL\d+ncclProfiler_v\d+|ncclGetVersion")
MAP_FIXED_NOREPLACE = 0x100000


def main(library, plugin, functions):
    facts = {}
    nccl = ctypes.CDLL(library, mode=os.RTLD_NOW | os.RTLD_LOCAL)
    version = ctypes.c_int()
    facts["version_code"] = nccl.ncclGetVersion(ctypes.byref(version))
    facts["version"] = version.value
    facts["missing"] = [name for name in functions if not has(nccl, name)]
    internal = Internal(library, nccl)
    facts["known"] = sorted(internal.interfaces)
    facts |= drive(internal, plugin)
    json.dump(facts, sys.stdout)


class Internal:
    """Symbols that NCCL does not export."""

    def __init__(self, library, nccl):
        found = elf.symbols(library, WANTED)
        base = address(nccl.ncclGetVersion) - found.get("ncclGetVersion", 0)
        by_name = {re.sub(r"^_ZL?\d+|P8ncclComm$", "", name): base + value for name, value in found.items()}
        try:
            call = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
            self.init = call(by_name["ncclProfilerPluginInit"])
            self.finalize = call(by_name["ncclProfilerPluginFinalize"])
            self.mask = ctypes.c_int.from_address(by_name["ncclProfilerEventMask"])
        except KeyError as error:
            sys.exit(f"{library} has no symbol {error}: the plugin cannot be loaded by this NCCL without a GPU")
        # Where NCCL stores the structure of each supported version; null: not looked up, or not found.
        keeps = {name: at for name, at in by_name.items() if name.startswith("ncclProfiler_v")}
        self.interfaces = {int(name[14:]): ctypes.c_void_p.from_address(at) for name, at in keeps.items()}


def drive(nccl, plugin):
    comm = communicator()
    before = {"threads": threads(), "files": open_files()}
    facts = {"mask_before": nccl.mask.value, "init": nccl.init(COMM), "mask": nccl.mask.value}
    used = {version: kept.value for version, kept in nccl.interfaces.items() if kept.value}
    facts["used"] = sorted(used)
    facts["contexts"] = [word for word in comm if word != WORD]
    facts["mapped"] = is_mapped(plugin)
    # A plugin whose init failed has been unloaded.
    facts["own"], facts["name"] = [], None
    if used and facts["mapped"]:
        library = ctypes.CDLL(plugin, mode=os.RTLD_NOW | os.RTLD_NOLOAD)
        own = {version: at for version, at in used.items() if at == address_of_data(library, f"ncclProfiler_v{version}")}
        facts["own"] = sorted(own)
        facts["name"] = ctypes.cast(used[max(used)], ctypes.POINTER(ctypes.c_char_p))[0].decode()
        # NCCL's reference must be the last one.
        dlclose(library)
    facts["finalize"] = nccl.finalize(COMM)
    facts["mapped_after"] = is_mapped(plugin)
    facts["threads"] = threads() - before["threads"]
    facts["open"] = sorted(open_files() - before["files"])
    return facts


def communicator():
    """The memory as words."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_FIXED_NOREPLACE
    at = libc.mmap(BASE, SIZE, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
    if at != BASE:
        sys.exit(f"no memory at {BASE:#x}: {os.strerror(ctypes.get_errno())}")
    ctypes.memmove(WORD, NAME, len(NAME))
    words = (SIZE - (COMM - BASE)) // 8
    ctypes.memmove(COMM, WORD.to_bytes(8, "little") * words, 8 * words)
    return (ctypes.c_uint64 * words).from_address(COMM)


def has(library, name):
    try:
        return bool(library[name])
    except AttributeError:
        return False


def address(function):
    return ctypes.cast(function, ctypes.c_void_p).value


def address_of_data(library, name):
    try:
        return ctypes.addressof(ctypes.c_char.in_dll(library, name))
    except ValueError:
        return None


def dlclose(library):
    close = ctypes.CDLL(None).dlclose
    close.argtypes = [ctypes.c_void_p]
    close(library._handle)


def is_mapped(path):
    with open("/proc/self/maps") as maps:
        return any(line.rstrip("\n").endswith(" " + path) for line in maps)


def threads():
    return len(os.listdir("/proc/self/task"))


def open_files():
    found = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            found.add(f"{number}: " + os.readlink(f"/proc/self/fd/{number}"))
        except OSError:
            continue  # the descriptor of the listing itself
    return found


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
