#!/usr/bin/env python3
"""cuda_stubs.py SITE_PACKAGES: make a CUDA build of torch importable where there is no CUDA.

For every missing library that torch's own libraries need, a library with that name is compiled beside them, with every
symbol that they expect of it: functions that return "no device". For tests on CPU only. Idempotent. Needs gcc, nm and
readelf.
"""

import glob
import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict

SYSTEM = ("/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu", "/lib64")

# The library of a symbol without a version, by prefix; the first match applies.
OWNERS = (
    ("nccl", "libnccl"),
    ("cudnn", "libcudnn"),
    ("cusparseLt", "libcusparseLt"),
    ("cusparse", "libcusparse."),
    ("nvrtc", "libnvrtc"),
    ("cuFile", "libcufile"),
    ("nvshmem", "libnvshmem"),
    ("cublasLt", "libcublasLt"),
    ("cublas", "libcublas."),
    ("cufft", "libcufft"),
    ("cusolver", "libcusolver"),
    ("cupti", "libcupti"),
    ("cuda", "libcudart"),
)
SAYS_WHY = re.compile(r"(GetErrorString|GetErrorName|GetStatusString|GetStatusName|ncclGetLastError)$")
NO_DEVICE = 100  # cudaErrorNoDevice


def output(*command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, universal_newlines=True).stdout


def symbols(library):
    """(type, name, version) of each dynamic symbol."""
    for line in output("nm", "-D", library).splitlines():
        kind, name = line.split()[-2:]
        name, _, version = name.replace("@@", "@").partition("@")
        yield kind, name, version


def needed(libraries):
    """Names of the libraries that these need and that are missing, and paths of those in the system."""
    wanted = set()
    for library in libraries:
        wanted |= set(re.findall(r"NEEDED.*\[(.*)\]", output("readelf", "-dW", library)))
    wanted -= {os.path.basename(library) for library in libraries}
    missing, system = [], []
    for name in sorted(wanted):
        found = [os.path.join(folder, name) for folder in SYSTEM if os.path.exists(os.path.join(folder, name))]
        if found:
            system.append(found[0])
        elif not name.startswith("libpython"):
            missing.append(name)
    return missing, system


def version_owners(libraries, missing):
    """The missing library of each symbol version."""
    owners = {}
    for library in libraries:
        current = None
        for line in output("readelf", "-VW", library).splitlines():
            file = re.search(r"File: (\S+)", line)
            current = file.group(1) if file else current
            name = re.search(r"Name: (\S+)\s+Flags", line)
            if name and current in missing:
                owners[name.group(1)] = current
    return owners


def assign(libraries, missing, system):
    """The symbols to create: library -> version -> names."""
    undefined, defined = {}, set()
    for library in libraries:
        for kind, name, version in symbols(library):
            if kind == "U":
                undefined.setdefault(name, version)
            elif kind not in "wv":
                defined.add(name)
    for library in system:
        defined |= {name for kind, name, _ in symbols(library) if kind != "U"}
    owners = version_owners(libraries, missing)
    stubs = {name: defaultdict(set) for name in missing}
    for name, version in undefined.items():
        if version in owners:
            stubs[owners[version]][version].add(name)
        elif name not in defined and not version and not name.startswith(("Py", "_Py")):
            stubs[owner(name, missing)][""].add(name)
    return stubs


def owner(symbol, missing):
    """The missing library for a symbol without a version; for the loader, any will do."""
    for beginning, library in OWNERS:
        if symbol.startswith(beginning):
            for name in missing:
                if name.startswith(library):
                    return name
    return missing[0]


def build(folder, library, versions):
    """Compile one stub library."""
    with tempfile.TemporaryDirectory() as temporary:
        source, script = os.path.join(temporary, "stub.c"), os.path.join(temporary, "stub.map")
        with open(source, "w") as code, open(script, "w") as map_file:
            for version, names in sorted(versions.items()):
                for name in sorted(names):
                    if SAYS_WHY.search(name):
                        code.write('const char *%s() { return "no CUDA here (stub)"; }\n' % name)
                    elif re.fullmatch(r"\w+", name):
                        code.write("long %s() { return %d; }\n" % (name, NO_DEVICE))
                if version:
                    map_file.write("%s { global: %s };\n" % (version, " ".join(n + ";" for n in sorted(names))))
        target = os.path.join(folder, library)
        command = ["gcc", "-w", "-fno-builtin", "-shared", "-fPIC", "-O1", "-o", target, source]
        command.append("-Wl,-soname," + library)
        if any(versions):
            command.append("-Wl,--version-script=" + script)
        subprocess.run(command, check=True)


def main(site):
    folder = os.path.join(os.path.abspath(site), "torch", "lib")
    marker = os.path.join(folder, ".cuda_stubs")  # the stubs made by an earlier run
    made = set()
    if os.path.exists(marker):
        with open(marker) as file:
            made = set(file.read().split())
    libraries = [path for path in glob.glob(folder + "/*.so*") if os.path.basename(path) not in made]
    libraries += glob.glob(os.path.join(os.path.dirname(folder), "_C*.so"))
    missing, system = needed(libraries)
    stubs = assign(libraries, missing, system) if missing else {}
    for library, versions in stubs.items():
        build(folder, library, versions)
    with open(marker, "w") as file:
        file.write("\n".join(sorted(made | set(stubs))) + "\n")
    print("%d stub libraries" % len(stubs))


if __name__ == "__main__":
    main(sys.argv[1])
