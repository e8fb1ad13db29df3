"""Torch programs for the tests, and common checks."""

import re
import textwrap

# A model, an optimizer and one ordinary step.
BASE = """
import os, sys, time, torch
torch.set_num_threads(1)
net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
opt = torch.optim.SGD(net.parameters(), lr=0.1)
def forward():
    return net(torch.ones(2, 4)).mean()
def step():
    forward().backward()
    opt.step()
    opt.zero_grad()
def tracker():
    from paceline import _tracker
    return _tracker.tracker
"""
GROUP = """
import tempfile, torch.distributed as dist
def join(rank=0, world=1, path=None):
    dist.init_process_group("gloo", init_method="file://" + (path or tempfile.mktemp()), rank=rank, world_size=world)
"""


def script(text, base=BASE):
    return base + textwrap.dedent(text)


def complaints(err):
    """Return the lines of stderr that are not torch's own log."""
    return [line for line in err.splitlines() if not re.match(r"(\[rank\d\]:)?(W\d{4} |\[\d{4}-).* torch[/._]", line)]
