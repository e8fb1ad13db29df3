"""Part 6: an all-reduce in a CUDA graph, with the plugin, which times from early on, and without it.

What NCCL is asked for while a graph captures stays in the graph, and times after replays are another collective's
(NCCL's pull requests 2368 and 2369): the plugin may not time anything then, and nothing may hang.
"""

import json

import journal
from checks import ON_VIRTUAL
from jobs import Job

RANKS = 2
CAPTURED_AT = 24  # steps: BEFORE of programs/capture.py
DESTROY_S = 20


def part(run, checks):
    # From the first steps on, each collective: the default would begin after the capture.
    with_plugin, run_dir = graph(run, checks, "with", PACELINE_NCCL_AFTER="4", PACELINE_NCCL_SAMPLE="1")
    without, _ = graph(run, checks, "without", NCCL_PROFILER_PLUGIN="none")
    for key, name in (("host_nodes", "calls of the host in the graph"), ("nodes", "nodes of the graph")):
        found, expected = (sorted({str(result.get(key)) for result in ranks}) for ranks in (with_plugin, without))
        if run.virtual and expected == ["None"]:
            checks.unseen("A5", name + ", as without the plugin", "none", ON_VIRTUAL + ": nodes have no types")
        else:
            alike = found == expected and len(with_plugin) == len(without) == RANKS
            checks.add("A5", name + ", as without the plugin", ", ".join(expected), ", ".join(found), alike)
    steps = sorted(journal.timed(run_dir))
    checks.at_least("A5", "steps timed before the capture", 8, sum(step <= CAPTURED_AT for step in steps))
    # The steps that are open when a capture is seen may still be reported.
    checks.equal("A5", "steps timed after it", 0, sum(step > CAPTURED_AT + 1 for step in steps))


def graph(run, checks, name, **environment):
    """What the ranks wrote."""
    out, run_dir = run.folder("captured-" + name), run.scratch / ("captured-%s-run" % name)
    command = run.watched(run_dir, run.torchrun(RANKS, "capture.py", "--out", out))
    code = Job(command, run.environment(**environment), run.scratch / "captured.said").end()
    ranks = [json.loads(path.read_text()) for path in sorted(out.glob("*.json"))]
    checks.equal("A5", "the job's exit code, %s the plugin" % name, 0, code)
    captures = ", ".join(sorted({result["captured"] for result in ranks})) or "nothing"
    checks.equal("A5", "capture, %s the plugin" % name, "captured", captures)
    checks.at_most("A5", "end of NCCL, %s the plugin" % name, DESTROY_S, max((t["destroy_s"] for t in ranks), default=None), " s")
    return ranks, run_dir
