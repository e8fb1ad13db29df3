#!/usr/bin/env python3
"""cuda_stubs.py SITE_PACKAGES: make PyPI's CUDA build of torch importable without the NVIDIA libraries it links to.

Beside libtorch.so, which looks there first, one small library is made for each that is missing. It has every symbol
that torch asks of it, under the version that torch names; every function answers 100 (cudaErrorNoDevice), or a text
where a text is expected. Needs gcc, nm and readelf. Idempotent. For tests only.
"""

import collections
import glob
import os
import re
import subprocess
import sys
import tempfile

SYSTEM = ("/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/lib64")
GIVES_TEXT = re.compile(r"(GetErrorString|GetErrorName|GetStatusString|GetStatusName|ncclGetLastError)$")
# Where torch names no version for a symbol, its beginning says whose it is. The first match counts.
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


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def symbols(library):
    """(type, name, version) of every dynamic symbol."""
    for line in output("nm", "-D", library).splitlines():
        kind, symbol = line.split()[-2:]
        name, _, version = symbol.replace("@@", "@").partition("@")
        yield kind, name, version


def version_owners(library, missing):
    """Which missing library each version that `library` asks for belongs to."""
    owner = None
    for line in output("readelf", "-VW", library).splitlines():
        file = re.search(r"File: (\S+)", line)
        owner = file.group(1) if file else owner
        version = re.search(r"Name: (\S+)\s+Flags", line)
        if version and owner in missing:
            yield version.group(1), owner


def on_system(library):
    return next((path for path in (os.path.join(folder, library) for folder in SYSTEM) if os.path.exists(path)), None)


def build(path, by_version, scratch):
    """One stub library with these symbols."""
    source, script = "", ""
    for version, names in sorted(by_version.items()):
        names = sorted(name for name in set(names) if re.fullmatch(r"\w+", name))
        for name in names:
            if GIVES_TEXT.search(name):
                source += 'const char *%s() { return "no CUDA here (stub)"; }\n' % name
            else:
                source += "long %s() { return 100; }\n" % name
        if version:
            script += "%s { global: %s };\n" % (version, " ".join(name + ";" for name in names))
    with open(os.path.join(scratch, "stub.c"), "w") as file:
        file.write(source)
    with open(os.path.join(scratch, "stub.map"), "w") as file:
        file.write(script)
    command = ["gcc", "-w", "-fno-builtin", "-shared", "-fPIC", "-O1", "-o", path, os.path.join(scratch, "stub.c")]
    command += ["-Wl,-soname," + os.path.basename(path)]
    command += ["-Wl,--version-script=" + os.path.join(scratch, "stub.map")] if script else []
    subprocess.run(command, check=True)


def main():
    folder = os.path.join(os.path.abspath(sys.argv[1]), "torch", "lib")
    marker = os.path.join(folder, ".cuda_stubs")
    made = set()
    if os.path.exists(marker):
        with open(marker) as file:
            made = set(file.read().split())
    own = [path for path in glob.glob(os.path.join(folder, "*.so*")) if os.path.basename(path) not in made]
    own += glob.glob(os.path.join(os.path.dirname(folder), "_C*.so"))

    wanted, undefined, defined = set(), {}, set()
    for library in own:
        wanted |= set(re.findall(r"NEEDED.*\[(.*)\]", output("readelf", "-dW", library)))
        for kind, name, version in symbols(library):
            if kind == "U":
                undefined.setdefault(name, version)
            elif kind not in "wv":
                defined.add(name)
    missing = []
    for library in sorted(wanted - {os.path.basename(path) for path in own}):
        path = on_system(library)
        if path:
            defined |= {name for kind, name, _ in symbols(path) if kind != "U"}
        elif not library.startswith("libpython"):
            missing.append(library)

    owner_of = dict(pair for library in own for pair in version_owners(library, missing))
    stubs = collections.defaultdict(lambda: collections.defaultdict(list))
    for name, version in undefined.items():
        if version in owner_of:
            stubs[owner_of[version]][version].append(name)
        elif not version and name not in defined and not name.startswith(("Py", "_Py")):
            owners = (library for start, owner in OWNERS if start in name for library in missing if library.startswith(owner))
            owner = next(owners, missing[0] if missing else None)
            if owner:
                stubs[owner][""].append(name)
    with tempfile.TemporaryDirectory() as scratch:
        for library in missing:
            build(os.path.join(folder, library), stubs[library], scratch)
            made.add(library)
    with open(marker, "w") as file:
        file.write("\n".join(sorted(made)) + "\n")
    print("%d stub libraries, %d symbols" % (len(missing), sum(len(n) for s in stubs.values() for n in s.values())))


if __name__ == "__main__":
    main()
