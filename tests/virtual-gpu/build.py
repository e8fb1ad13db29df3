#!/usr/bin/env python3
"""build.py --headers CUDA_INCLUDE (--site SITE_PACKAGES | --only-test FOLDER): builds the virtual GPU's libraries.

With --site: for the torch installed there. Each library has the functions in src/, and a stub for every other function
that this torch needs of it, which logs its name with VGPU_TRACE=1. They are installed where torch's libraries look
first. With --only-test: libcudart and libnccl alone, without stubs, for the tests in rules/.
Needs gcc, nm and readelf.
"""

import argparse
import glob
import os
import re
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "setup"))
import cuda_stubs  # noqa: E402

RUNTIME = """capture clock copy device engine entry_point error event faults graph kernel memory queue settings stats
stream""".split()
NCCL = "nccl_collective nccl_comm nccl_data nccl_p2p nccl_profiler".split()
NOT_SUPPORTED = 801  # cudaErrorNotSupported, and CUDA_ERROR_NOT_SUPPORTED
# Prefix of a library, its sources, its functions, the stubs' result. libcudart comes first: others link to it.
LIBRARIES = (
    ("libcudart", RUNTIME, r"(__)?cuda", NOT_SUPPORTED),
    ("libcuda.", ["driver"], r"cu[A-Z]", NOT_SUPPORTED),
    ("libnccl", NCCL, r"nccl", 3),  # ncclInternalError
    ("libcublas.", ["cublas"], r"cublas(?!Lt)", 0),
    ("libcublasLt", ["cublaslt"], r"cublasLt", 0),
    ("libcudnn", ["cudnn"], r"cudnn", 3000),  # CUDNN_STATUS_NOT_SUPPORTED
)
# By the libcudart that torch needs: the folder where it is looked up, and the simulated versions of the other libraries
# in its wheel; CUDA's own version is that of the headers.
CUDA = {
    "libcudart.so.13": ("cu13", ("-DNCCL_PLAYED=22809", "-DCUDNN_PLAYED=92000")),
    "libcudart.so.12": ("cuda_runtime", ("-DNCCL_PLAYED=22602", "-DCUDNN_PLAYED=90501")),
}
NEWEST = "libcudart.so.13"
FLAGS = """-std=gnu11 -O2 -g -fPIC -Wall -Wextra -Werror
-Wno-missing-field-initializers -Wno-unused-function -pthread""".split()


def compiled(sources, headers, played, folder):
    """Object files of these sources."""
    objects = []
    for name in sources:
        target = os.path.join(folder, name + ".o")
        source = os.path.join(HERE, "src", name + ".c")
        run("gcc", *FLAGS, *played, "-isystem", headers, "-c", "-o", target, source)
        objects.append(target)
    return objects


def run(*command):
    subprocess.run(command, check=True)


def defined(objects):
    """The functions defined in these objects."""
    lines = cuda_stubs.output("nm", "--defined-only", "-g", *objects).splitlines()
    return {line.split()[-1] for line in lines if len(line.split()) == 3}


def wanted(site):
    """The libraries that torch needs, and its undefined symbols: name -> (version, library or None)."""
    folder = os.path.join(site, "torch", "lib")
    with open(os.path.join(folder, ".cuda_stubs")) as file:
        made = set(file.read().split())
    own = [path for path in glob.glob(folder + "/*.so*") if os.path.basename(path) not in made]
    own += glob.glob(os.path.join(site, "torch", "_C*.so"))
    owners = cuda_stubs.version_owners(own, made)
    symbols = {}
    for library in own:
        for kind, name, version in cuda_stubs.symbols(library):
            if kind == "U":
                symbols.setdefault(name, (version, owners.get(version)))
    return made, symbols


def looked_up(site):
    """The driver functions that a torch with its own dlopen of libcuda, like 2.7, looks up by name: it fails if one is
    missing. A newer one uses cudaGetDriverEntryPointByVersion."""
    with open(os.path.join(site, "torch", "lib", "libc10_cuda.so"), "rb") as library:
        content = library.read()
    if b"libcuda.so.1\0" not in content:
        return set()
    return {name.decode() for name in re.findall(rb"\0(cu[A-Z][A-Za-z0-9]+)(?=\0)", content)}


def library(name, parts, site, headers, played, temporary, target):
    """Compiles and links one library; returns a summary."""
    beginning, sources, pattern, code = parts
    objects = compiled(sources, headers, played, temporary)
    has = defined(objects)
    _, symbols = site
    wants = {n: v for n, (v, owner) in symbols.items() if re.match(pattern, n) and (not v or owner == name)}
    stubs = sorted(set(wants) - has)
    source = os.path.join(temporary, beginning + "stubs.c")
    with open(source, "w") as file:
        file.write("extern void vgpu_stub_called(const char *);\n")
        for stub in stubs:
            file.write("long %s() { static int n; if (!n++) vgpu_stub_called(\"%s\"); return %d; }\n" % (stub, stub, code))
    command = ["gcc", "-shared", "-fPIC", "-fno-builtin", "-w", "-pthread", "-o", os.path.join(target, name), *objects, source]
    command += ["-Wl,-soname," + name, "-ldl", "-lrt", "-lm"]
    versions = sorted(set(filter(None, wants.values())))
    if versions:
        script = os.path.join(temporary, "versions")
        with open(script, "w") as file:
            file.write("%s { global: *; };\n" % versions[0])
        command.append("-Wl,--version-script=" + script)
    if beginning != "libcudart":
        command += ["-L" + target, "-l:" + next(n for n in os.listdir(target) if n.startswith("libcudart"))]
        command.append("-Wl,-rpath,$ORIGIN")
    run(*command)
    return "%s: %d functions, %d of them stubs" % (name, len(wants), len(stubs))


def build(site, headers):
    torch = wanted(site)
    for name in looked_up(site):
        torch[1].setdefault(name, ("", None))
    folder, played = CUDA[next(name for name in torch[0] if name in CUDA)]
    target = os.path.join(site, "nvidia", folder, "lib")
    os.makedirs(target, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        for parts in LIBRARIES:
            name = next((n for n in sorted(torch[0]) if n.startswith(parts[0])), None)
            if name:
                print(library(name, parts, torch, headers, played, temporary, target))


def only_test(headers, target):
    os.makedirs(target, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        for name, sources in (("libcudart.so", RUNTIME), ("libnccl.so", NCCL)):
            objects = compiled(sources, headers, CUDA[NEWEST][1], temporary)
            run("gcc", "-shared", "-pthread", "-o", os.path.join(target, name), *objects, "-ldl", "-lrt", "-lm")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--headers", required=True, help="CUDA's include folder")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--site", help="site-packages with torch")
    where.add_argument("--only-test", help="a folder for libcudart.so and libnccl.so")
    options = parser.parse_args()
    if options.site:
        build(os.path.abspath(options.site), options.headers)
    else:
        only_test(options.headers, options.only_test)


if __name__ == "__main__":
    main()
