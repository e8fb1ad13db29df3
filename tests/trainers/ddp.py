"""DistributedDataParallel, a plain loop, with gradient accumulation and faults.

torchrun --standalone --nproc-per-node=4 ddp.py --steps 200 --sleep-ms 40 --slow-rank 2 --slow-pct 10
"""

import contextlib
import datetime

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from common import Compute, StepTimes, add_faults, arguments, run


def options():
    parser = arguments(__doc__.splitlines()[0])
    add_faults(parser)
    parser.add_argument("--accum", type=int, default=1, help="micro-batches in a step")
    parser.add_argument("--naive-accum", action="store_true", help="accumulate without no_sync: reduce every time")
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--workers", type=int, default=0, help="processes that load data")
    parser.add_argument("--compile", action="store_true", help="torch.compile the model")
    return parser.parse_args()


def model(options):
    layers = []
    for _ in range(options.layers):
        layers += [nn.Linear(options.hidden, options.hidden), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(options.hidden, 1))


def batches(options):
    """An endless iterator of random data."""
    inputs = torch.randn(options.batch * 16, options.hidden)
    loader = DataLoader(
        TensorDataset(inputs, inputs.sum(1, keepdim=True)),
        batch_size=options.batch,
        num_workers=options.workers,
        persistent_workers=options.workers > 0,
    )
    while True:
        yield from loader


def main():
    opt = options()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=opt.timeout_s))
    rank = dist.get_rank()
    torch.manual_seed(0)
    net = DistributedDataParallel(model(opt))
    if opt.compile:
        net = torch.compile(net, backend="aot_eager")
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    compute, times, data = Compute(opt, rank), StepTimes(), batches(opt)
    for step in range(opt.steps):
        for micro in range(opt.accum):
            inputs, targets = next(data)
            compute.fault(step)
            compute.run(step)
            reduces = micro == opt.accum - 1 or opt.naive_accum
            with contextlib.nullcontext() if reduces else net.no_sync():
                nn.functional.mse_loss(net(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        times.lap()
    times.report(rank)


if __name__ == "__main__":
    run(main)
