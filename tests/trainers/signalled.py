"""DistributedDataParallel that writes a checkpoint when it is asked to by a signal, and begins again where its last one was.

torchrun --standalone --nproc-per-node=4 signalled.py --checkpoint FILE --sleep-ms 30 --slow-rank 2 --slow-pct 60
"""

import os
import signal

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from common import Compute, arguments, run


def options():
    parser = arguments(__doc__.splitlines()[0], steps=1_000_000)
    parser.add_argument("--checkpoint", required=True, help="where rank 0 keeps model and step when it is asked to")
    parser.add_argument("--until-file", default="", help="train until this file is there")
    parser.add_argument("--signal", default="USR1")
    return parser.parse_args()


def mark_checkpoint():
    try:
        import paceline
    except ImportError:  # without Paceline
        return
    paceline.mark("checkpoint")


def main():
    opt = options()
    asked = []
    signal.signal(getattr(signal, "SIG" + opt.signal), lambda *_: asked.append(True))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    net, begin = nn.Linear(64, 1), 0
    if os.path.exists(opt.checkpoint):
        kept = torch.load(opt.checkpoint)
        begin = kept["step"]
        net.load_state_dict(kept["model"])
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    print(f"rank {rank} of {world} begins at {begin}, pid {os.getpid()}", flush=True)
    compute = Compute(opt, rank)
    wishes = torch.zeros(2)
    for step in range(begin, opt.steps):
        compute.run(step)
        model(torch.randn(16, 64)).mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        # All ranks agree, since signals arrive at different times.
        wishes[0], wishes[1] = len(asked), bool(opt.until_file) and os.path.exists(opt.until_file)
        asked.clear()
        dist.all_reduce(wishes)
        if wishes[0]:
            if rank == 0:
                torch.save({"step": step + 1, "model": net.state_dict()}, opt.checkpoint + ".new")
                os.replace(opt.checkpoint + ".new", opt.checkpoint)
                print(f"saved after {step + 1}", flush=True)
            mark_checkpoint()
        if wishes[1]:
            break
    print(f"rank {rank} of {world} ends after {step + 1}", flush=True)


if __name__ == "__main__":
    run(main)
