#!/usr/bin/env python3
"""dumps.py --torch HOME --paceline PROGRAM: jobs of PyTorch on the virtual GPU that hang until PyTorch's watchdog ends them, each in
its own way and on both NCCL backends. Checks that their flight recorder dumps are in the run directory, that `paceline
why` names the missing or differing rank, and that it reads each dump like Python does.
"""

import argparse
import concurrent.futures
import json
import os
import pickle
import subprocess
import sys

import run

TIMEOUT, LONGEST = 8, 120
MISSING = "rank 2 has not entered all_reduce #156 of group 0 (16.2 KiB), 3 other ranks have"
# kind -> output of `paceline why`, by backend if different: nccl2, the default, writes no dump for a rank outside of
# collectives.
SAYS = {
    "lock": {
        "nccl": "3 of 4 ranks have entered all_reduce #156 of group 0 (16.2 KiB), none of them has finished it; rank 2 left no dump",
        "nccl-legacy": MISSING,
    },
    "gather": "operations differ in collective #156 of group 0: all_reduce (16 B) on rank 2, all_gather (16 B) on ranks 0-1, 3",
    "early": "operations differ in collective #156 of group 0: barrier on rank 2, all_reduce (16.2 KiB) on ranks 0-1, 3",
    "barrier": "operations differ in collective #156 of group 0: all_reduce (16.2 KiB) on rank 2, barrier on ranks 0-1, 3",
    # nccl-legacy creates a group's communicator at its first use, and waits for its peers there, without an entry.
    "order": {"nccl": "rank 2 entered all_reduce #1 of group 2 (4 B) before all_reduce #1 of group 1 (4 B), 3 other ranks after it"},
}


def position(path):
    """A rank's current or last finished collective, read with Python's pickle: (number or None, the user's line)."""
    with open(path, "rb") as file:
        entries = pickle.load(file)["entries"]
    pending = [entry for entry in entries if entry["state"] != "completed" and not entry["retired"]]
    entry = pending[0] if pending else entries[-1]
    own = [frame for frame in entry["frames"] if frame["filename"] == run.SCRIPT]
    at = "train.py:%d in %s" % (own[0]["line"], own[0]["name"]) if own else ""
    return "#%d" % entry["collective_seq_id"], at


def case(options, kind, backend):
    """The output of `paceline why` for a job that PyTorch has ended, and the problems with it."""
    with run.folder(options, "%s-%s" % (kind, backend)) as scratch:
        job = run.start(options, scratch, [], [kind, backend, str(TIMEOUT)])
        try:
            job.wait(LONGEST)
        except subprocess.TimeoutExpired:
            return "", ["PyTorch did not end it"]
        finally:
            run.end(job)
        return judge(options, kind, backend, scratch)


def judge(options, kind, backend, scratch):
    run_dir = os.path.join(scratch, "run")
    dumps = sorted(name for name in os.listdir(run_dir) if name.startswith("flight-recorder-rank-"))
    if len(dumps) < run.RANKS - 1:
        with open(os.path.join(scratch, "log")) as log:
            return "", ["dumps: %s\n%s" % (dumps, log.read()[-2000:])]
    why = subprocess.run([options.paceline, "why", run_dir, "--json"], capture_output=True, text=True, check=True)
    recorded = json.loads(why.stdout)["flight_recorder"]
    expected = SAYS[kind] if isinstance(SAYS[kind], str) else SAYS[kind][backend]
    bad = [] if recorded["says"] == expected else ["not: " + expected]
    seen = {rank: position for position in recorded["positions"] for rank in position["ranks"]}
    for name in dumps:
        rank = int(name.rsplit("-", 1)[1])
        number, at = position(os.path.join(run_dir, name))
        if number not in seen[rank]["operation"].split() or at != seen[rank]["at"]:
            bad.append("rank %d: %s %s, not %s" % (rank, number, at, seen[rank]))
    return recorded["says"], bad


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--torch", required=True, help="a Python environment with PyTorch on the virtual GPU")
    parser.add_argument("--paceline", required=True, help="the program")
    run.shared(parser)
    parser.add_argument("--kinds", default=",".join(SAYS))
    parser.add_argument("--backends", default="nccl,nccl-legacy")
    parser.add_argument("--jobs", type=int, default=1, help="at a time: they wait more than they work")
    options = parser.parse_args()
    options.torch, options.paceline = os.path.abspath(options.torch), os.path.abspath(options.paceline)
    all_bad = 0
    print("| hang | backend | paceline why | |\n|---|---|---|---|", flush=True)
    cases = [(kind, backend) for kind in options.kinds.split(",") for backend in options.backends.split(",")]
    cases = [(kind, backend) for kind, backend in cases if isinstance(SAYS[kind], str) or backend in SAYS[kind]]
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as jobs:
        for named, (says, bad) in zip(cases, jobs.map(lambda one: case(options, *one), cases)):
            all_bad += bool(bad)
            print("| %s | %s | %s | %s |" % (*named, says, "**%s**" % "; ".join(bad) if bad else "right"), flush=True)
    sys.exit(1 if all_bad else 0)


if __name__ == "__main__":
    main()
