"""Detects programs that train without visible steps: gradients without a torch optimizer, another framework, or GPUs
besides the one whose time is measured. Each case is a small file beside the rings. The sidecar turns it into a note
with the remedy.
"""

import atexit
import functools
import os
import sys

from . import _files, _helper, _patch

FOLDER = "unseen"  # in the ring directory
NO_OPTIMIZER, OTHER_FRAMEWORK, SEVERAL_GPUS = "no_optimizer", "other_framework", "several_gpus"
_PASSES = 64  # backward passes before the first optimizer step: more than usual for gradient accumulation
_LOOKS = 8  # checks for other GPUs, after steps; a model is moved to them before the first step or soon after
_SHARE = 10  # a GPU with 1/10 of the memory of the fullest one is in use; a stray tensor takes less

_passes = 0
_is_seen = False  # the hook has seen the end of a step of this process
_reported = {}  # kind: path of its file
_looks = 0


def counted(function):
    """Wrap torch.autograd.backward to count calls until an optimizer has stepped. `grad` is not wrapped, because
    torch.compile recognizes it by identity."""

    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        global _passes
        _passes += 1
        if _passes == 1:
            atexit.register(_at_exit)
        elif _passes == _PASSES:
            report(NO_OPTIMIZER)
        return function(*args, **kwargs)

    return wrapper


def watch(autograd):
    """Wrap backward in torch.autograd, which has been loaded. Tensor.backward looks up its function there."""
    _patch.replace(autograd, "backward", counted)
    _patch.hide_from_dynamo(autograd.backward)


def step_seen(autograd=None):
    """Remove earlier reports when a step has ended, and do not repeat them, because a program that trains with torch
    may load another framework later, or hold an early reference to `backward`."""
    global _is_seen
    _is_seen = True
    function = getattr(autograd, "backward", None)
    if getattr(function, "__code__", None) is _CODE:
        autograd.backward = function.__wrapped__
    atexit.unregister(_at_exit)
    for kind in (NO_OPTIMIZER, OTHER_FRAMEWORK):
        path = _reported.pop(kind, None)
        try:
            if path is not None:
                os.unlink(path)
        except OSError:
            pass


def look_for_gpus(cuda):
    """Report if this process computes on several GPUs. This is only checked after the first steps."""
    global _looks
    if _looks >= _LOOKS or SEVERAL_GPUS in _reported:
        return
    _looks += 1
    used = [cuda.memory_allocated(index) for index in range(cuda.device_count())]
    count = sum(_SHARE * size >= max(used) > 0 for size in used)
    if count > 1:
        report(SEVERAL_GPUS, gpus=count)


def report(kind, **facts):
    """Write the file, once."""
    directory = os.environ.get("PACELINE_RING_DIR")
    if not directory or os.environ.get("PACELINE_HOOK") == "off" or kind in _reported:
        return
    if _is_seen and kind != SEVERAL_GPUS:
        return
    try:
        if not _helper.is_helper(sys.modules.get("torch.distributed")):
            _reported[kind] = _files.leave(directory, FOLDER, dict(kind=kind, **facts))
    except Exception:  # a trainer must never see an internal error of the hook
        _reported[kind] = None


def forked():
    """Reset in a forked child, because earlier reports belong to the parent."""
    global _passes, _is_seen
    _passes, _is_seen = 0, False
    _reported.clear()


def _at_exit():
    # The program ends after a few steps without a torch optimizer.
    report(NO_OPTIMIZER)


_CODE = counted(lambda: None).__code__
_helper.watch_forks(forked)
