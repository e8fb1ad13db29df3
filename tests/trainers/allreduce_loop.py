"""A loop that reduces its gradients itself, as Megatron-style programs do: one all_reduce over a flat buffer.

torchrun --standalone --nproc-per-node=4 allreduce_loop.py --steps 200 --sleep-ms 40 --slow-rank 2
"""

import torch
import torch.distributed as dist
from torch import nn

from common import Compute, StepTimes, arguments, run


def reduce_gradients(parameters, world_size, overlapped):
    """Mean over the ranks, in one flat buffer or in one asynchronous all-reduce per parameter."""
    gradients = [parameter.grad for parameter in parameters]
    if overlapped:
        for handle in [dist.all_reduce(gradient, async_op=True) for gradient in gradients]:
            handle.wait()
    else:
        flat = torch.cat([gradient.view(-1) for gradient in gradients])
        dist.all_reduce(flat)
        for gradient, part in zip(gradients, flat.split([gradient.numel() for gradient in gradients])):
            gradient.copy_(part.view_as(gradient))
    for gradient in gradients:
        gradient.div_(world_size)


def main():
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--overlapped", action="store_true", help="one asynchronous all-reduce for each parameter")
    opt = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    parameters = list(net.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=1e-3)
    compute, times = Compute(opt, rank), StepTimes()
    for step in range(opt.steps):
        inputs = torch.randn(16, 64)
        compute.run(step)
        nn.functional.mse_loss(net(inputs), inputs.sum(1, keepdim=True)).backward()
        reduce_gradients(parameters, world_size, opt.overlapped)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        times.lap()
    times.report(rank)


if __name__ == "__main__":
    run(main)
