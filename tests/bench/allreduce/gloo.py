"""All-reduce with torch.distributed's gloo, in place, iterations without pauses. Started once per rank.

Environment: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT; SIZES (bytes), ITERS, WARM. Rank 0 prints, for each size, the
median over the iterations of the time of the slowest rank, in microseconds.
"""

import os
import time

import torch
import torch.distributed as dist

torch.set_num_threads(1)
dist.init_process_group("gloo")
iters, warm = int(os.environ["ITERS"]), int(os.environ["WARM"])
for size in map(int, os.environ["SIZES"].split()):
    x = torch.ones(size // 4)
    for _ in range(warm):
        dist.all_reduce(x)
    times = []
    dist.barrier()
    for _ in range(iters):
        began = time.perf_counter()
        dist.all_reduce(x)
        times.append(time.perf_counter() - began)
    slowest = torch.tensor(times, dtype=torch.float64)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    if dist.get_rank() == 0:
        print(size, slowest.sort().values[iters // 2].item() * 1e6, flush=True)
dist.barrier()
dist.destroy_process_group()
