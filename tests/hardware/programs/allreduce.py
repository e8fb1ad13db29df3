"""One rank of PyTorch's all-reduce, out of nothing but its own buffer: microseconds of the median iteration by size, of the slowest rank.

RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are set; every rank has the same GPU and says that it is a host of its own.
"""

import json
import os
import sys
from statistics import median

os.environ["NCCL_HOSTID"] = "hw-" + os.environ["RANK"]

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402


def main():
    sizes, iterations = [int(size) for size in sys.argv[1].split(",")], int(sys.argv[2])
    torch.cuda.set_device(0)
    dist.init_process_group("nccl")
    medians = {}
    for size in sizes:
        buffer = torch.ones(size // 4, device="cuda")
        for _ in range(3):
            dist.all_reduce(buffer)
            buffer.fill_(1)
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(iterations + 1)]
        marks[0].record()
        for mark in marks[1:]:
            dist.all_reduce(buffer)
            mark.record()
        torch.cuda.synchronize()
        times = torch.tensor([before.elapsed_time(after) * 1e3 for before, after in zip(marks, marks[1:])], device="cuda")
        dist.all_reduce(times, op=dist.ReduceOp.MAX)
        medians[size] = median(times.tolist())
    if dist.get_rank() == 0:
        print(json.dumps(medians))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
