#!/usr/bin/env python3
"""run.py --torch HOME --paceline PROGRAM: real jobs of PyTorch over gloo that hang, each kind in its own way; prints what
`paceline run` said of each: the rank, the line of its code, and how long after the hang.

A case is right if rank 2 is named (or, where all ranks wait in collectives, distinguished from its peers), with the
hanging line in the finding's stacks, the cause, and no other rank. In jobs that are only slow: no rank. Exits with 1 if
a case is not right.

--backend nccl: on the virtual GPU, with HOME/torch-cuda of tests/setup/torch_cuda.sh, and the NCCL plugin beside PROGRAM;
or on a real one (--shared-gpu).
"""

import argparse
import concurrent.futures
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
SCRIPT = os.path.join(HERE, "train.py")
RANKS, SUSPECT, HANGS_AT, LONGEST = 4, 2, 150, 60.0
SETTLED = 1.0  # seconds until an explanation is complete
NAMING = ("rank-silent", "job-hang", "rank-died")
# Texts in place of a line: a stopped process has no line, a failed one has its error.
WORDS = {"stopped": "stopped by a signal", "fuse": "sample (fuse at ", "loader-fuse": "sample (fuse at ", "exception": "something went wrong"}
SLOW = ["slow-checkpoint"]
# On GPUs: kinds that differ from the CPU, and one of each other group.
ON_GPU = "order gather early barrier lock loader-read".split()
CAUSES = {
    "loader-read": "data-loading", "lock": "lock-wait", "condition": "lock-wait", "queue": "lock-wait", "gil": "other-process",
    "stopped": "stopped", "read": "other-process", "checkpoint": "other-process", "server": "remote-service",
    "subprocess": "other-process", "evaluation": "own-code", "retry": "own-code", "hook": "own-code",
    "fuse": "storage", "loader-fuse": "storage",
}  # fmt: skip
# Findings from the NCCL plugin.
ENTERED = {
    "order": "rank 2 entered all_reduce #0 of group 2",
    "gather": "rank 2 has not entered all_gather #0 of group 0 (16 B), 3 other ranks have; it entered all_reduce #150 of group 0",
    "early": "sizes differ in all_reduce #150 of group 0: 4 B on rank 2, 16.2 KiB on ranks 0-1, 3",
    "barrier": "sizes differ in all_reduce #150 of group 0: 4 B on ranks 0-1, 3, 16.2 KiB on rank 2",
    "lock": "has not entered all_reduce #150 of group 0 (16.2 KiB), 3 other ranks have",
    "loader-read": "has not entered all_reduce #150 of group 0 (16.2 KiB), 3 other ranks have",
}
# On a real GPU with PyTorch 2.11, which does not name its communicators: a collective whose ranks must connect first is
# not launched.
ON_REAL_GPU = {
    "order": "rank 2: train.py:",
    "gather": "rank 2 has not entered all_gather #1 of a communicator of 4 ranks (16 B), 3 other ranks have; it is inside all_reduce instead",
    "early": "has not entered all_reduce #150 of a communicator of 4 ranks (16.2 KiB), 3 other ranks have; it is inside barrier instead",
    "barrier": "rank 2 has entered all_reduce #150 of a communicator of 4 ranks (16.2 KiB), 3 other ranks have not; they are inside barrier",
    "lock": "has not entered all_reduce #150 of a communicator of 4 ranks (16.2 KiB), 3 other ranks have",
    "loader-read": "has not entered all_reduce #150 of a communicator of 4 ranks (16.2 KiB), 3 other ranks have",
}
CAUSES_ON_GPU = dict(CAUSES, **dict.fromkeys(("gather", "early", "barrier"), "collective-mismatch"))
CAUSES_ON_REAL_GPU = dict(CAUSES_ON_GPU, barrier="unknown")


def kind_of_gpu(options):
    """The label of the lines: `gloo`, `nccl` on the virtual GPU, `gpu` on a real one."""
    return "gpu" if options.shared_gpu else options.backend


