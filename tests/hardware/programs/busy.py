"""Work of a known length for a GPU, on the current stream.

`torch.cuda._sleep` counts the GPU's own clock, which goes on while other processes have their turn: four ranks on one GPU are each
as slow as asked.
"""

import torch
from torch import nn

import layouts  # of ../../virtual-gpu

CALIBRATION = 20_000_000  # cycles: some 10 ms


def cycles_a_ms():
    """By the GPU's own events, when its clock has come up."""
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(20):
        torch.cuda._sleep(CALIBRATION)
    began.record()
    torch.cuda._sleep(CALIBRATION)
    ended.record()
    ended.synchronize()
    return CALIBRATION / began.elapsed_time(ended)


class Busy:
    """Keeps the current GPU busy: `busy(ms)`."""

    def __init__(self, cycles):
        self.cycles = cycles

    def __call__(self, ms):
        torch.cuda._sleep(int(ms * self.cycles))


class Forth(torch.autograd.Function):
    """What comes in, after some time; and its gradient, after twice that."""

    @staticmethod
    def forward(context, inputs, busy, ms):
        context.busy, context.ms = busy, ms
        busy(ms)
        return inputs.view_as(inputs)

    @staticmethod
    def backward(context, gradient):
        context.busy(2 * context.ms)
        return gradient, None, None


class Block(layouts.Block):
    """A block of the layouts that takes `ms` forward, and twice that backward."""

    def __init__(self, width, busy, ms):
        super().__init__(width)
        self.busy, self.ms = busy, ms

    def forward(self, inputs):
        return Forth.apply(super().forward(inputs), self.busy, self.ms)


def keep_blocks_busy(busy, ms, count):
    """From now on blocks of the layouts take time: a step of `count` blocks `ms` in all."""
    layouts.blocks = lambda options, number=count: nn.Sequential(
        *(Block(options.width, busy, ms / count / 3) for _ in range(number))
    )
