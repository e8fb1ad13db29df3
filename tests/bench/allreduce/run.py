"""All-reduce over TCP compared with gloo and Open MPI: the same ranks and sizes on this host, interleaved in one run.

    cargo build --release -p paceline-nccl-bench
    target/realenv/torch/bin/python tests/bench/allreduce/run.py [--ranks 2,4,8] [--rounds 5] [--no-mpi]

Needs PyTorch (tests/setup/torch.sh) and Open MPI (mpicc, mpirun; Debian: openmpi-bin, libopenmpi-dev). Each round runs
each of the three once, in alternating order. A time is the median over a run's iterations of the slowest rank; the
table shows the median over rounds, and of the ratio to the better of the other two in the same round.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
BENCH = os.path.join(ROOT, "target/release/paceline-nccl-bench")
MPI = os.path.join(ROOT, "target/allreduce-mpi")
# Sizes, iterations, warm-ups: small sizes need many iterations, large ones take long.
BANDS = [([1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10], 300, 20), ([1 << 20, 4 << 20, 16 << 20, 64 << 20], 12, 3)]


def parse(text):
    return {int(size): float(us) for size, us in (line.split() for line in text.splitlines())}


def environment(sizes, iters, warm):
    return dict(os.environ, SIZES=" ".join(map(str, sizes)), ITERS=str(iters), WARM=str(warm))


def paceline(ranks, sizes, iters, warm, extra=()):
    command = [BENCH, "all-reduce", "--transport", "tcp", "--ranks", str(ranks), "-c", "0", "--json"]
    command += ["-b", str(sizes[0]), "-e", str(sizes[-1]), "-f", "4", "-n", str(iters), "-w", str(warm), *extra]
    report = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return {row["size"]: row["in_place"]["p50"] for row in report["results"]}


def gloo(ranks, sizes, iters, warm):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    env = environment(sizes, iters, warm)
    env.update(WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo")
    command = [sys.executable, os.path.join(HERE, "gloo.py")]
    started = [
        subprocess.Popen(command, env=dict(env, RANK=str(rank)), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        for rank in range(ranks)
    ]
    texts = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        sys.exit("gloo failed")
    return parse(texts[0].decode())


def mpi(ranks, sizes, iters, warm):
    command = ["mpirun", "--oversubscribe", "--allow-run-as-root", "-np", str(ranks)]
    command += ["--mca", "pml", "ob1", "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo", MPI]
    env = environment(sizes, iters, warm)
    return parse(subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", default="2,4,8")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--band", type=int, choices=[0, 1], help="only the small sizes, or only the large ones")
    parser.add_argument("--no-mpi", action="store_true")
    parser.add_argument("extra", nargs="*", help="more words for nccl-bench, after --")
    args = parser.parse_args()
    peers = {"gloo": gloo}
    if not args.no_mpi:
        subprocess.run(["mpicc", "-O2", os.path.join(HERE, "mpi.c"), "-o", MPI], check=True)
        peers["Open MPI"] = mpi
    runs = {"paceline": lambda *words: paceline(*words, extra=args.extra), **peers}
    print("| ranks | size | " + " | ".join(f"{name}, µs" for name in runs) + " | better / paceline | rounds |")
    print("|---" * (len(runs) + 4) + "|")
    for ranks in map(int, args.ranks.split(",")):
        for sizes, iters, warm in BANDS if args.band is None else [BANDS[args.band]]:
            seen = {name: [] for name in runs}
            for turn in range(args.rounds):
                names = list(runs)
                for name in names[turn % len(names) :] + names[: turn % len(names)]:
                    seen[name].append(runs[name](ranks, sizes, iters, warm))
            for size in sizes:
                middle = {name: statistics.median(run[size] for run in seen[name]) for name in runs}
                ratios = [
                    min(seen[name][turn][size] for name in peers) / seen["paceline"][turn][size]
                    for turn in range(args.rounds)
                ]
                cells = " | ".join(f"{middle[name]:.0f}" for name in runs)
                spread = f"{min(ratios):.2f}-{max(ratios):.2f}"
                name = f"{size >> 10} KiB" if size < 1 << 20 else f"{size >> 20} MiB"
                print(f"| {ranks} | {name} | {cells} | {statistics.median(ratios):.2f} | {spread} |", flush=True)


if __name__ == "__main__":
    main()
