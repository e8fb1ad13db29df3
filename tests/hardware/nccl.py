#!/usr/bin/env python3
"""What of NCCL only a machine with a GPU can show: one rank, two ranks (on one GPU where there is only one, which takes
NCCL 2.30), each beside the same all-reduce of PyTorch on the same library, turn by turn in one run; and what the node and
its GPUs are.

    cargo build --release -p paceline-nccl-bench --bin paceline-nccl-bench --examples
    tests/hardware/nccl.py

Needs python3 with a PyTorch that has CUDA. Prints tables for docs/hardware.md; exits 1 when a figure of ours is more than
2 % away from PyTorch's, 3 when there is nothing to measure on. `--cpu` does the same over TCP beside gloo, to see that this
program works where there is no GPU; the figures then say nothing.
"""

import argparse
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
WITHIN = 0.02


def main():
    options = arguments()
    if options.rank is not None:
        return rank(options)
    program = ROOT / "target" / options.profile / "paceline-nccl-bench"
    node = ROOT / "target" / options.profile / "examples" / "node"
    pair = node.with_name("pair")
    for built in (program, node, pair):
        if not built.exists():
            sys.exit(f"{built} is not built: see the head of {__file__}")
    import torch

    gpus = torch.cuda.device_count()
    if not options.cpu and gpus == 0:
        print("PyTorch sees no GPU: nothing to measure on", file=sys.stderr)
        return 3
    library = None if options.cpu else nccl_library()
    bad = 0
    for ranks in (1, 2):
        bad += compare(options, program, ranks, library, gpus)
    print("\n## The node, and what each GPU does by itself\n")
    print(run([node] + (["cpu"] if options.cpu else []), {}))
    print("\n## A preflight of two nodes that both are this machine\n")
    print(run([pair, program], {"NCCL_MULTI_RANK_GPU_ENABLE": "1", **({"PACELINE_NCCL_LIB": library} if library else {})}))
    return 1 if bad and not options.cpu else 0


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cpu", action="store_true", help="over TCP beside gloo, where there is no GPU")
    parser.add_argument("--profile", default="release", help="which build of ours to run")
    parser.add_argument("--sizes", default="1048576,16777216,268435456,1073741824", help="bytes")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.sizes = [int(size) for size in options.sizes.split(",")]
    return options


def nccl_library():
    """The library that PyTorch has loaded: both are to measure the same."""
    import torch

    torch.cuda.nccl.version()
    with open("/proc/self/maps", encoding="utf-8") as maps:
        loaded = {line.split()[-1] for line in maps if "libnccl.so" in line}
    # A PyTorch that carries NCCL within itself has none: then ours finds its own, and the tables say which.
    return loaded.pop() if loaded else None


def compare(options, program, ranks, library, gpus):
    """One table; how many rows are off."""
    ours, theirs, about = {}, {}, {}
    for _ in range(options.rounds):
        for size in options.sizes:
            about, time = our_time(options, program, ranks, library, gpus, size)
            ours.setdefault(size, []).append(time)
        for size, time in torch_times(options, ranks).items():
            theirs.setdefault(size, []).append(time)
    sharing = "" if options.cpu or gpus >= ranks else ", sharing one GPU"
    print(f"\n## {ranks} rank{'s' if ranks > 1 else ''}{sharing}: {about}\n")
    print("| bytes | paceline, us | PyTorch, us | algbw, GB/s | busbw, GB/s | PyTorch's busbw | ratio |")
    print("|---:|---:|---:|---:|---:|---:|---:|")
    bad, factor = 0, 2 * (ranks - 1) / ranks
    for size in options.sizes:
        mine, other = statistics.median(ours[size]), statistics.median(theirs[size])
        ratio = other / mine
        bad += abs(ratio - 1) > WITHIN
        bandwidth = [size / time / 1e3 for time in (mine, other)]
        print(
            f"| {size} | {mine:.1f} | {other:.1f} | {bandwidth[0]:.2f} | {bandwidth[0] * factor:.2f} "
            f"| {bandwidth[1] * factor:.2f} | {ratio:.3f} |"
        )
    return bad


