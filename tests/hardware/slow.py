"""Parts 4 and 5: four ranks of which one is slower. Is it named, and no other rank, and are the figures right?

What is compared with is what the program does on purpose: work of so many milliseconds a step, a quarter more on one rank.
"""

import json
from statistics import median

import journal
from checks import ON_VIRTUAL
from jobs import Job, expected_interface, plugin_interface

import run as virtual_gpu  # of ../virtual-gpu

RANKS, SLOW, FACTOR = 4, 2, 1.25
WITHIN_STEPS = virtual_gpu.WITHIN[25]
KNOWN = virtual_gpu.KNOWN
UNTIMED = 40  # steps at the beginning, in which the plugin times nothing
# A step; on a real GPU, whose four ranks take turns of milliseconds, longer, and of a pipeline each of its sixteen pieces.
WORK_MS, TURNS_MS = 100, {"pipeline": 1600}
LONGER_MS = 200
VIRTUAL_STEPS, VIRTUAL_S = 120, 120  # there, whose host others may use: so many steps, however long they take
COST = 0.02


def part(run, checks, layout, seconds):
    out, run_dir = run.folder(layout), run.scratch / (layout + "-run")
    work = WORK_MS if run.virtual else TURNS_MS.get(layout, LONGER_MS)
    how_long = ["--seconds", seconds]
    if run.virtual:
        how_long = ["--seconds", VIRTUAL_S, "--steps", VIRTUAL_STEPS]
    slow = "%d:%s" % (SLOW, FACTOR)
    train = run.torchrun(RANKS, "train.py", layout, "--out", out, *how_long, "--work-ms", work, "--slow", slow)
    environment = run.environment(**({"VGPU_TRACE": "1"} if run.virtual else {}))  # so that it says which interface it took
    job = Job(run.watched(run_dir, train), environment, run.scratch / (layout + ".said"))
    code = job.end()
    checks.equal("C", "the job's exit code", 0, code)
    ranks = [json.loads(path.read_text()) for path in sorted(out.glob("*.json"))]
    checks.equal("C", "ranks on one GPU that came to the end", RANKS, len(ranks))
    fact = "A1" if layout.startswith("fsdp") else "C"
    named(checks, fact, run_dir)
    plugin(run, checks, run_dir, job.said(), (FACTOR - 1) * work, is_once=layout == "ddp")


def named(checks, fact, run_dir):
    report = journal.report(run_dir)
    found = list(virtual_gpu.findings(report))
    right = [step or 0 for name, rank, step in found if (name, rank) == ("straggler", SLOW)]
    checks.at_most(fact, "rank %d is named, by step" % SLOW, WITHIN_STEPS, min(right, default=None))
    others = ["%s%s" % (name, "" if rank is None else " of rank %d" % rank) for name, rank, _ in found if (name, rank) != ("straggler", SLOW)]
    checks.equal(fact, "other findings", "none", ", ".join(others) or "none")
    slowdown = [v["slowdown_ratio"] for v in report["verdicts"] if v["finding"] == "straggler" and v["subject"].get("rank") == SLOW]
    checks.near(fact, "how much slower it is said to be", FACTOR, slowdown[0] if slowdown else None, 0.05)
    _, known = virtual_gpu.phases(run_dir)
    checks.at_least(fact, "share of steps whose phases are known", KNOWN, known)
    compute = compute_ratio(run_dir)
    checks.near(fact, "its compute over that of its peers", FACTOR, compute, 0.05)


def compute_ratio(run_dir):
    """By the phases of the median step: a host without CPU leaves gaps in some."""
    of_rank = {}
    for step in journal.events(run_dir, "step"):
        if step["phases"]:
            of_rank.setdefault(step["rank"], []).append(step["phases"]["compute_ns"])
    medians = {rank: median(times) for rank, times in of_rank.items()}
    peers = [time for rank, time in medians.items() if rank != SLOW]
    return medians[SLOW] / median(peers) if SLOW in medians and peers else None


def plugin(run, checks, run_dir, said, late, is_once):
    """`is_once`: a step has one collective, so what a rank is late by is seen once."""
    expected = expected_interface(run.versions["nccl"])
    checks.equal("C", "the interface by which NCCL loads the plugin", expected, plugin_interface(said))
    timed = journal.timed(run_dir)
    checks.at_least("C", "steps that the plugin timed", 8, len(timed))
    checks.equal("C", "ranks that it timed", RANKS, max(map(len, timed.values()), default=0))
    name, shorter = "rank %d's collectives of a step are shorter by" % SLOW, journal.lateness_ms(run_dir, SLOW)
    if is_once:
        checks.near("C", name, late, shorter, 0.2, " ms")
    else:
        checks.at_least("C", name, 0.8 * late, shorter, " ms")
    name = "longer steps where collectives are timed"
    if run.virtual:
        return checks.unseen("C", name, "at most %g %%" % (COST * 100), ON_VIRTUAL + ": timing takes no time")
    cost = journal.sampling_cost(run_dir, UNTIMED)
    return checks.at_most("C", name, COST * 100, None if cost is None else cost * 100, " %")
