"""What the hook costs the trainer's thread where the training stream waits often, as it does with FSDP: CPU time by the number of
waits, in steps of 100 ms of the GPU.

HOME/torch-cuda/bin/python hook_cost.py --hook sidecar/probe/python

In the first 256 steps all waits are timed, later in some steps only (_sampling.py): the average cost is that of an
untimed step plus a timed step's share. In one process, the hook is switched on and off in alternating blocks of steps.
Exits with 1 if the average is more than 1/1000 of a step.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from statistics import mean

WAITS = (20, 200, 1000)
STEP_MS = 100.0
BLOCK, SETTLING = 16, 3  # steps with the hook on, then off; of these, the first ones do not count
AT_START, LATER = 272, 128  # steps with the hook until the share of timed steps is decided; steps measured after that
SIDE = 15872  # of the matrices: 2 * SIDE^3 operations
MOST = 1 / 1000  # of a step


def trainer(waits):
    """Prints each step's kind and CPU time in ns, and the final sampling period."""
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
    from paceline._tracker import tracker

    spent = []
    for index in range(2 * (AT_START + LATER)):
        is_on = index // BLOCK % 2 == 0
        tracker.on, tracker.retired = is_on, not is_on
        kind = "off" if not is_on else "timed" if tracker.timeline.is_timed else "on"
        since = time.thread_time_ns()
        step()
        spent.append((kind, time.thread_time_ns() - since))
        torch.cuda.synchronize()  # not measured; the next step reads this one's events
    print(json.dumps([spent, tracker.timeline.sampling.period]))


def measured(waits, hook):
    """µs per step: without the hook; the cost of a timed step with its reading; of an untimed step. And the sampling
    period."""
    with tempfile.TemporaryDirectory() as rings:
        environment = dict(os.environ, PYTHONPATH=os.path.abspath(hook), PACELINE_RING_DIR=rings)
        operations = 2 * SIDE**3
        environment.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", VGPU_TFLOPS=str(operations / STEP_MS / 1e9))
        command = [sys.executable, os.path.abspath(__file__), "--trainer", str(waits)]
        spent, period = json.loads(subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE).stdout)

    def cost(steps, kinds):
        """Mean µs of a step of these kinds, since records of several steps are written in one of them; without the most
        expensive hundredth, which was interrupted. A step after a timed one reads that one's events."""
        pairs = enumerate(zip(steps[:1] + steps, steps))
        each = sorted(ns for at, ((before, _), (kind, ns)) in pairs if at % BLOCK >= SETTLING and before == kind == kinds)
        return mean(each[: len(each) - len(each) // 100]) / 1e3

    early, late = spent[: 2 * AT_START], spent[2 * AT_START :]
    without = cost(late, "off")
    timed = cost(early, "timed") - cost(early, "off")
    return without, timed, timed if period == 1 else cost(late, "on") - without, period


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hook", default="sidecar/probe/python", help="a folder with the Python hook")
    parser.add_argument("--trainer", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.trainer is not None:
        return trainer(options.trainer)
    print("| waits a step | without the hook | more in a timed step | a wait | timed | more in others | on average | of 100 ms |")
    print("|---|---|---|---|---|---|---|---|")
    is_much = False
    for waits in WAITS:
        without, timed, others, period = measured(waits, options.hook)
        average = others + (timed - others) / period
        is_much |= average / 1e3 > STEP_MS * MOST
        row = (waits, without, timed, timed / waits, period, others, average, average / 1e3 / STEP_MS * 100)
        print("| %d | %.0f µs | %.0f µs | %.1f µs | 1 step in %d | %.0f µs | %.0f µs | %.3f %% |" % row, flush=True)
    return 1 if is_much else 0


if __name__ == "__main__":
    sys.exit(main())
