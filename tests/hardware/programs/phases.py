"""One process whose steps take known times on its GPU, in the ways in which a hook may go wrong.

phases.py plain --out FILE [--steps 30]; it does not know that it is watched. FILE says what it did, and what PyTorch's profiler saw.
"""

import argparse
import json
import pathlib
import sys
import time
from statistics import mean, median

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "virtual-gpu" / "programs")]

import torch  # noqa: E402

import busy  # noqa: E402

FORWARD_MS, SIDE_MS, OPTIMIZER_MS = 20, 15, 10  # backward takes twice as long as forward
MICRO_BATCHES = 32
WARM_UP = 5
PROFILED = 5  # steps
WAIT_EVERY = 5  # steps, so that the host does not run ahead for ever
WIDTH, ROWS = 64, 16
WAITING = ("cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaEventSynchronize", "cudaMemcpy")


class Optimizer(torch.optim.SGD):
    """One that takes time on the GPU."""

    busy = None

    def step(self, closure=None):
        self.busy(OPTIMIZER_MS)
        return super().step(closure)


def made(keep_busy, ms=FORWARD_MS):
    model = torch.nn.Sequential(busy.Block(WIDTH, keep_busy, ms)).cuda()
    optimizer = Optimizer(model.parameters(), lr=1e-3)
    optimizer.busy = keep_busy
    return model, optimizer, torch.randn(ROWS, WIDTH, device="cuda")


def step_of(model, optimizer, inputs, keep_busy=None, micro_batches=1, frees=False):
    """`keep_busy`: the training stream also waits for another one. `frees`: gradients go after each step, as most loops have it; one
    that is captured needs them to stay."""
    side = torch.cuda.Stream()

    def step():
        for _ in range(micro_batches):
            loss = model(inputs).square().mean()
            loss.backward()
        if keep_busy:
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                keep_busy(SIDE_MS)
            torch.cuda.current_stream().wait_stream(side)
        optimizer.step()
        optimizer.zero_grad(set_to_none=frees)
        return loss

    return step


def plain(keep_busy, steps):
    step = step_of(*made(keep_busy), keep_busy)
    spent = []
    for index in range(steps):
        since = time.thread_time_ns()
        step()
        spent.append((time.thread_time_ns() - since) / 1e3)
        if index % WAIT_EVERY == WAIT_EVERY - 1:  # not each: a GPU that waits for its host would have longer phases
            torch.cuda.synchronize()
    return dict(profiled(step), host_us=median(spent[WARM_UP:]))


def profiled(step):
    """What the kernels of a step took, ms, in their order; and how often the host waited for the GPU."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=activities) as profile:
        for _ in range(PROFILED):
            step()
    seen = profile.events()
    spins = [e for e in seen if "spin_kernel" in e.name and e.device_type == torch.autograd.DeviceType.CUDA]
    spins.sort(key=lambda one: one.time_range.start)
    each = len(spins) // PROFILED
    kernels = [mean(s.time_range.elapsed_us() / 1e3 for s in spins[index::each]) for index in range(each)]
    return {"kernels_ms": kernels, "waits": sum(e.name in WAITING for e in seen)}


def micro(keep_busy, steps):
    run(step_of(*made(keep_busy, FORWARD_MS / MICRO_BATCHES), micro_batches=MICRO_BATCHES), steps)


def side(keep_busy, steps):
    """The first steps on another stream, as examples of graphs do; then many on the usual one."""
    step = step_of(*made(keep_busy))
    warm(step)
    run(step, steps)


def warm(step):
    other = torch.cuda.Stream()
    other.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(other):
        run(step, WARM_UP)
    torch.cuda.current_stream().wait_stream(other)


def graph(keep_busy, steps):
    """All of a step in one graph, the optimizer too: PyTorch, "CUDA semantics", "Whole-network capture"."""
    model, optimizer, inputs = made(keep_busy, FORWARD_MS / 5)  # it has more steps than the others
    step = step_of(model, optimizer, inputs)
    warm(step)
    captured = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(captured):
            step()
    except RuntimeError as error:
        return {"captured": str(error).splitlines()[0]}
    before = model[0].up.weight.detach().clone()
    run(captured.replay, steps)
    return {"captured": "captured", "moved": bool((before != model[0].up.weight).any())}


def callables(keep_busy, steps):
    model, optimizer, inputs = made(keep_busy)
    inputs.requires_grad_()
    try:
        model = torch.cuda.make_graphed_callables(model, (inputs,))
    except RuntimeError as error:
        return {"captured": str(error).splitlines()[0]}
    run(step_of(model, optimizer, inputs), steps)
    return {"captured": "captured"}


def compiled(keep_busy, steps):
    """Graphs of the compiler's. It cannot look into work of a known length, so products of matrices are the work."""
    model = torch.nn.Sequential(*(torch.nn.Linear(4096, 4096) for _ in range(4))).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    # Gradients are a graph's: the next replay writes over them.
    model = torch.compile(model, mode="reduce-overhead")
    run(step_of(model, optimizer, torch.randn(4096, 4096, device="cuda"), frees=True), steps)


def run(step, steps):
    for index in range(steps):
        step()
        if index % WAIT_EVERY == WAIT_EVERY - 1:
            torch.cuda.current_stream().synchronize()


CASES = {"plain": plain, "micro": micro, "side": side, "graph": graph, "callables": callables, "compiled": compiled}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("case", choices=sorted(CASES))
    parser.add_argument("--out", required=True)
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args()
    result = CASES[options.case](busy.Busy(busy.cycles_a_ms()), options.steps) or {}
    torch.cuda.synchronize()
    pathlib.Path(options.out).write_text(json.dumps(result))


if __name__ == "__main__":
    main()
