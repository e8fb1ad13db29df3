"""Training by the usual layouts of PyTorch, for GPUs. It does not know that it is watched, nor that its GPUs compute nothing.

torchrun --standalone --nproc-per-node=4 train.py fsdp --steps 150 --backend nccl-legacy
"""

import argparse
import os
import time

import torch
import torch.distributed as dist

from layouts import LAYOUTS

LOG_EVERY = 10  # steps between readings of the loss, for which the host waits for its GPU


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("layout", choices=sorted(LAYOUTS))
    parser.add_argument("--backend", default="nccl", help="nccl (nccl2 since torch 2.15) or nccl-legacy")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--rows", type=int, default=8192, help="of a batch")
    parser.add_argument("--micro-batches", type=int, default=1)
    parser.add_argument("--no-set-device", action="store_true", help="leave device 0 current, as some scripts do")
    return parser.parse_args()


def main():
    options = arguments()
    local = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local)
    if not options.no_set_device:
        torch.cuda.set_device(device)
    dist.init_process_group(options.backend, device_id=None if options.no_set_device else device)
    train_step = LAYOUTS[options.layout](options, device)
    stream = torch.cuda.current_stream(device)
    with torch.cuda.device(device):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    half, wall = options.steps // 2, 0.0
    for step in range(options.steps):
        if step == half:
            began.record(stream)
            wall = time.monotonic()
        loss = train_step()
        if step % LOG_EVERY == LOG_EVERY - 1 and loss is not None:
            loss.item()
    ended.record(stream)
    ended.synchronize()
    steps = options.steps - half
    print(
        "rank %d: %.2f ms a step by its GPU, %.2f by its host"
        % (dist.get_rank(), began.elapsed_time(ended) / steps, (time.monotonic() - wall) * 1e3 / steps),
        flush=True,
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
