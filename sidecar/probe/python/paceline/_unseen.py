"""Programs that train and are not seen to: gradients without an optimizer of torch, another framework, GPUs beside the one whose
time is measured. Each is a small file beside the rings, from which the report says what is not seen and what to do.
"""

import atexit
import functools
import os
import sys

from . import _files, _helper, _patch

FOLDER = "unseen"  # in the ring directory
NO_OPTIMIZER, OTHER_FRAMEWORK, SEVERAL_GPUS = "no_optimizer", "other_framework", "several_gpus"
_PASSES = 64  # backward passes before the first optimizer step: more than gradients are mostly accumulated over
_LOOKS = 8  # for other GPUs, after steps; a model is moved to them before the first or soon after
_SHARE = 10  # a GPU with 1/10 of the memory of the fullest is computed on; a stray tensor is not

_passes = 0
_told = {}  # kind: path of its file
_looks = 0


def counted(function):
    """torch.autograd.backward, counted until an optimizer has stepped. Not `grad`: torch.compile knows it by identity."""

    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        global _passes
        _passes += 1
        if _passes == 1:
            atexit.register(_at_exit)
        elif _passes == _PASSES:
            tell(NO_OPTIMIZER)
        return function(*args, **kwargs)

    return wrapper


def watch(autograd):
    """torch.autograd has been loaded. Tensor.backward looks its function up there."""
    _patch.replace(autograd, "backward", counted)
    _patch.hide_from_dynamo(autograd.backward)


def seen(autograd=None):
    """A step has ended: what was said before holds no more."""
    function = getattr(autograd, "backward", None)
    if getattr(function, "__code__", None) is _CODE:
        autograd.backward = function.__wrapped__
    atexit.unregister(_at_exit)
    for kind in (NO_OPTIMIZER, OTHER_FRAMEWORK):
        path = _told.pop(kind, None)
        try:
            if path is not None:
                os.unlink(path)
        except OSError:
            pass


def look_for_gpus(cuda):
    """Whether this process computes on several GPUs; not after each of many steps."""
    global _looks
    if _looks >= _LOOKS or SEVERAL_GPUS in _told:
        return
    _looks += 1
    used = [cuda.memory_allocated(index) for index in range(cuda.device_count())]
    count = sum(_SHARE * size >= max(used) > 0 for size in used)
    if count > 1:
        tell(SEVERAL_GPUS, gpus=count)


def tell(kind, **facts):
    """Leaves the file, once."""
    directory = os.environ.get("PACELINE_RING_DIR")
    if not directory or os.environ.get("PACELINE_HOOK") == "off" or kind in _told:
        return
    try:
        if not _helper.is_helper(sys.modules.get("torch.distributed")):
            _told[kind] = _files.leave(directory, FOLDER, dict(kind=kind, **facts))
    except Exception:  # a trainer must never see an error of ours
        _told[kind] = None


def forked():
    """In a forked child: what was told is the parent's."""
    global _passes
    _passes = 0
    _told.clear()


def _at_exit():
    # A program that ends after a few steps of its own.
    tell(NO_OPTIMIZER)


_CODE = counted(lambda: None).__code__
_helper.watch_forks(forked)
