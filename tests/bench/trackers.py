"""What rows for trackers cost the training thread: a job of one rank under `paceline run`, rows every second against none.

    VENV/bin/python tests/bench/trackers.py PACELINE [--pairs 10] [--seconds 6]     (VENV: tests/setup/venv.sh tests/setup/trackers.txt VENV target/realenv/torch)

Blocks of steps with and without the thread alternate in one process, so that both run under the same conditions. A step
is a matrix product or two in many small Python calls, so that contention for the interpreter shows. Rows go to W&B
(offline), MLflow (files) and TensorBoard at once, 15 times as often as by default.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time


def train(pairs, seconds, out):
    import mlflow
    import paceline
    import torch
    import wandb
    from paceline import _stream
    from torch.utils.tensorboard import SummaryWriter

    torch.set_num_threads(1)
    wandb.init(project="bench", dir=out, mode="offline", settings={"console": "off"})
    mlflow.set_tracking_uri("file://" + os.path.join(out, "mlflow"))
    mlflow.start_run()
    writer = SummaryWriter(out)
    net = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(20)))
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    inputs = torch.randn(16, 64)
    written = []  # CPU time of the tracker thread per row, ms
    write = _stream.Stream._write
    before = [0]

    def timed(self, row, is_last):
        write(self, row, is_last)
        now = time.thread_time_ns()
        # A new thread starts at zero.
        written.append((now - (before[0] if before[0] < now else 0)) / 1e6)
        before[0] = 0 if is_last else now

    _stream.Stream._write = timed

    def step():
        net(inputs).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        wandb.log({"loss": 0.0})

    def block(on):
        """Wall and CPU times of its steps, in µs."""
        tracking = paceline.track(wandb=True, mlflow=True, tensorboard=writer, every=1) if on else None
        took, cpu, end = [], [], time.monotonic() + seconds
        while time.monotonic() < end:
            began, began_cpu = time.perf_counter_ns(), time.thread_time_ns()
            step()
            took.append((time.perf_counter_ns() - began) / 1e3)
            cpu.append((time.thread_time_ns() - began_cpu) / 1e3)
            time.sleep(0.002)
        if tracking is not None:
            tracking.close()
        return took, cpu

    for _ in range(50):
        step()
    block(True)  # loads everything that the first row needs
    stream = _stream.Stream()
    stream.ask([_stream._sinks.Wandb(), _stream._sinks.Mlflow(), _stream._sinks.TensorBoard(writer)], 3600)
    first, written[:] = max(written), []
    result = {False: [], True: []}
    for number in range(pairs):
        for on in (False, True) if number % 2 == 0 else (True, False):
            result[on].append(block(on))
    wall, cpu = ({on: [middle(block[which]) for block in blocks] for on, blocks in result.items()} for which in (0, 1))
    every_look = []
    for _ in range(1000):
        stream._look_at, began = 0, time.perf_counter_ns()
        stream.look(1)
        every_look.append((time.perf_counter_ns() - began) / 1e3)
    print(json.dumps({
        "pairs": pairs,
        "steps without rows": sum(len(block[0]) for block in result[False]),
        "wall time of a step without, with, µs": [round(statistics.median(wall[on]), 1) for on in (False, True)],
        "its ratio": ratio(wall),
        "CPU time of the training thread without, with, µs": [round(statistics.median(cpu[on]), 1) for on in (False, True)],
        "its ratio ": ratio(cpu),
        "rows": len(written),
        "CPU time of the other thread for a row, ms (median, longest)": [round(statistics.median(written), 2), round(max(written), 2)],
        "for the first, with what it loads, ms": round(first, 1),
        "a look of the training thread, once a second, µs": round(statistics.median(every_look), 2),
    }, ensure_ascii=False, indent=1))  # fmt: skip


def middle(took):
    """The mean without the longest hundredth, which is noise."""
    return statistics.mean(sorted(took)[: len(took) * 99 // 100])


def ratio(blocks):
    """The ratio of with to without, in pairs: the median, and a 95 % interval by the ranks of the ratios."""
    ratios = sorted(on / off for off, on in zip(blocks[False], blocks[True]))
    rank = max(0, int(len(ratios) / 2 - 0.98 * len(ratios) ** 0.5))
    return "%.4f (%.4f to %.4f)" % (statistics.median(ratios), ratios[rank], ratios[-1 - rank])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paceline")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=6)
    parser.add_argument("--out", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.out:
        return train(options.pairs, options.seconds, options.out)
    with tempfile.TemporaryDirectory() as out:
        environment = dict(os.environ, OMP_NUM_THREADS="1", WANDB_SILENT="true", MLFLOW_ALLOW_FILE_STORE="true")
        command = [os.path.abspath(options.paceline), "run", "--quiet", "--run-dir", os.path.join(out, "run"), "--", sys.executable]
        command += [os.path.abspath(__file__), options.paceline, "--pairs", str(options.pairs), "--seconds", str(options.seconds)]
        return subprocess.run(command + ["--out", out], env=environment, cwd=out).returncode


if __name__ == "__main__":
    sys.exit(main())
