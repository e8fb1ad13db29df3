"""What the hook costs the host where the training stream waits often, as it does with FSDP: CPU time of the trainer's thread a
step and a wait, with the hook and without.

HOME/torch-cuda/bin/python hook_cost.py --hook sidecar/probe/python
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time

WAITS = (20, 200, 1000)
STEPS, WARM_UP, ROUNDS = 40, 10, 3


def trainer(waits):
    """Prints the CPU time of a step, ns."""
    import torch

    parameter = torch.nn.Parameter(torch.zeros(8, device="cuda"))
    parameter.grad = torch.zeros_like(parameter)
    optimizer = torch.optim.SGD([parameter], lr=0)
    training, other = torch.cuda.current_stream(), torch.cuda.Stream()
    events = [torch.cuda.Event() for _ in range(waits)]

    def step():
        for event in events:
            event.record(other)
            training.wait_event(event)
        optimizer.step()

    for _ in range(WARM_UP):
        step()
    torch.cuda.synchronize()
    spent = 0
    for index in range(STEPS):
        since = time.thread_time_ns()
        step()
        spent += time.thread_time_ns() - since
        if index % 4 == 3:
            torch.cuda.synchronize()  # not counted: how full a queue is is no matter of the hook
    print(spent // STEPS)


def measured(waits, hook):
    with tempfile.TemporaryDirectory() as rings:
        environment = dict(os.environ, PYTHONPATH=os.path.abspath(hook) if hook else "", PACELINE_RING_DIR=rings)
        environment.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0")
        command = [sys.executable, os.path.abspath(__file__), "--trainer", str(waits)]
        return int(subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE).stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hook", help="a folder with the Python hook")
    parser.add_argument("--trainer", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.trainer is not None:
        return trainer(options.trainer)
    print("| waits a step | µs a step without | with | more | µs a wait | of a step of 100 ms |")
    print("|---|---|---|---|---|---|")
    for waits in WAITS:
        # The least of some rounds: what else the machine does only adds.
        without = min(measured(waits, None) for _ in range(ROUNDS)) / 1e3
        watched = min(measured(waits, options.hook) for _ in range(ROUNDS)) / 1e3
        more = watched - without
        row = (waits, without, watched, more, more / waits, more / 1e3)
        print("| %d | %.0f | %.0f | %.0f | %.2f | %.2f %% |" % row, flush=True)
    return None


if __name__ == "__main__":
    main()
