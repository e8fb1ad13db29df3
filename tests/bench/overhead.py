"""What the hook costs a real DDP job: on against off, in pairs, in one run.

    PATH=target/realenv/torch/bin:$PATH target/realenv/torch/bin/python tests/bench/overhead.py [--pairs 10] [--steps 300]

Both sides run under `paceline run`; off is PACELINE_HOOK=off. Per step: CPU time of the training thread
(CLOCK_THREAD_CPUTIME_ID) and wall time, the median over the steps of each rank, then the mean of the ranks. The table
gives the mean difference of the pairs with its 95 % confidence interval (Student's t).
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# Two-sided 95 % quantiles of Student's t by degrees of freedom; beyond, the normal quantile is close enough.
T95 = {3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 11: 2.201, 14: 2.145, 19: 2.093}


def train(steps, out):
    """One rank: a small model, a sleep that simulates GPU work, real gloo all-reduces."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    layers = [layer for _ in range(4) for layer in (torch.nn.Linear(128, 128), torch.nn.ReLU())]
    model = DistributedDataParallel(torch.nn.Sequential(*layers, torch.nn.Linear(128, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    data = torch.utils.data.DataLoader(torch.randn(32 * (steps + 1), 128), batch_size=32)
    cpu, wall = [], []
    for x in data:
        began, began_cpu = time.perf_counter_ns(), time.thread_time_ns()
        time.sleep(0.01)
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        cpu.append((time.thread_time_ns() - began_cpu) / 1e3)
        wall.append((time.perf_counter_ns() - began) / 1e3)
    with open("%s.%d" % (out, dist.get_rank()), "w") as file:
        # The first steps load and compile code on both sides.
        json.dump({"cpu": statistics.median(cpu[20:]), "wall": statistics.median(wall[20:])}, file)
    dist.destroy_process_group()


def run(hook, ranks, steps, scratch):
    """One job; returns means over its ranks, in µs."""
    out = os.path.join(scratch, "out")
    environment = dict(os.environ, OMP_NUM_THREADS="1", PACELINE_HOOK="on" if hook else "off")
    command = [os.path.join(ROOT, "target/release/paceline"), "run", "--quiet", "--run-dir", os.path.join(scratch, "run")]
    command += ["--", "torchrun", "--standalone", "--nproc-per-node=%d" % ranks, os.path.abspath(__file__)]
    command += ["--trainer", out, "--steps", str(steps)]
    done = subprocess.run(command, env=environment, cwd=scratch, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if b"terminate called without an active exception" in done.stdout:
        # PyTorch 2.15 with gloo sometimes aborts at exit, without Paceline too.
        return run(hook, ranks, steps, scratch)
    if done.returncode:
        sys.exit("hook %s: the job ended with %d\n%s" % (hook, done.returncode, done.stdout.decode(errors="replace")))
    results = []
    for rank in range(ranks):
        with open("%s.%d" % (out, rank)) as file:
            results.append(json.load(file))
    with open(os.path.join(scratch, "run/report.json")) as file:
        seen = json.load(file)["coverage"]["ranks_seen"]
    assert seen == (ranks if hook else 0), "hook %s, but %d ranks were seen" % (hook, seen)
    return {name: statistics.mean(result[name] for result in results) for name in ("cpu", "wall")}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--trainer", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.trainer:
        return train(arguments.steps, arguments.trainer)
    pairs = []
    for number in range(arguments.pairs):
        # Off-on, then on-off: drift of the machine affects both equally.
        order = (False, True) if number % 2 == 0 else (True, False)
        pair = {}
        for hook in order:
            with tempfile.TemporaryDirectory() as scratch:
                pair[hook] = run(hook, arguments.ranks, arguments.steps, scratch)
        pairs.append(pair)
        print("pair %d/%d" % (number + 1, arguments.pairs), file=sys.stderr)
    print("%d pairs, %d ranks, %d steps each" % (len(pairs), arguments.ranks, arguments.steps))
    print("| per step, µs | off | on | difference | 95 % interval | share |")
    print("|---|---|---|---|---|---|")
    for name, words in (("cpu", "CPU time of the training thread"), ("wall", "wall time")):
        off = statistics.mean(pair[False][name] for pair in pairs)
        on = statistics.mean(pair[True][name] for pair in pairs)
        differences = [pair[True][name] - pair[False][name] for pair in pairs]
        error = statistics.stdev(differences) / math.sqrt(len(differences)) * T95.get(len(differences) - 1, 2.26)
        mean = statistics.mean(differences)
        row = (words, off, on, mean, mean - error, mean + error, 100 * mean / off)
        print("| %s | %.0f | %.0f | %+.1f | %+.1f to %+.1f | %+.2f %% |" % row)


if __name__ == "__main__":
    main()