def lines(backend):
    """kind -> the lines of train.py where it hangs."""
    found = {}
    with open(SCRIPT) as script:
        for number, line in enumerate(script, 1):
            mark = re.search(r"  # (?:([a-z ]+): )?([a-z -]+)$", line)
            if mark and (mark.group(1) is None or backend in mark.group(1).split()):
                for kind in mark.group(2).split():
                    found.setdefault(kind, []).append(number)
    return found


def verdicts(run_dir):
    try:
        with open(os.path.join(run_dir, "verdicts.ndjson")) as file:
            return [json.loads(line) for line in file if line.endswith("\n")]
    except OSError:
        return []


def hangs(found):
    return [one for one in found if one["finding"] in NAMING and one["state"] == "raised"]


def judge(options, kind, found, at):
    """(the cause, the stacks as text, the problems with them)"""
    silent = [one for one in hangs(found) if one.get("says")]
    # Ranks that take turns on one GPU may be slow before the hang.
    expected = NAMING + (("straggler",) if options.shared_gpu else ())
    others = [one["finding"] for one in found if one["finding"] not in expected]
    wrong = ["also %s" % name for name in sorted(set(others))]
    others = {one["subject"].get("rank") for one in hangs(found)} - {SUSPECT, None}
    wrong += ["rank %d named" % rank for rank in sorted(others)]
    if not silent:
        return "", "", wrong + ["no stacks"]
    says = silent[-1]["says"]
    if silent[-1]["finding"] == "job-hang" and "rank %d" % SUSPECT not in says.split(";")[0]:
        wrong.append("rank %d not distinguished" % SUSPECT)
    wanted = [WORDS[kind]] if kind in WORDS else ["train.py:%d in" % line for line in lines(kind_of_gpu(options))[kind]]
    own = re.split("; (?:3 other ranks|ranks (?!0-3))", says)[0]
    cause = silent[-1]["cause"]
    causes = {"gloo": CAUSES, "nccl": CAUSES_ON_GPU, "gpu": CAUSES_ON_REAL_GPU}[kind_of_gpu(options)]
    if cause != causes.get(kind, "unknown"):
        wrong.append("cause " + cause)
    entered = {"nccl": ENTERED, "gpu": ON_REAL_GPU}.get(kind_of_gpu(options), {}).get(kind, "")
    if entered not in says:
        wrong.append("no " + entered)
    if not any(want in own for want in wanted):
        wrong.append("no " + " or ".join(wanted))
    if at > options.within:
        wrong.append("late")
    return cause, says, wrong


def case(options, kind):
    """One job, until it is explained, or until the timeout."""
    with folder(options, kind) as scratch:
        run_dir = os.path.join(scratch, "run")
        gpus = [] if options.backend == "gloo" or options.shared_gpu else ["--sim-gpus", "gpus=%d" % RANKS]
        job = start(options, scratch, gpus, [kind, options.backend])
        try:
            stopped_at = explained_at = None
            begun = time.monotonic()
            while job.poll() is None and time.monotonic() - begun < 4 * LONGEST:
                time.sleep(0.1)
                now = time.monotonic()
                stopped_at = stopped_at or hung_since(run_dir)
                found = verdicts(run_dir)
                if any(one.get("says") for one in hangs(found)):
                    explained_at = explained_at or now
                if (explained_at and now - explained_at > SETTLED) or (stopped_at and now - stopped_at > LONGEST):
                    break
            found, at = verdicts(run_dir), (explained_at or begun) - (stopped_at or explained_at or begun)
        finally:
            end(job)
        if kind in SLOW:
            wrong = sorted({one["finding"] for one in found})
            return "", "no finding" if not wrong else "", wrong, 0.0
        return *judge(options, kind, found, at), at


def folder(options, name):
    """The folder of a job."""
    if not options.keep:
        return tempfile.TemporaryDirectory()
    os.makedirs(options.keep, exist_ok=True)
    return contextlib.nullcontext(tempfile.mkdtemp(prefix=name + "-", dir=options.keep))


