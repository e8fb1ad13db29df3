"""Part 1: what this machine is. Little can be wrong here; what is seen says which of the other parts' answers hold."""

import os
import shutil
import subprocess

import ends
import nvml
from checks import ON_VIRTUAL

SEEN = {"torch": "2.11", "nccl": "2.28"}  # what the other parts were written for
SMI_LINES = 200
USUAL = ["/usr/bin/nvidia-smi", "/usr/local/nvidia/bin/nvidia-smi", "/usr/lib/wsl/lib/nvidia-smi"]


def driver(run):
    """The driver's version, by itself."""
    if run.virtual and not run.nvml_lib:
        return "none"
    try:
        return "%s%s" % (nvml.Library(run.nvml_lib).driver(), " (played)" if run.nvml_lib else "")
    except OSError as error:
        return "not known: %s" % error


def part(run, checks):
    for name, expected in SEEN.items():
        found = run.versions[name]
        if found.startswith(expected + "."):
            checks.add("facts", "version of %s" % name, expected, found, True)
        else:  # what the other parts see holds for this one
            checks.add("facts", "version of %s" % name, expected, found, None, "another version")
    said(["uname", "-a"])
    said([run.paceline, "doctor"])
    if run.virtual:
        return checks.unseen("facts", "driver, GPU and kernel log", "", ON_VIRTUAL)
    smi = said([nvidia_smi(), "-q"])
    checks.add("facts", "nvidia-smi answers", "a log", "%d lines" % len(smi.splitlines()), bool(smi))
    mode = value_of(smi, "Compute Mode")
    # With an exclusive GPU the jobs of four ranks cannot be.
    checks.add("facts", "compute mode", "Default", mode, mode == "Default")
    checks.note("facts", "MIG", value_of(smi, "Current", after="MIG Mode"))
    kernel_log(checks)
    checks.equal("B", "RAS service before any NCCL", "no listener", ends.ras() or "no listener")


def nvidia_smi():
    """Where it is: a container may have it outside of PATH."""
    return shutil.which("nvidia-smi") or next((path for path in USUAL if os.path.exists(path)), "nvidia-smi")


def said(command):
    """What a command prints; into the log too."""
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False)
    except OSError as error:
        print("$ %s: %s" % (command[0], error))
        return ""
    lines = done.stdout.splitlines()
    print("$", " ".join(command), *lines[:SMI_LINES], sep="\n", flush=True)
    return done.stdout if done.returncode == 0 else ""


def value_of(smi, key, after=""):
    """Of a line `key : value`, the first behind a line that has `after`."""
    lines = iter(smi.splitlines())
    if after:
        next((line for line in lines if after in line), None)
    found = next((line for line in lines if line.strip().startswith(key)), "")
    return found.partition(":")[2].strip() or "not there"


def kernel_log(checks):
    """Whether it can be read, as root it should; and what the driver has written into it so far."""
    try:
        log = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        return checks.add("events", "/dev/kmsg can be read", "by root", error.strerror, os.geteuid() != 0 or None, "no root, or a container")
    lines = []
    while True:
        try:
            lines.append(os.read(log, 8192).decode(errors="replace"))
        except BrokenPipeError:
            continue  # overwritten meanwhile
        except OSError:
            break
    os.close(log)
    drivers = [line.strip() for line in lines if "NVRM" in line]
    print(*drivers[-20:], sep="\n")
    checks.add("events", "/dev/kmsg can be read", "by root", "%d lines, %d of the driver" % (len(lines), len(drivers)), True)
