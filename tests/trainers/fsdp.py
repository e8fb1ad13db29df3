"""Fully sharded data parallel (fully_shard, FSDP2) on CPU.

torchrun --standalone --nproc-per-node=4 fsdp.py --steps 200 --sleep-ms 40 --slow-rank 2
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from common import Compute, StepTimes, arguments, run


class Block(nn.Module):
    """A residual layer; one unit of sharding."""

    def __init__(self, hidden):
        super().__init__()
        self.layer = nn.Linear(hidden, hidden)

    def forward(self, inputs):
        return inputs + torch.relu(self.layer(inputs))


def main():
    opt = arguments(__doc__.splitlines()[0]).parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    net = nn.Sequential(*(Block(64) for _ in range(3)), nn.Linear(64, 1))
    for block in net:
        fully_shard(block, mesh=mesh)
    fully_shard(net, mesh=mesh)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    compute, times = Compute(opt, rank), StepTimes()
    for step in range(opt.steps):
        inputs = torch.randn(16, 64)
        compute.run(step)
        nn.functional.mse_loss(net(inputs), inputs.sum(1, keepdim=True)).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        times.lap()
    times.report(rank)


if __name__ == "__main__":
    run(main)
