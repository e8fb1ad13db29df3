#!/usr/bin/env python3
"""Whether the hook changes how trainers exit: the same DDP job over gloo, run many times with the hook and without it,
interleaved, and its exit codes counted.

    target/realenv/torch/bin/python tests/bench/exits/run.py [--runs 500] [--ranks 2]

Importing torch takes seconds and an exit none, so each side is a server that imports torch once and forks a process per
rank: the comparison covers only the exit of a PyTorch process. The forked hook is configured to treat its process as a
trainer. `--program`: destroy, leave (no destroy_process_group), pending (asynchronous collectives in progress), loader
(with workers).

A rank hangs if it and its workers used almost no CPU time for a minute, or have not ended after ten: on a busy machine
a rank may only be slow, and time in which the whole benchmark was stopped does not count. The stacks of all threads of
a hanging rank and its workers are printed: native ones if gdb is installed, then Python's.
"""

import argparse
import collections
import faulthandler
import json
import math
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
HOOK = os.path.join(HERE, "..", "..", "..", "sidecar", "probe", "python")
PROGRAMS = ("destroy", "leave", "pending", "loader")
IDLE_S = 60
IDLE_CPU_S = 0.1  # in IDLE_S; a loop that waits for a worker polls every 5 s
MOST_S = 600
STACKS_S = 2  # the time for Python to write its stacks
GDB_S = 120


def serve():
    """One side: each stdin line is a run, answered by a line with its ranks' exit codes; "hung" is possible too."""
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
    print("ready", flush=True)
    for line in sys.stdin:
        run = json.loads(line)
        children = []
        for rank in range(run["ranks"]):
            child = os.fork()
            if child == 0:
                os.setpgid(0, 0)  # a process group of the rank and its workers
                if _helper is not None:
                    _helper._forked = False
                os.environ.update(run["environment"], RANK=str(rank), LOCAL_RANK=str(rank))
                log = os.open(run["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
                os.dup2(log, 1)
                os.dup2(log, 2)
                faulthandler.register(signal.SIGUSR1, file=2)  # inherited by workers
                return train(torch, run["program"])  # exits through the end of the interpreter
            children.append(child)
        print(json.dumps(exit_codes(children, run["log"])), flush=True)


def exit_codes(ranks, log):
    """The exit codes of these processes. The stacks of hanging ones are logged, and they are killed."""
    hung = hung_ranks(ranks)
    if hung:
        write_native_stacks(hung, log)
        signal_groups(hung, signal.SIGUSR1)  # kills a process whose interpreter has already ended
        still_running(hung, STACKS_S)
        signal_groups(hung, signal.SIGKILL)
    codes = [os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1]) for rank in ranks]
    return ["hung" if rank in hung else code for rank, code in zip(ranks, codes)]


def hung_ranks(ranks):
    """The ranks that never end."""
    used = collections.deque(maxlen=IDLE_S)
    for _ in range(MOST_S):
        used.append(cpu_s(ranks))
        if len(used) == IDLE_S and used[-1] - used[0] < IDLE_CPU_S:
            break
        running = still_running(ranks, 1)  # time in which the benchmark is stopped counts as one second
        if not running:
            return []
        if running != ranks:
            used.clear()
        ranks = running
    return ranks


def cpu_s(groups):
    """CPU time of all processes in these process groups, including children that they waited for."""
    return sum(sum(map(int, fields[11:15])) for _, fields in members(groups)) / os.sysconf("SC_CLK_TCK")


def members(groups):
    """The PID of each process in these process groups, and its fields in /proc/PID/stat from the state on (proc(5))."""
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open("/proc/%s/stat" % process) as stat:
                fields = stat.read().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        if int(fields[2]) in groups:
            yield process, fields


def still_running(processes, seconds):
    """The `processes` that have not ended after `seconds`."""
    running = {os.pidfd_open(process): process for process in processes}
    ends = select.poll()
    for descriptor in running:
        ends.register(descriptor, select.POLLIN)
    deadline = time.monotonic() + seconds
    while running and (ended := ends.poll(1000 * max(deadline - time.monotonic(), 0))):
        for descriptor, _ in ended:
            ends.unregister(descriptor)
            os.close(descriptor)
            del running[descriptor]
    for descriptor in running:
        os.close(descriptor)
    return list(running.values())


def signal_groups(groups, number):
    for group in groups:
        try:
            os.killpg(group, number)
        except ProcessLookupError:
            pass


def write_native_stacks(groups, log):
    """Logs the stacks of all threads in these process groups with gdb."""
    gdb = shutil.which("gdb")
    with open(log, "a") as file:
        for process, fields in members(groups) if gdb else ():
            print("process %s of the rank with process id %s:" % (process, fields[2]), file=file, flush=True)
            command = [gdb, "--batch", "--nx", "-p", process, "-ex", "thread apply all backtrace 40"]
            try:
                subprocess.run(command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.DEVNULL, timeout=GDB_S)
            except subprocess.TimeoutExpired:
                os.kill(int(process), signal.SIGCONT)  # gdb stopped it


def train(torch, program):
    """A rank: 20 steps of DDP, then the selected end."""
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
        self.slowest_s = 0
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
            began = time.monotonic()
            codes = json.loads(self.server.stdout.readline())
            self.slowest_s = max(self.slowest_s, time.monotonic() - began)
        self.codes.update(codes)
        if any(codes):
            with open(log) as said:
                print("hook %s, run %d: %s\n%s" % ("on" if self.hook else "off", number, codes, said.read()[-100_000:]), flush=True)
        elif self.hook and not os.listdir(self.rings):
            raise SystemExit("the hook wrote no ring: nothing was compared")
        if os.path.exists(log):
            os.unlink(log)
        for ring in os.listdir(self.rings):
            path = os.path.join(self.rings, ring)
            if os.path.isfile(path):
                os.unlink(path)


def reserved_port():
    """A socket whose port is reserved for rank 0, which can listen there because this socket does not."""
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
        for side in sides:
            side.server.stdout.readline()  # "ready"
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
        print("hook %-3s  %d of %d exits were not 0 (upper 95 %% bound %.2f %%), the slowest run took %.0f s  %s" % (
            "on" if side.hook else "off", failed, trials, 100 * upper_bound(failed, trials), side.slowest_s, others or ""))  # fmt: skip


if __name__ == "__main__":
    main()
