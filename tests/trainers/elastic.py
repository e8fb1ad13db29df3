"""DistributedDataParallel in a group that may break, shrink and grow: it begins again where its last checkpoint was.

torchrun --nnodes 1:2 --nproc-per-node 2 --max-restarts 3 --rdzv-backend c10d --rdzv-endpoint HOST:PORT elastic.py \
    --checkpoint FILE --until-file FILE
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from common import Compute, arguments, run

EVERY = 10  # steps between checkpoints


def options():
    parser = arguments(__doc__.splitlines()[0], steps=1_000_000)
    parser.add_argument("--checkpoint", required=True, help="where rank 0 keeps model and step")
    parser.add_argument("--until-file", required=True, help="train until this file is there")
    return parser.parse_args()


def main():
    opt = options()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world, restart = dist.get_rank(), dist.get_world_size(), os.environ["TORCHELASTIC_RESTART_COUNT"]
    net = nn.Linear(64, 1)
    begin = 0
    if os.path.exists(opt.checkpoint):
        kept = torch.load(opt.checkpoint)
        begin = kept["step"]
        net.load_state_dict(kept["model"])
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    print(f"rank {rank} of {world}, restart {restart}, begins at {begin}, pid {os.getpid()}", flush=True)
    # All ranks agree, so that none waits for a rank that has left.
    over = torch.zeros(1)
    compute = Compute(opt, rank)
    for step in range(begin, opt.steps):
        compute.run(step)
        model(torch.randn(16, 64)).mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if (step + 1) % EVERY == 0:
            if rank == 0:
                torch.save({"step": step + 1, "model": net.state_dict()}, opt.checkpoint + ".new")
                os.replace(opt.checkpoint + ".new", opt.checkpoint)
            over.fill_(os.path.exists(opt.until_file))
            dist.all_reduce(over)
            if over.item():
                break
    print(f"rank {rank} of {world}, restart {restart}, ends after {step + 1}", flush=True)


if __name__ == "__main__":
    run(main)
