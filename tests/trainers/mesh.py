"""Tensor parallel by data parallel on CPU: each layer is split over the ranks of a tensor-parallel group, gradients are
reduced over a data-parallel one. Sequences are packed, and the script declares its work, which a script that uses
Paceline can do.

torchrun --standalone --nproc-per-node=4 mesh.py --steps 60 --sleep-ms 20 [--declare] [--garbage-at 30]
"""

import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from common import Compute, StepTimes, arguments, run

TENSOR_PARALLEL = 2


class Reduce(torch.autograd.Function):
    """Sum over the group in forward, identity in backward, as after a row-parallel layer."""

    @staticmethod
    def forward(_, inputs, group):
        outputs = inputs.clone()
        dist.all_reduce(outputs, group=group)
        return outputs

    @staticmethod
    def backward(_, gradient):
        return gradient, None


class SplitLayer(nn.Module):
    """One rank's rows of a residual layer."""

    def __init__(self, hidden, group):
        super().__init__()
        self._group = group
        self.rows = nn.Linear(hidden // TENSOR_PARALLEL, hidden, bias=False)

    def forward(self, inputs):
        rank = dist.get_rank(self._group)
        mine = inputs.chunk(TENSOR_PARALLEL, dim=-1)[rank]
        return inputs + torch.relu(Reduce.apply(self.rows(mine), self._group))


def groups(declare):
    """Tensor-parallel and data-parallel group of this rank; the layout is declared, or named by a mesh."""
    if declare:
        import paceline

        paceline.layout(tp=TENSOR_PARALLEL, micro_batches=1)
        world, rank = dist.get_world_size(), dist.get_rank()
        tp = [dist.new_group(list(range(i, i + TENSOR_PARALLEL))) for i in range(0, world, TENSOR_PARALLEL)]
        dp = [dist.new_group(list(range(i, world, TENSOR_PARALLEL))) for i in range(TENSOR_PARALLEL)]
        return tp[rank // TENSOR_PARALLEL], dp[rank % TENSOR_PARALLEL], None
    mesh = init_device_mesh("cpu", (dist.get_world_size() // TENSOR_PARALLEL, TENSOR_PARALLEL), mesh_dim_names=("dp", "tp"))
    return mesh.get_group("tp"), mesh.get_group("dp"), mesh


def sequences(step):
    """Lengths of the sequences packed into a step's 64 tokens."""
    return ([64], [32, 32], [16, 16, 32])[step % 3]


def declare_work(lengths):
    """Declares what this step's cost depends on; does nothing without Paceline."""
    try:
        import paceline
    except ImportError:
        return
    paceline.mark(tokens=sum(lengths), sum_sq=sum(length * length for length in lengths))


def main():
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--declare", action="store_true", help="declare the layout instead of naming a mesh")
    parser.add_argument("--garbage-at", type=int, default=-1, help="at this step rank 1 collects much garbage")
    opt = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    tp, dp, mesh = groups(opt.declare)
    torch.manual_seed(rank % TENSOR_PARALLEL)
    net = nn.Sequential(*(SplitLayer(64, tp) for _ in range(2)), nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    compute, times = Compute(opt, rank), StepTimes()
    held = [[index] for index in range(300_000)] if opt.garbage_at >= 0 and rank == 1 else None
    for step in range(opt.steps):
        lengths = sequences(step)
        inputs = torch.randn(sum(lengths), 64)
        compute.run(step)
        if held is not None and step == opt.garbage_at:
            gc.collect()
        nn.functional.mse_loss(net(inputs), inputs.sum(1, keepdim=True)).backward()
        for parameter in net.parameters():
            dist.all_reduce(parameter.grad, group=dp)
        declare_work(lengths)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        times.lap()
    times.report(rank)


if __name__ == "__main__":
    run(main)
