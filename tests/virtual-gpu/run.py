#!/usr/bin/env python3
"""run.py --home HOME --paceline PROGRAM: real PyTorch jobs of four ranks on the virtual GPU, each watched by `paceline run`,
rank 2 slower, or none; prints the ranks that were named against those that should have been. HOME is torch_cuda.sh's.

A case is right if the slow rank has a straggler finding within the limit of steps, and there is no other finding; for a
healthy job none. The phases of the steps must be known, or the report must give the reason. A failed case on a host
without enough CPU runs once more, unless a healthy rank had a finding. Exits with 1 if a case is not right.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
LAYOUTS = "ddp fsdp fsdp-keep tensor pipeline accumulate offload graph callables".split()
RANKS, SLOW_RANK = 4, 2
WITHIN = {0: 150, 10: 150, 25: 30}  # percent slower -> steps until the verdict; for a healthy job, its length
WARM_UP_STEPS = 15  # imports, communicators, first allocations
KNOWN = 0.9  # share of the steps
STARVED = 0.1  # share of a case's time in which its ranks lacked CPU: above it, the case runs once more
UNSEEN = {"graph": "CUDA graphs"}  # layouts whose steps no hook can see: there the report must give this reason
FINDING = 40  # more steps without a hook, which pass until steps are found in the collectives
TIMED_IN = 4  # then GPU times are taken in one of this many windows
REPLAYS = 80  # more steps for these layouts, which are replayed until that is certain
ASKING = ("event_query", "event_synchronize", "stream_query", "stream_synchronize", "device_synchronize", "blocking_copy")


def arguments(layouts=",".join(LAYOUTS), backends="nccl,nccl-legacy", slower="25,10,0", steps=None):
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__.splitlines()[0])
    parser.add_argument("--home", required=True, help="where torch_cuda.sh has put torch-cuda")
    parser.add_argument("--paceline", required=True, help="the program; the NCCL plugin beside it is used")
    parser.add_argument("--torch", help="an older PyTorch's version, such as 2.7: torch_cuda.sh's second argument")
    parser.add_argument("--layouts", default=layouts)
    parser.add_argument("--backends", default=backends, help="with --torch nccl alone, unless some are named")
    parser.add_argument("--slower", default=slower, help="percent, 0 for a healthy job")
    parser.add_argument("--steps", type=int, default=steps, help="instead of as many as it may take")
    parser.add_argument("--hook", help="a folder with the Python hook, instead of the program's own")
    parser.add_argument("--no-hook", action="store_true", help="the plugin alone")
    parser.add_argument("--no-plugin", action="store_true", help="the hook alone")
    parser.add_argument("--no-set-device", action="store_true", help="scripts that leave device 0 current")
    parser.add_argument("--tflops", default="80", help="of a virtual GPU; fewer make longer steps")
    parser.add_argument("--keep", help="a folder in which run directories stay")
    parser.add_argument("--json", help="a file for the results")
    options = parser.parse_args()
    if options.torch and options.backends == backends:
        options.backends = "nccl"
    return options


def command(options, case, run_dir):
    """A job under `paceline run`."""
    ours = [options.paceline, "run", "--quiet", "--run-dir", run_dir, "--sim-gpus", "gpus=%d" % RANKS, "--"]
    return ours + job_command(options, case)


def job_command(options, case):
    environment = "torch-cuda-" + options.torch if options.torch else "torch-cuda"
    torchrun = os.path.join(options.home, environment, "bin", "torchrun")
    steps = options.steps or within(options, case) + WARM_UP_STEPS
    steps += REPLAYS if case["layout"] in UNSEEN else 0
    steps += FINDING if options.no_hook else 0
    job = [torchrun, "--standalone", "--nproc-per-node=%d" % RANKS, os.path.join(HERE, "programs", "train.py")]
    job += [case["layout"], "--backend", case["backend"], "--steps", str(steps)]
    if options.no_set_device:
        job.append("--no-set-device")
    if options.hook:  # before the hook that `paceline run` adds
        job = ["sh", "-c", 'PYTHONPATH=%s:$PYTHONPATH exec "$@"' % os.path.abspath(options.hook), "sh", *job]
    return job


def within(options, case):
    """The limit of steps for the verdict, from the first recorded step."""
    return WITHIN[case["slower"]] * (TIMED_IN if options.no_hook else 1)


def environment(options, case, stats):
    made = {name: value for name, value in os.environ.items() if not name.startswith(("VGPU_", "PACELINE_", "NCCL_"))}
    made.update(OMP_NUM_THREADS="1", VGPU_TFLOPS=options.tflops, VGPU_STATS=stats, PYTHONWARNINGS="ignore")
    if case["slower"]:
        made["VGPU_SLOW"] = "%d:%.3f" % (SLOW_RANK, 1 + case["slower"] / 100)
    if options.no_hook:  # a job of less than a minute: steps are searched for at once
        made.update(PACELINE_HOOK="off", PACELINE_STEPS_AFTER="2")
    if options.no_plugin:
        made["NCCL_PROFILER_PLUGIN"] = "none"
    return made


def phases(run_dir):
    """The first recorded step, and the share of steps with known phases, for the rank with the smallest; None without
    steps."""
    seen, first = {}, None
    with open(os.path.join(run_dir, "journal.ndjson")) as journal:
        for line in journal:
            step = json.loads(line)["frame"]["event"].get("step")
            if step:
                first = step["step"] if first is None else first
                known, steps = seen.get(step["rank"], (0, 0))
                seen[step["rank"]] = known + bool(step["phases"]), steps + 1
    return first, min((known / steps for known, steps in seen.values()), default=None)


def findings(report):
    """(finding, rank or None, step when raised) of each verdict, whether cleared or not."""
    for verdict in report["verdicts"]:
        yield verdict["finding"], verdict["subject"].get("rank"), verdict.get("raised_step")


def read_one(path):
    with open(path) as file:
        return json.load(file)


def read_stats(folder):
    return [read_one(os.path.join(folder, name)) for name in os.listdir(folder)]


def judge(case, found, known, reason, limit):
    """The problems of a case, if any."""
    wrong = []
    right = [step for name, rank, step in found if name == "straggler" and rank == SLOW_RANK and case["slower"]]
    others = ["%s%s" % (n, "" if r is None else " of rank %d" % r) for n, r, _ in found]
    unseen = UNSEEN.get(case["layout"])
    if unseen and unseen not in reason:
        wrong.append("%s: the report does not say so" % unseen)
    if case["slower"] and not right and not unseen:
        wrong.append("rank %d not named" % SLOW_RANK)
    elif right and min(step or 0 for step in right) > limit:
        wrong.append("named late, at step %d" % min(right))
    wrong += [other for other in others if not case["slower"] or other != "straggler of rank %d" % SLOW_RANK]
    if (known or 0) < KNOWN and not reason:
        wrong.append("phases unknown and no reason said")
    return wrong


def measured(options, case):
    with tempfile.TemporaryDirectory() as scratch:
        stats = os.path.join(scratch, "stats")
        os.mkdir(stats)
        name = "%(layout)s-%(backend)s-%(slower)d" % case
        run_dir = os.path.join(os.path.abspath(options.keep) if options.keep else scratch, name)
        shutil.rmtree(run_dir, ignore_errors=True)  # from an earlier attempt
        began = time.monotonic()
        log = os.path.join(scratch, "log")
        with open(log, "w") as output:
            code = subprocess.run(
                command(options, case, run_dir),
                env=environment(options, case, stats),
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=600,
            ).returncode
        with open(log) as file:
            said = file.read()
        result = dict(case, code=code, seconds=round(time.monotonic() - began, 1))
        if code:
            return dict(result, wrong=["the job failed"], said=said[-2000:])
        with open(os.path.join(run_dir, "report.json")) as file:
            report = json.load(file)
        return dict(result, **conclusion(options, case, report, run_dir, read_stats(stats), said))


def measured_or_late(options, case):
    try:
        return measured(options, case)
    except subprocess.TimeoutExpired:
        return dict(case, wrong=["the job did not end"])


def conclusion(options, case, report, run_dir, stats, said):
    found = list(findings(report))
    first, known = phases(run_dir)
    reason = "; ".join(report["coverage"]["notes"])
    # The plugin alone records a job's steps only after some have passed.
    limit = within(options, case) + (first or 1) - 1
    wrong = judge(case, found, known, reason, limit)
    own_device = not case.get("no_set_device")  # otherwise PyTorch itself may use device 0; same.py compares
    if "CAPTURE FAILED" in said:
        wrong.append("the capture failed")
    stray = [rank for rank in stats if len(rank["contexts"]) > 1]
    if stray and own_device:
        wrong.append("contexts on other devices")
    return {
        "steps": report["steps"],
        "step_ms": round((report["median_step_s"] or 0) * 1e3, 1),
        "found": [list(one) for one in found],
        "signals": report["coverage"]["signals"],
        "known": known,
        "reason": reason,
        "asked": {name: sum(rank[name] for rank in stats) for name in ASKING},
        "withheld_s": round(max((rank["withheld_ns"] for rank in stats), default=0) / 1e9, 1),
        "wrong": wrong,
    }


def row(result):
    named = ", ".join("%s%s@%s" % (n, "" if r is None else " %d" % r, s) for n, r, s in result.get("found", [])) or "nobody"
    known = result.get("known")
    phases_text = "-" if known is None else "%d %%" % round(known * 100)
    if result.get("reason"):
        phases_text += " (%s)" % result["reason"]
    wrong = "; ".join(result["wrong"]) or "right"
    columns = (result["layout"], result["backend"], "%d %%" % result["slower"] if result["slower"] else "healthy")
    return "| %-10s | %-11s | %-7s | %-28s | %-12s | %s |" % (*columns, named, phases_text, wrong)


def cases(options):
    return [
        {"layout": layout, "backend": backend, "slower": int(slower), "no_set_device": options.no_set_device}
        for layout in options.layouts.split(",")
        for backend in options.backends.split(",")
        for slower in options.slower.split(",")
    ]


def accuses(result):
    """Whether a healthy rank has a finding."""
    slow = {SLOW_RANK} if result["slower"] else set()
    return any(rank is not None and rank not in slow for _, rank, _ in result.get("found", []))


def main():
    options = arguments()
    print("| layout     | backend     | rank 2  | named @ step                 | phases known | verdict |")
    print("|---|---|---|---|---|---|", flush=True)
    results = []
    for case in cases(options):
        result = measured_or_late(options, case)
        is_starved = result.get("withheld_s", 0) > STARVED * result.get("seconds", 0)
        if result["wrong"] and is_starved and not accuses(result):
            print("# once more, on a starved host: " + row(result), flush=True)
            result = dict(measured_or_late(options, case), first_try=result)
        results.append(result)
        print(row(results[-1]), flush=True)
        if options.json:
            with open(options.json, "w") as file:
                json.dump(results, file, indent=1)
    right = sum(not result["wrong"] for result in results)
    print("%d of %d right" % (right, len(results)))
    sys.exit(0 if right == len(results) else 1)


if __name__ == "__main__":
    main()
