"""The API for training programs. The hook works without it, and without a sidecar every call does nothing.

    paceline.step()                       # the step ends here, regardless of optimizers
    with paceline.phase("data"): ...      # data, compute, wait, optimizer, checkpoint or evaluation
    paceline.mark(tokens=4096)            # work of the running step; sum_sq=, expert_tokens=
    paceline.mark("checkpoint", value=7)  # something happened in the running step
    paceline.layout(tp=8, pp=4)           # sizes of the parallel layout
    paceline.track()                      # all ranks' health into this program's W&B or MLflow run
"""

from ._layout import place as _place
from ._tracker import PHASES as _PHASES
from ._tracker import tracker as _state

__all__ = ["layout", "mark", "phase", "step", "track"]


def step(step=None, tokens=None, sum_sq=None, expert_tokens=None):
    """End the running step. From the first call on, optimizers no longer end steps: this call does, once per step
    whatever it contains. `step` is the number of the step that ended (default: one more than the last); the other
    arguments are its work, as for `mark`."""
    if _state.retired:
        return
    if not _state.on:
        from . import _hook

        _state.explicit = _hook.attach()
        return
    if _state.explicit:
        _state.mark(None, tokens, 0, None, sum_sq, expert_tokens)
        _state.end_step(step=step)
    # Otherwise the optimizer that attached the hook has already ended this step.
    _state.explicit = True


class phase:
    """`with paceline.phase("data"):` charges the time inside to that phase. Phases nest: the innermost counts. A
    name other than data, compute, wait, optimizer, checkpoint and evaluation has no effect."""

    __slots__ = ("_phase", "_before")

    def __init__(self, name):
        self._phase = _PHASES.get(name)

    def __enter__(self):
        if self._phase is not None:
            self._before = _state.switch(self._phase)
        return self

    def __exit__(self, *_):
        if self._phase is not None:
            _state.switch(self._before)


def mark(kind=None, tokens=None, value=0, text=None, sum_sq=None, expert_tokens=None):
    """Declare something about the running step.

    Work of this rank in the step; several calls add up: `tokens`; `sum_sq`, the sum of the squared lengths of its
    sequences (the cost of attention with packed sequences); `expert_tokens`, the tokens routed to this rank's
    experts.

    `kind`: `checkpoint`, `evaluation` or `warm-up` separate the step from ordinary ones; `role` with `text` names
    this rank's place in the parallel layout (ranks with the same text do the same work); any other word, up to 32
    bytes, is recorded with `value`, an integer."""
    _state.mark(kind, tokens, value, text, sum_sq, expert_tokens)


def layout(dp=None, tp=None, pp=None, ep=None, cp=None, micro_batches=None):
    """Declare the parallel layout, once, at any time: the sizes of the axes (data, tensor, pipeline, expert,
    context), and the micro-batches of a step.

    This rank's position follows from its number in Megatron's order: tensor-parallel ranks are neighbors, then
    context, data and pipeline. If the program uses another order, pass (index, size). The default of `dp` is the
    remaining part of the world. Megatron-Core's own state and named DeviceMeshes are found without this call. Sizes
    that do not fit the world are reported and ignored."""
    _place.declare({"dp": dp, "tp": tp, "pp": pp, "ep": ep, "cp": cp}, micro_batches)


def track(wandb=None, mlflow=None, tensorboard=None, every=None):
    """Log the health of all ranks into this program's own trackers, from rank 0, at most once in `every` seconds
    (15).

    Without arguments: into the active W&B and MLflow runs, whether they are active now or later. `wandb`: True, or a
    run; `mlflow`: True, or the id of a run; `tensorboard`: a SummaryWriter. It does nothing on other ranks, or if a
    tracker is missing. Several calls add up. The returned object is a context manager with a `close()` method, which
    writes a last row; that also happens automatically at the end of the program. PACELINE_TRACK=wandb,mlflow enables
    it from outside, `off` disables it."""
    from . import _stream

    return _stream.track(wandb, mlflow, tensorboard, every)
