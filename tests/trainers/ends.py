"""A DDP job of gloo that ends in one of several ways, by the rank that --rank names."""

import argparse
import os
import signal
import sys
import time

import torch
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("how", choices=["raise", "exit", "return", "kill", "mismatch", "hang", "late", "by-hand", "ok"])
parser.add_argument("--rank", type=int, default=1)
parser.add_argument("--at", type=int, default=20)
parser.add_argument("--steps", type=int, default=60)
args = parser.parse_args()

own = int(os.environ["RANK"])
if args.how == "late" and own == args.rank:
    time.sleep(1000)  # looks like slow imports
dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def batch(step):
    if step == args.at and own == args.rank:
        if args.how == "raise":
            raise ValueError("batch %d is empty" % step)
        if args.how == "exit":
            print("no data left", file=sys.stderr)
            sys.exit(7)
        if args.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if args.how == "hang":
            time.sleep(1000)
    return torch.randn(4, 8)


for step in range(1, args.steps + 1):
    if args.how == "return" and own == args.rank and step == args.at:
        break
    if args.how == "mismatch" and step == args.at:
        dist.all_reduce(torch.ones(1000 if own == args.rank else 10))
    optimizer.zero_grad()
    model(batch(step)).sum().backward()
    if args.how == "by-hand":
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.01 * parameter.grad
    else:
        optimizer.step()
    time.sleep(0.02)
