"""Two ranks on one GPU, rank 1 late to every collective: what the NCCL plugin should show (docs/hardware.md).

NCCL 2.30 or later:
    NCCL_MULTI_RANK_GPU_ENABLE=1 paceline run -- torchrun --nproc-per-node 2 tests/trainers/nccl_late.py [--late-ms 50] [--mb 64]
"""

import argparse
import os
import time

import torch
import torch.distributed as dist


def main():
    words = argparse.ArgumentParser()
    words.add_argument("--late-ms", type=float, default=50)
    words.add_argument("--mb", type=int, default=64)
    words.add_argument("--steps", type=int, default=200)
    args = words.parse_args()
    torch.cuda.set_device(0)
    dist.init_process_group("nccl")
    rank = dist.get_rank()
    weights = torch.nn.Parameter(torch.zeros(args.mb << 18, device="cuda"))
    optimizer = torch.optim.SGD([weights], lr=1e-6)
    began = time.monotonic()
    for _ in range(args.steps):
        weights.grad = torch.ones_like(weights)
        if rank == 1:
            torch.cuda.synchronize()
            time.sleep(args.late_ms / 1e3)
        dist.all_reduce(weights.grad)
        optimizer.step()
    torch.cuda.synchronize()
    if rank == 0:
        plugin = os.environ.get("NCCL_PROFILER_PLUGIN", "none")
        print(f"{(time.monotonic() - began) / args.steps * 1e3:.3f} ms a step, plugin {plugin}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
