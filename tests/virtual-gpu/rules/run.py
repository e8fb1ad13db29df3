#!/usr/bin/env python3
"""run.py --headers CUDA_INCLUDE: every rule of the virtual libcudart and libnccl, each by a C program beside this file. Seconds."""

import argparse
import os
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAMS = "capture streams devices faults nccl".split()
FLAGS = "-std=gnu11 -O1 -g -Wall -Wextra -Werror -Wno-unused-function -pthread".split()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--headers", required=True, help="CUDA's include folder")
    headers = parser.parse_args().headers
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        build = os.path.join(HERE, "..", "build.py")
        subprocess.run([sys.executable, build, "--headers", headers, "--only-test", folder], check=True)
        recorder = os.path.join(folder, "recorder.so")
        subprocess.run(["gcc", *FLAGS, "-shared", "-fPIC", "-o", recorder, os.path.join(HERE, "recorder.c")], check=True)
        for name in PROGRAMS:
            program = os.path.join(folder, name)
            command = ["gcc", *FLAGS, "-isystem", headers, "-o", program, os.path.join(HERE, name + ".c")]
            libraries = ["-L" + folder, "-l:libnccl.so", "-l:libcudart.so", "-Wl,-rpath," + folder]
            subprocess.run([*command, *libraries], check=True)
            environment = {**clean_environment(), "RANK": "0", "NCCL_PROFILER_PLUGIN": recorder}
            if name == "faults":
                environment["VGPU_FAULT_FILE"] = os.path.join(folder, "faults.txt")
            code = subprocess.run([program], env=environment, timeout=60).returncode
            print("%-10s %s" % (name, "FAILED" if code else "ok"))
            failed += [name] if code else []
    sys.exit(1 if failed else 0)


def clean_environment():
    return {name: value for name, value in os.environ.items() if not name.startswith(("VGPU_", "CUDA_"))}


if __name__ == "__main__":
    main()
