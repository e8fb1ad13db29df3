#!/usr/bin/env python3
"""same.py --home HOME --paceline PROGRAM: whether a job does the same on its GPUs with and without Paceline.

Each layout runs twice, with `paceline run` and without it. The numbers of kernels, collectives, captures (none
invalidated), contexts and of every call that waits for a GPU must be equal on each rank. Queries of events are not
compared: they never wait, and PyTorch's own threads poll with them. Exits with 1 if something differs. HOME is
torch_cuda.sh's.
"""

import os
import subprocess
import sys
import tempfile

import run

COMPARED = """kernels collectives captures invalidated_captures contexts event_synchronize stream_query stream_synchronize
device_synchronize blocking_copy""".split()
LAYOUTS, STEPS = "ddp,fsdp,graph,callables", 20


def counted(options, case, is_watched):
    """The counts of each rank's GPU, ordered by rank; and the job's messages about captures."""
    with tempfile.TemporaryDirectory() as scratch:
        stats = os.path.join(scratch, "stats")
        os.mkdir(stats)
        command = run.command(options, case, os.path.join(scratch, "run")) if is_watched else run.job_command(options, case)
        environment = run.environment(options, case, stats)
        done = subprocess.run(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=600, universal_newlines=True
        )
        if done.returncode:
            raise SystemExit("%(layout)s: the job failed\n" % case + done.stdout[-2000:])
        ranks = sorted(os.listdir(stats), key=lambda name: int(name.split(".")[0]))
        # Counted by text: ranks write into each other's lines.
        printed = {words: done.stdout.count(words) for words in ("captured", "CAPTURE FAILED")}
        return [run.read_one(os.path.join(stats, name)) for name in ranks], printed


def differences(watched, alone):
    for rank, (with_us, without) in enumerate(zip(watched, alone)):
        for name in COMPARED:
            if with_us[name] != without[name]:
                yield "rank %d: %s %s with Paceline, %s without" % (rank, name, with_us[name], without[name])


def main():
    options = run.arguments(layouts=LAYOUTS, backends="nccl", slower="0", steps=STEPS)
    is_wrong = False
    for case in run.cases(options):
        watched, captured = counted(options, case, True)
        alone, expected = counted(options, case, False)
        wrong = list(differences(watched, alone))
        if len(watched) != run.RANKS or len(alone) != run.RANKS:
            wrong.append("counts of %d and %d ranks" % (len(watched), len(alone)))
        if captured != expected or captured["CAPTURE FAILED"]:
            wrong.append("captures: %s with Paceline, %s without" % (captured, expected))
        is_wrong |= bool(wrong)
        print("%-10s %-11s %s" % (case["layout"], case["backend"], "; ".join(wrong) or same(watched[0])), flush=True)
    return 1 if is_wrong else 0


def same(rank):
    return "the same: " + ", ".join("%s %s" % (name, rank[name]) for name in COMPARED)


if __name__ == "__main__":
    sys.exit(main())