def our_time(options, program, ranks, library, gpus, size):
    """What carried it, and the median time of an iteration in place, microseconds."""
    command = [program, "--ranks", str(ranks), "-b", str(size), "-e", str(size), "-n", str(options.iterations), "--json"]
    command += ["--transport", "tcp"] if options.cpu else ["--transport", "nccl"]
    command += ["--nccl-lib", library] if library else []
    command += ["--share-gpus"] if not options.cpu and gpus < ranks else []
    report = json.loads(run(command, {}))
    timing = report["results"][0]["in_place"]
    if timing["nwrong"] != 0:
        sys.exit(f"{timing['nwrong']} wrong elements of {size} bytes on {ranks} ranks")
    return ", ".join(f"{name} {value}" for name, value in sorted(report["details"].items())), timing["p50"]


def torch_times(options, ranks):
    """The same of PyTorch, by size."""
    with socket.socket() as port, tempfile.NamedTemporaryFile("r", suffix=".json") as result:
        port.bind(("127.0.0.1", 0))
        number = port.getsockname()[1]
        port.close()
        words = [sys.executable, __file__, "--sizes", ",".join(map(str, options.sizes))]
        words += ["--iterations", str(options.iterations)] + (["--cpu"] if options.cpu else [])
        started = []
        for rank_ in range(ranks):
            environment = {
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(number),
                "WORLD_SIZE": str(ranks),
                "RANK": str(rank_),
                "NCCL_MULTI_RANK_GPU_ENABLE": "1",
                "PACELINE_RESULT": result.name,
            }
            started.append(subprocess.Popen(words + ["--rank", str(rank_)], env={**os.environ, **environment}))
        codes = [process.wait(timeout=600) for process in started]
        if any(codes):
            sys.exit(f"PyTorch's ranks ended with {codes}")
        return {int(size): time for size, time in json.load(result).items()}


def rank(options):
    """One rank of PyTorch's all-reduce: the median over iterations of the slowest rank's time."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo" if options.cpu else "nccl")
    device = torch.device("cpu")
    if not options.cpu:
        device = torch.device("cuda", options.rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    medians = {}
    for size in options.sizes:
        buffer = torch.ones(size // 4, device=device)
        for _ in range(5):
            dist.all_reduce(buffer)
            buffer.fill_(1)
        times = torch.tensor(timed(options, buffer), dtype=torch.float64, device=device)
        dist.all_reduce(times, op=dist.ReduceOp.MAX)
        medians[size] = statistics.median(times.tolist())
    if options.rank == 0:
        with open(os.environ["PACELINE_RESULT"], "w", encoding="utf-8") as result:
            json.dump(medians, result)
    dist.destroy_process_group()
    return 0


def timed(options, buffer):
    """Each iteration, microseconds: on a GPU by its events, one right after the other, as ours are."""
    import time

    import torch
    import torch.distributed as dist

    dist.barrier()
    if buffer.is_cuda:
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(options.iterations + 1)]
        marks[0].record()
        for mark in marks[1:]:
            dist.all_reduce(buffer)
            mark.record()
        torch.cuda.synchronize()
        return [before.elapsed_time(after) * 1e3 for before, after in zip(marks, marks[1:])]
    marks = [time.perf_counter()]
    for _ in range(options.iterations):
        dist.all_reduce(buffer)
        marks.append(time.perf_counter())
    return [(after - before) * 1e6 for before, after in zip(marks, marks[1:])]


def run(command, environment):
    done = subprocess.run(
        list(map(str, command)), env={**os.environ, **environment}, stdout=subprocess.PIPE, timeout=600, check=False, text=True
    )
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} ended with {done.returncode}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
