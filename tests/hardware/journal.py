"""What a run directory of Paceline tells of a job, while it runs or at its end."""

import json
import pathlib
from statistics import median


def events(run_dir, kind):
    """Of one kind, in order; those of lines that are whole."""
    try:
        with open(pathlib.Path(run_dir, "journal.ndjson"), encoding="utf-8") as file:
            for line in file:
                if '"%s":' % kind in line and line.endswith("\n"):
                    event = json.loads(line)["frame"]["event"].get(kind)
                    if event:
                        yield event
    except FileNotFoundError:
        return


def verdicts(run_dir):
    """All states of all findings, in the order in which they were reported."""
    try:
        with open(pathlib.Path(run_dir, "verdicts.ndjson"), encoding="utf-8") as file:
            return [json.loads(line) for line in file if line.endswith("\n")]
    except FileNotFoundError:
        return []


def report(run_dir):
    return json.loads(pathlib.Path(run_dir, "report.json").read_text(encoding="utf-8"))


def last_step(run_dir):
    return max((step["step"] for step in events(run_dir, "step")), default=0)


def pid(run_dir, rank):
    """Of a rank's process."""
    return next((one["pid"] for one in events(run_dir, "attach") if one["rank"] == rank and one["pid"]), None)


def timed(run_dir):
    """Of each step that the plugin timed on all of its ranks: what its collectives took, ns by rank."""
    steps = {}
    for comm in events(run_dir, "comm"):
        if comm["gpu"]:
            ranks = steps.setdefault(comm["step"], {})
            ranks[comm["rank"]] = ranks.get(comm["rank"], 0) + comm["dur_ns"]
    most = max(map(len, steps.values()), default=0)
    return {step: ranks for step, ranks in steps.items() if len(ranks) == most}


def lateness_ms(run_dir, rank):
    """How much shorter a rank's collectives are than those of its peers, in the median step; None where nothing was timed."""
    shorter = [
        median(ns for peer, ns in ranks.items() if peer != rank) - ranks[rank]
        for ranks in timed(run_dir).values()
        if rank in ranks and len(ranks) > 1
    ]
    return median(shorter) / 1e6 if shorter else None


def sampling_cost(run_dir, first):
    """How much longer steps are whose collectives the plugin timed than others from `first` on, as a share; None where it is not known.

    Only steps whose neighbors are alike count: the host's side of a change is none of the cost."""
    with_times = set(timed(run_dir))
    lengths = {}
    for step in events(run_dir, "step"):
        if step["step"] >= first:
            lengths.setdefault(step["step"], []).append(step["dur_ns"])
    sides = {True: [], False: []}
    for step, durations in lengths.items():
        is_timed = step in with_times
        if (step - 1 in with_times) == is_timed == (step + 1 in with_times):
            sides[is_timed].append(median(durations))
    if min(map(len, sides.values())) < 8:
        return None
    return median(sides[True]) / median(sides[False]) - 1
