#!/usr/bin/env python3
"""Whether the hook changes how trainers exit: the same DDP job over gloo, run many times with the hook and without it,
interleaved, and its exit codes counted.

    target/realenv/torch/bin/python tests/bench/exits/run.py [--runs 500] [--ranks 2]

Importing torch takes seconds and an exit none, so each side is a server that has imported torch once and forks a process
for each rank: what is compared is how a process of PyTorch ends. The hook in the forks is told that they are trainers.
`--program`: destroy, leave (no destroy_process_group), pending (asynchronous collectives under way), loader (with workers).
"""

import argparse
import collections
import json
import math
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
HOOK = os.path.join(HERE, "..", "..", "..", "sidecar", "probe", "python")
PROGRAMS = ("destroy", "leave", "pending", "loader")
TIMEOUT_S = 60


def serve():
    """One side: each line on stdin is a run, and gets a line with the exit codes of its ranks."""
    import torch
    import torch._dynamo  # noqa: F401 - the first optimizer loads it
    import torch.distributed
    import torch.nn.parallel
    import torch.utils.data  # noqa: F401

    if "paceline._hook" in sys.modules:
        from paceline import _helper
    else:
        _helper = None
    torch.set_num_threads(1)
    for line in sys.stdin:
        run = json.loads(line)
        children = []
        for rank in range(run["ranks"]):
            child = os.fork()
            if child == 0:
                if _helper is not None:
                    _helper._forked = False
                os.environ.update(run["environment"], RANK=str(rank), LOCAL_RANK=str(rank))
                log = os.open(run["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
                os.dup2(log, 1)
                os.dup2(log, 2)
                signal.alarm(TIMEOUT_S)
                return train(torch, run["program"])  # and out, through the end of the interpreter
            children.append(child)
        codes = [os.waitpid(child, 0)[1] for child in children]
        print(json.dumps([-os.WTERMSIG(code) if os.WIFSIGNALED(code) else os.WEXITSTATUS(code) for code in codes]), flush=True)


def train(torch, program):
    """What a rank does: 20 steps of DDP, then the end that is asked for."""
    distributed = torch.distributed
    distributed.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = torch.utils.data.TensorDataset(torch.randn(160, 64))
    loader = torch.utils.data.DataLoader(data, batch_size=8, num_workers=1 if program == "loader" else 0)
    for (batch,) in loader:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    if program == "pending":
        train.works = [distributed.all_reduce(torch.ones(1 << 16), async_op=True) for _ in range(4)]
    if program == "destroy":
        distributed.destroy_process_group()


class Side:
    """A server, with the hook or without it."""

    def __init__(self, folder, hook):
        self.hook = hook
        self.codes = collections.Counter()
        rings = os.path.join(folder, "rings-on" if hook else "rings-off")
        os.mkdir(rings, 0o700)
        self.rings = rings
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PACELINE_")}
        environment.pop("PYTHONPATH", None)
        if hook:
            environment.update(PACELINE_RING_DIR=rings, PYTHONPATH=HOOK)
        self.server = subprocess.Popen(
            [sys.executable, os.path.abspath(__file__), "--serve"],
            env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(self, folder, number, ranks, program):
        log = os.path.join(folder, "log-%d" % number)
        with reserved_port() as port:
            store = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port.getsockname()[1]), "WORLD_SIZE": str(ranks)}
            job = {"ranks": ranks, "program": program, "environment": store, "log": log}
            self.server.stdin.write(json.dumps(job) + "\n")
            self.server.stdin.flush()
            codes = json.loads(self.server.stdout.readline())
        self.codes.update(codes)
        if any(codes):
            with open(log) as said:
                print("hook %s, run %d: %s\n%s" % ("on" if self.hook else "off", number, codes, said.read()[-2000:]), flush=True)
        elif self.hook and not os.listdir(self.rings):
            raise SystemExit("the hook wrote no ring: nothing was compared")
        if os.path.exists(log):
            os.unlink(log)
        for ring in os.listdir(self.rings):
            path = os.path.join(self.rings, ring)
            if os.path.isfile(path):
                os.unlink(path)


def reserved_port():
    """A socket whose port nobody else gets, except rank 0, which may listen there because this socket does not."""
    port = socket.socket(socket.AF_INET)
    port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    port.bind(("", 0))
    return port


def upper_bound(failures, trials):
    """Exact upper 95 % bound of a proportion (Clopper and Pearson), by bisection of the binomial sum."""
    low, high = 0.0, 1.0
    for _ in range(60):
        share = (low + high) / 2
        below = sum(math.comb(trials, k) * share**k * (1 - share) ** (trials - k) for k in range(failures + 1))
        low, high = (share, high) if below > 0.05 else (low, share)
    return high


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=500, help="of each side")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--program", choices=PROGRAMS, action="append")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        return serve()
    programs = options.program or list(PROGRAMS)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        sides = [Side(folder, hook) for hook in (False, True)]
        for number in range(options.runs):
            for side in sides if number % 2 else sides[::-1]:
                side.run(folder, 2 * number + side.hook, options.ranks, programs[number % len(programs)])
            if sys.stderr.isatty():
                print("\r%d of %d" % (number + 1, options.runs), end="", file=sys.stderr)
        for side in sides:
            side.server.stdin.close()
            side.server.wait()
    print("%d runs of %d ranks on each side, %s, %.0f s" % (options.runs, options.ranks, ", ".join(programs), time.monotonic() - began))
    for side in sides:
        trials = sum(side.codes.values())
        failed = trials - side.codes[0]
        others = {code: count for code, count in side.codes.items() if code}
        print("hook %-3s  %d of %d exits were not 0 (upper 95 %% bound %.2f %%)  %s" % (
            "on" if side.hook else "off", failed, trials, 100 * upper_bound(failed, trials), others or ""))  # fmt: skip


if __name__ == "__main__":
    main()
