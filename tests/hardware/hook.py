"""Part 3: the hook in one process. Are its phases those of the GPU, do captures live with it, does it make anybody wait?"""

import json
from statistics import median

import journal
import same  # of ../virtual-gpu
from checks import ON_VIRTUAL
from jobs import Job

STEPS = 30
REPLAYS = 110  # of a whole step: so many have to be missing before it is certain that steps are in graphs
FIRST_KNOWN = 10  # steps: an attach, a compilation and a warm-up come before
# What programs/phases.py asks of its GPU, ms.
ASKED_MS = {"compute_ns": 60, "wait_ns": 15, "optimizer_ns": 10}
# Of its kernels in the order of a step (forward, backward, beside, optimizer) those that make up a phase.
KERNELS = {"compute_ns": (0, 1), "wait_ns": (2,), "optimizer_ns": (3,)}
WITHIN = {True: 0.05, False: 0.02}  # on the virtual GPU small kernels wait for a busy host
HOST_US = {True: 1000, False: 300}  # on the virtual GPU, whose host has other things to do; on a real one
CAPTURED = {"graph": "A2", "callables": "A2"}
KNOWN = {"micro": "A7", "side": "A7", "callables": "A7", "compiled": "A7"}


def part(run, checks):
    alone = Case(run, "plain", is_watched=False).ended()
    plain = Case(run, "plain").ended()
    lengths(run, checks, plain)
    waits(run, checks, plain, alone)
    spent = [one.result.get("host_us") for one in (plain, alone)]
    cost = None if None in spent else spent[0] - spent[1]
    checks.at_most("A2", "more of the trainer's thread a step, all steps timed", HOST_US[bool(run.virtual)], cost, " µs")
    # All at once: of these nothing is timed, and a compiler takes long.
    names = ["micro", "side", "graph", "callables", "compiled"]
    if run.virtual:
        names.remove("compiled")
        checks.unseen(KNOWN["compiled"], "share of steps whose phases are known: compiled", "", ON_VIRTUAL + ": no Triton")
    started = {name: Case(run, name) for name in names}
    unwatched = Case(run, "compiled", is_watched=False) if "compiled" in names else None
    for name, case in started.items():
        looked_at(run, checks, name, case.ended())
    if unwatched:
        checks.equal("A7", "the compiled job's exit code, as without Paceline", unwatched.ended().code, started["compiled"].code)


class Case:
    """A case of programs/phases.py that runs."""

    def __init__(self, run, name, is_watched=True):
        label = "phases-" + name + ("" if is_watched else "-alone")
        folder = run.folder(label)
        self.run_dir = folder / "run"
        self.stats = folder / "stats"
        self.stats.mkdir()
        command = run.program("phases.py", name, "--out", folder / "result.json", "--steps", REPLAYS if name == "graph" else STEPS)
        command = run.watched(self.run_dir, command) if is_watched else command
        environment = run.environment(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", **({"VGPU_STATS": str(self.stats)} if run.virtual else {}))
        self.job, self.file = Job(command, environment, folder / "said"), folder / "result.json"
        self.code, self.result = None, {}

    def ended(self):
        self.code = self.job.end()
        if self.file.exists():
            self.result = json.loads(self.file.read_text())
        return self

    def steps(self):
        return [step for step in journal.events(self.run_dir, "step") if step["step"] >= FIRST_KNOWN]


def lengths(run, checks, case):
    """Each phase by the hook against the kernels of which it is made."""
    kernels = case.result.get("kernels_ms")
    for phase, asked in ASKED_MS.items():
        seen = [step["phases"][phase] / 1e6 for step in case.steps() if step["phases"]]
        if run.virtual:
            expected = asked
        elif kernels and len(kernels) == 4:
            expected = sum(kernels[index] for index in KERNELS[phase])
        else:
            checks.unseen("C", "length of %s" % phase[:-3], asked, "the profiler saw %s" % (kernels,))
            continue
        checks.near("C", "length of %s by the hook" % phase[:-3], expected, median(seen) if seen else None, WITHIN[bool(run.virtual)], " ms")


def waits(run, checks, case, alone):
    name = "calls that wait for the GPU, as without Paceline"
    if run.virtual:
        counted = []
        for one in (alone, case):
            stats = json.loads((one.stats / "0.json").read_text())
            counted.append(", ".join("%s %s" % (key, stats[key]) for key in same.COMPARED))
        checks.equal("A2", name + ", and kernels", *counted)
    elif alone.result.get("waits") is None:
        checks.unseen("A2", name, "as many", "the profiler saw nothing")
    else:
        checks.equal("A2", name, alone.result["waits"], case.result.get("waits"))


def looked_at(run, checks, name, case):
    if name in CAPTURED:
        checks.equal(CAPTURED[name], "capture beside the hook: %s" % name, "captured", case.result.get("captured", "exit %s" % case.code))
    if name == "graph":
        in_graphs(run, checks, case)
    if name in KNOWN:
        steps = case.steps()
        known = sum(bool(step["phases"]) for step in steps) / len(steps) if steps else None
        checks.at_least(KNOWN[name], "share of steps whose phases are known: %s" % name, 0.9, known)


def in_graphs(run, checks, case):
    """Steps that a graph replays: they train and cannot be observed, and the report says so."""
    name = "replays change the weights"
    if run.virtual:
        checks.unseen("A2", name, True, ON_VIRTUAL + ": it computes nothing")
    else:
        checks.equal("A2", name, True, case.result.get("moved"))
    expected = "steps in CUDA graphs are not seen"
    journal_, notes = (case.run_dir / "journal.ndjson").read_text(), "; ".join(journal.report(case.run_dir)["coverage"]["notes"])
    checks.equal("A7", "a note in the journal", expected, expected if expected in journal_ else "none")
    checks.equal("A7", "the same in the report", expected, expected if expected in notes else notes or "none")
