"""The cost of the hook: thread CPU time of a training step with it minus without it.

    OMP_NUM_THREADS=1 python overhead.py [--plain]

One process with its own gloo group. A step is an ordinary one: a batch from a DataLoader, forward and backward of a DDP
model, an all_reduce of the program, an optimizer step. `--plain`: without the DataLoader and the all_reduce, as in a
plain DDP loop. Short blocks of steps alternate between the wrapped functions and the restored original ones, so that
both see the same machine conditions.
"""

import gc
import os
import random
import statistics
import sys
import tempfile
import time

BLOCKS = 150
STEPS = 20

# The rings are in shared memory, as with `paceline run`. On a disk, write-back would cause page faults repeatedly.
RINGS = tempfile.TemporaryDirectory(dir="/dev/shm")
os.environ["PACELINE_RING_DIR"] = RINGS.name
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import sitecustomize  # noqa: E402,F401

if not any(getattr(finder, "__name__", "") == "_Watch" for finder in sys.meta_path):
    import importlib.util

    # The machine has its own sitecustomize, loaded at start, so load ours as well.
    path = os.path.join(sys.path[0], "sitecustomize.py")
    spec = importlib.util.spec_from_file_location("paceline_sitecustomize", path)
    spec.loader.exec_module(importlib.util.module_from_spec(spec))

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset, dataloader  # noqa: E402


class Switch:
    """Switches between the original functions and the wrappers."""

    def __init__(self, optimizer, parameters):
        step = optimizer.step  # torch's layer, then ours, then the original
        self._places = [
            (owner, name, getattr(owner, name), getattr(owner, name).__wrapped__)
            for owner, name in (
                (torch.autograd, "backward"),
                (dataloader._BaseDataLoaderIter, "__next__"),
                (torch._C._distributed_c10d.Work, "wait"),
                (dist, "all_reduce"),
                (dist, "_broadcast_coalesced"),
            )
        ]
        self._places.append((optimizer, "step", step, step.__wrapped__.__wrapped__))
        original = torch.optim.Optimizer.profile_hook_step(step.__wrapped__.__wrapped__)
        self._places[-1] = (optimizer, "step", step, original)
        from paceline._garbage import on_collection

        self._garbage = on_collection
        self._hooks = [(p._backward_hooks, dict(p._backward_hooks)) for p in parameters if p._backward_hooks]

    def hook(self, on):
        """Switch the hook on or off."""
        for owner, name, wrapper, original in self._places:
            setattr(owner, name, wrapper if on else original)
        if on != (self._garbage in gc.callbacks):
            (gc.callbacks.append if on else gc.callbacks.remove)(self._garbage)
        for hooks, content in self._hooks:
            hooks.clear()
            hooks.update(content if on else {})


def main():
    torch.set_num_threads(1)
    with tempfile.NamedTemporaryFile() as store:
        dist.init_process_group("gloo", init_method="file://" + store.name, rank=0, world_size=1)
        net = DistributedDataParallel(torch.nn.Linear(8, 1))
        optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
        loss = torch.zeros(1)
        batches = iter(DataLoader(TensorDataset(torch.randn(STEPS * (BLOCKS * 2 + 20), 8)), batch_size=1))

        plain, fixed = "--plain" in sys.argv, torch.randn(1, 8)

        def block():
            before = time.thread_time_ns()
            for _ in range(STEPS):
                batch = fixed if plain else next(batches)[0]
                net(batch).mean().backward()
                if not plain:
                    dist.all_reduce(loss)
                optimizer.step()
                optimizer.zero_grad()
            return (time.thread_time_ns() - before) / 1e3 / STEPS

        for _ in range(10):
            block()
        from paceline._tracker import tracker

        if not tracker.on:
            raise SystemExit("the hook did not attach")
        switch = Switch(type(optimizer), list(net.parameters()))
        on, off = [], []
        for index in range(BLOCKS):
            for hook in (True, False) if index % 2 else (False, True):
                switch.hook(hook)
                (on if hook else off).append(block())
        switch.hook(True)
        tracker._flush(0)
        records = tracker.ring._head
        del net
        dist.destroy_process_group()
    if not tracker.on or records < STEPS * (BLOCKS + 10) - 1:
        raise SystemExit("the hook did not run: %d records" % records)
    differences = [a - b for a, b in zip(on, off)]
    chance = random.Random(1)
    resampled = sorted(statistics.median(chance.choices(differences, k=BLOCKS)) for _ in range(2000))
    print(
        "thread CPU time a step: off %.1f us, on %.1f us, cost %.1f us (95 %%: %.1f to %.1f; %d pairs of %d steps)"
        % (
            statistics.median(off),
            statistics.median(on),
            statistics.median(differences),
            resampled[50],
            resampled[1949],
            BLOCKS,
            STEPS,
        )
    )


if __name__ == "__main__":
    main()