def start(options, scratch, flags, arguments):
    """A job of train.py with these arguments, its run directory and its log in `scratch`."""
    command = [options.paceline, "run", "--quiet", "--run-dir", os.path.join(scratch, "run"), *flags, "--"]
    command += [os.path.join(options.torch, "bin", "python3"), "-m", "torch.distributed.run", "--standalone"]
    command += ["--local-addr=127.0.0.1", "--nproc-per-node=%d" % RANKS]
    ours = ("VGPU_", "PACELINE_", "NCCL_", "TORCH_")
    env = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    env.update(OMP_NUM_THREADS="1", PYTHONWARNINGS="ignore")
    if options.shared_gpu:
        env.update(CUDA_VISIBLE_DEVICES="0", NCCL_SOCKET_IFNAME="lo", NCCL_NET="Socket")
    with open(os.path.join(scratch, "log"), "w") as log:
        return subprocess.Popen(
            [*command, SCRIPT, *arguments], env=env, stdout=log, stderr=subprocess.STDOUT, cwd=scratch
        )


def hung_since(run_dir):
    """When rank 2 stopped in the hanging step, by the local clock; None: not yet."""
    try:
        with open(os.path.join(run_dir, "journal.ndjson")) as journal:
            beats = [line for line in journal if '"beat"' in line and line.endswith("\n")]
    except OSError:
        return None
    for pulse in json.loads(beats[-1])["frame"]["event"]["beat"]["ranks"] if beats else ():
        if pulse["rank"] == SUSPECT and pulse["step"] > HANGS_AT:
            return time.monotonic() - pulse["idle_ns"] / 1e9
    return None


def end(job):
    """Kills the whole process tree: a stopped process, or one with a stuck main thread, handles no other signal."""
    if job.poll() is not None:
        return
    tree = [job.pid]
    for pid in tree:
        try:
            with open("/proc/%d/task/%d/children" % (pid, pid)) as children:
                tree += [int(child) for child in children.read().split()]
        except OSError:
            pass
    for pid in reversed(tree):
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            pass
    job.wait()


def shared(parser):
    """Options that dumps.py has too."""
    parser.add_argument("--shared-gpu", action="store_true", help="a real GPU, which all ranks share, in place of the virtual ones")
    parser.add_argument("--keep", help="a folder in which what the jobs wrote stays")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--torch", required=True, help="a Python environment with PyTorch")
    parser.add_argument("--paceline", required=True, help="the program")
    parser.add_argument("--backend", default="gloo", choices=("gloo", "nccl"))
    parser.add_argument("--kinds", help="all of the backend's")
    shared(parser)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--within", type=float, default=20.0, help="seconds in which a hang is to be explained; 20")
    parser.add_argument("--jobs", type=int, default=1, help="at a time: they wait more than they work")
    options = parser.parse_args()
    # Jobs run in separate directories.
    options.torch, options.paceline = os.path.abspath(options.torch), os.path.abspath(options.paceline)
    bad = 0
    print("| hang | said after | cause | stacks | |\n|---|---|---|---|---|", flush=True)
    of_backend = ON_GPU if options.backend == "nccl" else [*lines("gloo"), *SLOW]
    kinds = options.kinds.split(",") if options.kinds else of_backend
    if os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
        print("LEFT OUT: storage that does not respond: it takes root and /dev/fuse", flush=True)
        kinds = [kind for kind in kinds if not kind.endswith("fuse")]
    kinds = [kind for kind in kinds for _ in range(options.repeats)]
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as jobs:
        for kind, (cause, says, wrong, at) in zip(kinds, jobs.map(lambda kind: case(options, kind), kinds)):
            bad += bool(wrong)
            end = "**%s**" % ", ".join(wrong) if wrong else "right"
            print("| %s | %.1f s | %s | %s | %s |" % (kind, at, cause, says, end), flush=True)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
