"""Part 9: a kernel that writes where nothing is. The driver tells of it by NVML and in the kernel log; it is one finding."""

import glob
import os
import shutil
import subprocess

import journal
from checks import ON_VIRTUAL
from jobs import Job
from setting import HERE

XID = 31
FINDING = "application-fault"  # health/policy/xid-findings.tsv
LISTEN_S = 5  # for what the driver says, before the job ends
USUAL = ["/usr/local/cuda/bin/nvcc", "/usr/local/cuda-*/bin/nvcc", "/opt/*/bin/nvcc"]


def part(run, checks):
    if run.virtual:
        return checks.unseen("events", "XID %d of an illegal address" % XID, "one finding", ON_VIRTUAL + ": no driver")
    run_dir, folder = run.scratch / "fault-run", run.folder("fault")
    command = 'echo "$@"; "$@"; code=$?; sleep %d; exit $code' % LISTEN_S
    words = run.watched(run_dir, ["sh", "-c", command, "sh", *program(run, folder)])
    job = Job(words, run.environment(), folder / "said")
    checks.equal("events", "the program's exit code", 0, job.end())
    result = list(journal.events(run_dir, "gpu_fault"))
    print(result, flush=True)
    for source, fact in (("nvml", "by NVML"), ("kernel", "by the kernel log")):
        xids = ", ".join(sorted({str(one["xid"]) for one in result if one["seen_by"] == source})) or "nothing"
        name = "XID %s" % fact
        if source == "kernel" and not os.access("/dev/kmsg", os.R_OK):
            checks.unseen("events", name, XID, "/dev/kmsg cannot be read")
        else:
            checks.equal("events", name, str(XID), xids)
    found = ", ".join(one["finding"] for one in journal.report(run_dir)["verdicts"]) or "none"
    return checks.equal("events", "findings of one fault that two sources reported", FINDING, found)


def program(run, folder):
    """By nvcc where it is, else by PyTorch's own compiler."""
    found = [shutil.which("nvcc"), *(path for pattern in USUAL for path in glob.glob(pattern))]
    nvcc = next((path for path in found if path), None)
    if nvcc:
        made = str(folder / "illegal")
        done = subprocess.run([nvcc, "-o", made, str(HERE / "programs" / "illegal.cu")], check=False)
        if done.returncode == 0:
            return [made]
    return run.program("illegal.py")
