"""A job of several ranks on one GPU, by a layout of the virtual GPU's programs, in which a rank may be slower than the others.

torchrun --standalone --nproc-per-node=4 train.py ddp --out FOLDER --seconds 30 --slow 2:1.25

NCCL refuses two ranks on one GPU of one host, so each rank says that it is a host of its own; what they send goes by sockets.
RANK.json in FOLDER says how long steps took. The first rank tells the others when time is up: all make the same steps.
"""

import argparse
import json
import os
import pathlib
import sys
import time

os.environ["NCCL_HOSTID"] = "hw-" + os.environ["RANK"]
HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "virtual-gpu" / "programs")]

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

import busy  # noqa: E402
from layouts import LAYOUTS  # noqa: E402

LOOK_EVERY = 5  # steps: then a loss is read, and the host waits for its GPU
BLOCKS = 2
PASSES = {"accumulate": 16, "pipeline": 8}  # through the blocks in a step: micro-batches


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("layout", choices=sorted(LAYOUTS))
    parser.add_argument("--out", required=True)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--steps", type=int, default=1000, help="at most")
    parser.add_argument("--work-ms", type=float, default=100, help="of a step on the GPU")
    parser.add_argument("--slow", default="-1:1", help="RANK:FACTOR")
    options = parser.parse_args()
    options.layers, options.width, options.rows, options.micro_batches = 2 * BLOCKS, 128, 64, 1
    if options.layout == "pipeline":  # it takes an eighth of these
        options.layers = 8 * BLOCKS
    return options


def work_of(options, rank):
    slow, factor = options.slow.split(":")
    return options.work_ms / PASSES.get(options.layout, 1) * (float(factor) if rank == int(slow) else 1)


def cycles(store, rank):
    """One figure for all: each for itself would measure the others' turns too."""
    if rank == 0:
        store.set("cycles", str(busy.cycles_a_ms()))
    return float(store.get("cycles"))


def main():
    options = arguments()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    rank, store = dist.get_rank(), dist.distributed_c10d._get_default_store()
    busy.keep_blocks_busy(busy.Busy(cycles(store, rank)), work_of(options, rank), BLOCKS)
    train_step = LAYOUTS[options.layout](options, device)
    deadline, last, ended = time.monotonic() + options.seconds, options.steps, []
    step = 0
    while step < last:
        loss = train_step()
        step += 1
        if step % LOOK_EVERY == 0:
            if loss is None:  # a pipeline's first stage
                torch.cuda.synchronize()
            else:
                loss.item()
            ended.append((step, time.monotonic()))
            last = min(last, agreed(store, rank, step, deadline))
    torch.cuda.synchronize()
    result = {"rank": rank, "steps": step}
    result["ms"] = [1e3 * (now - before) / LOOK_EVERY for (_, before), (_, now) in zip(ended, ended[1:])]
    pathlib.Path(options.out, "%d.json" % rank).write_text(json.dumps(result))
    dist.destroy_process_group()


def agreed(store, rank, step, deadline):
    """The last step. No rank is as far as that when the first one says it."""
    if rank == 0 and time.monotonic() > deadline and not store.check(["last"]):
        store.set("last", str(step + 2 * LOOK_EVERY))
    return int(store.get("last")) if store.check(["last"]) else sys.maxsize


if __name__ == "__main__":
    main()
