"""Pipeline by data parallel on CPU: each replica is a pipeline whose stages hand micro-batches on one forward and one
backward at a time, gradients of a stage are reduced over the replicas.

torchrun --standalone --nproc-per-node=8 pipeline.py --stages 2 --micro-batches 4 --steps 60 --sleep-ms 20
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh

from common import Compute, StepTimes, arguments, run

HIDDEN = 32


class Stage:
    """One stage of one pipeline: its layer, pending activations, and neighbor ranks."""

    def __init__(self, pipe, compute):
        self._pipe = pipe
        self._compute = compute
        self.index, self._stages = dist.get_rank(pipe), dist.get_world_size(pipe)
        ranks = dist.get_process_group_ranks(pipe)
        self._before = ranks[self.index - 1] if self.index > 0 else None
        self._after = ranks[self.index + 1] if self.index + 1 < self._stages else None
        self.layer = nn.Linear(HIDDEN, HIDDEN)
        self._held = []
        self._sent = []  # handles, with their tensors: neighbors send to each other at the same time

    def step(self, step, micro_batches):
        """All micro-batches of a step: warm-up forwards, then alternating forward and backward, then the rest."""
        ahead = min(self._stages - 1 - self.index, micro_batches)
        for _ in range(ahead):
            self._forward(step)
        for _ in range(micro_batches - ahead):
            self._forward(step)
            self._backward(step)
        for _ in range(ahead):
            self._backward(step)
        while self._sent:
            self._sent.pop()[0].wait()

    def _forward(self, step):
        inputs = torch.randn(8, HIDDEN)
        if self._before is not None:
            dist.recv(inputs, src=self._before, group=self._pipe)
        inputs.requires_grad_()
        self._compute.run(step)
        outputs = torch.relu(self.layer(inputs))
        self._held.append((inputs, outputs))
        if self._after is not None:
            self._send(outputs.detach(), self._after)

    def _backward(self, step):
        inputs, outputs = self._held.pop(0)
        gradient = torch.ones_like(outputs)
        if self._after is not None:
            dist.recv(gradient, src=self._after, group=self._pipe)
        self._compute.run(step)
        outputs.backward(gradient)
        if self._before is not None:
            self._send(inputs.grad, self._before)

    def _send(self, tensor, whom):
        self._sent.append((dist.isend(tensor, dst=whom, group=self._pipe), tensor))


def main():
    parser = arguments(__doc__.splitlines()[0])
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--micro-batches", type=int, default=4)
    opt = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    replicas = dist.get_world_size() // opt.stages
    mesh = init_device_mesh("cpu", (opt.stages, replicas), mesh_dim_names=("pp", "dp"))
    rank, data = dist.get_rank(), mesh.get_group("dp")
    stage = Stage(mesh.get_group("pp"), Compute(opt, rank))
    optimizer = torch.optim.SGD(stage.layer.parameters(), lr=1e-3)
    times = StepTimes()
    for step in range(opt.steps):
        stage.step(step, opt.micro_batches)
        for parameter in stage.layer.parameters():
            dist.all_reduce(parameter.grad, group=data)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        times.lap()
    times.report(rank)


if __name__ == "__main__":
    run(main)
