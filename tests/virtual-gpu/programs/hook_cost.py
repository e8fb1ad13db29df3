"""What the hook costs the trainer's thread where the training stream waits often, as it does with FSDP: CPU time by the number of
waits, in steps of 100 ms of the GPU.

HOME/torch-cuda/bin/python hook_cost.py --hook sidecar/probe/python

The first steps are timed in all their waits, later ones now and then (_sampling.py). Three kinds of steps are told apart in one
process: timed ones, those after them (which read the events) and the others; a process without the hook is the measure of these.
Ends with 1 where the hook costs more than 1/1000 of a step.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from statistics import median

WAITS = (20, 200, 1000)
STEP_MS = 100.0
AT_START, STEPS = 300, 128  # steps until the share of timed steps is decided; steps that are measured then
SIDE = 15872  # of matrices: 2 * SIDE^3 operations
MOST = 1 / 1000  # of a step


def trainer(waits):
    """Prints, for each measured step: its CPU time in ns, whether it was timed."""
    import torch

    parameter = torch.nn.Parameter(torch.zeros(8, device="cuda"))
    parameter.grad = torch.zeros_like(parameter)
    optimizer = torch.optim.SGD([parameter], lr=0)
    training, other = torch.cuda.current_stream(), torch.cuda.Stream()
    events = [torch.cuda.Event() for _ in range(waits)]
    matrix = torch.empty(SIDE, SIDE, device="cuda")
    product = torch.empty_like(matrix)

    def step():
        torch.mm(matrix, matrix, out=product)
        for event in events:
            event.record(other)
            training.wait_event(event)
        optimizer.step()

    step()
    hook = sys.modules.get("paceline._tracker")
    timeline = hook.tracker.timeline if hook else None
    spent = []
    for _ in range(AT_START + STEPS):
        is_timed = timeline is not None and timeline.is_timed
        since = time.thread_time_ns()
        step()
        spent.append((time.thread_time_ns() - since, is_timed))
        torch.cuda.synchronize()  # not counted; the next step reads this one's events
    print(json.dumps(spent))


def run(waits, hook):
    with tempfile.TemporaryDirectory() as rings:
        environment = dict(os.environ, PYTHONPATH=os.path.abspath(hook) if hook else "", PACELINE_RING_DIR=rings)
        operations = 2 * SIDE**3
        environment.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", VGPU_TFLOPS=str(operations / STEP_MS / 1e9))
        command = [sys.executable, os.path.abspath(__file__), "--trainer", str(waits)]
        return json.loads(subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE).stdout)


def kinds(spent):
    """Median CPU time in µs of timed steps, of those after them and of the others; (0: none). And the share of timed steps."""
    timed, after, others = [], [], []
    for (_, was_timed), (cost, is_timed) in zip(spent, spent[1:]):
        (timed if is_timed else after if was_timed else others).append(cost / 1e3)
    return [median(some) if some else 0.0 for some in (timed, after, others)], len(timed) / len(spent[1:])


def measured(waits, hook):
    """µs a step: without the hook, and more with it in a step at the start, in a timed step later (with its reading), in any
    other, and on average later; share of timed steps."""
    without = median(cost for cost, _ in run(waits, None)[AT_START:]) / 1e3
    spent = run(waits, hook)
    (first, *_), _ = kinds(spent[32:128])
    (timed, after, others), share = kinds(spent[AT_START - 1 :])
    if not others:  # all are timed
        others, after = without, without
    marks = timed - others + (after - others if after else 0)
    return without, first - without, marks, others - without, others - without + share * marks, share


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hook", help="a folder with the Python hook")
    parser.add_argument("--trainer", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.trainer is not None:
        return trainer(options.trainer)
    print("| waits a step | µs without | more at the start | timed steps later | µs more in one | µs a wait | else | on average | of 100 ms |")
    print("|---|---|---|---|---|---|---|---|---|")
    is_much = False
    for waits in WAITS:
        without, first, marks, others, mean, share = measured(waits, options.hook)
        of_step = mean / STEP_MS / 1e3
        is_much |= of_step > MOST
        row = (waits, without, first, 1 / share if share else 0, marks, marks / waits, others, mean, 100 * of_step)
        print("| %d | %.0f | %.0f | 1 in %.0f | %.0f | %.2f | %.0f | %.0f | %.3f %% |" % row, flush=True)
    return 1 if is_much else 0


if __name__ == "__main__":
    sys.exit(main())
