"""Makes the steps of an unmodified PyTorch training script visible.

The import watch of sitecustomize loads this module. Optimizer.step is wrapped as soon as its module is loaded, because
its end is the boundary of a step. Everything else waits for the first such end.

The wrapper is below torch's own step hooks, and `register_optimizer_step_post_hook` is not used, for this reason: since
2.0, for several years, torch.compile of the *model* removed the hooked layer from every optimizer class, and the hooks
with it.
"""

import functools
import os
import sys
import weakref

from . import _backward, _comms, _ends, _layout, _patch, _rank, _ring, _starts, _unseen
from ._tracker import COMPUTE, OPTIMIZER, tracker

_TAKE_OVER = 8  # steps of one other optimizer without a step of the primary


class _Optimizers:
    """Determines which optimizer's step ends a training step: the first one seen, until it stops stepping."""

    def __init__(self):
        self.running = False  # True while the first step is running
        self.primary = None  # id of the optimizer whose steps count
        self.others = {}  # steps since the primary's last step, by the optimizer's id
        self._seen = {}  # weak references, by the optimizer's id

    def ends_step(self, optimizer):
        """Return whether a training step ends with the step of `optimizer`, which is not the primary. If so, it becomes
        the primary."""
        key = id(optimizer)
        known = self._seen.get(key)
        if known is None or known() is not optimizer:
            self._seen[key] = weakref.ref(optimizer)
        count = self.others.get(key, 0) + 1
        self.others[key] = count
        if self.primary is not None and count < _TAKE_OVER:
            return False
        self.primary = key
        return True

    def parameters(self):
        """Return the parameters of all optimizers that have stepped and still exist, each once."""
        found = {}
        for reference in self._seen.values():
            optimizer = reference()
            for group in optimizer.param_groups if optimizer is not None else ():
                for parameter in group["params"]:
                    found[id(parameter)] = parameter
        return found.values()


_optimizers = _Optimizers()
_watch = None  # Backward
_ddp = None  # weak reference to the latest DDP model
_attached_to_torch = False


def loaded(module):
    """Handle a module watched by sitecustomize that has just been loaded."""
    name = module.__name__
    if name == "torch.optim.optimizer":
        _wrap_optimizers(module.Optimizer)
    elif name == "torch.distributed.distributed_c10d":
        _patch.wrap_collectives(module)
        if _rank.is_told():
            _ends.watch()  # a job may end before its first step
            _starts.begin()
    elif name.startswith("torch.distributed.elastic."):
        _ends.watch_launcher(module)
    elif name == "torch.distributed.checkpoint.state_dict_saver":
        _patch.wrap_checkpoints(module)
    elif name == "torch.distributed.device_mesh":
        _layout.watch_meshes(module.DeviceMesh)
    elif name == "torch.nn.parallel.distributed":
        _notice(module.DistributedDataParallel)
    elif name == "torch.autograd":
        _unseen.watch(module)
    elif name in ("jax", "tensorflow"):
        _unseen.report(_unseen.OTHER_FRAMEWORK, name=name)


def _notice(ddp):
    """Detect the first DDP model, because only then is there a wait in backward to look for."""
    init = ddp.__init__

    @functools.wraps(init)
    def __init__(self, *args, **kwargs):
        global _ddp
        if _starts.place is None:
            init(self, *args, **kwargs)
        else:  # it compares shapes and sends parameters, by collectives in C++
            _starts.waiting(init, (self, *args), kwargs, "DistributedDataParallel")
        if _patch.is_compiling():
            return
        _ddp = weakref.ref(self)
        if _watch is not None:
            _watch.communicates()
        if tracker.comms is not None:
            tracker.comms.made_ddp(self)

    ddp.__init__ = __init__


def _wrap_optimizers(base):
    """Wrap the step of every optimizer class when its first instance is created, just before torch does the same."""
    patch = base._patch_step_function

    @functools.wraps(patch)
    def _patch_step_function(self):
        if not _patch.is_compiling():
            cls = type(self)
            if not getattr(cls.step, "_paceline", False):
                cls.step = _timed_step(cls.step)
        patch(self)

    base._patch_step_function = _patch_step_function


def _timed_step(function):
    @functools.wraps(function)
    def step(self, *args, **kwargs):
        if not tracker.on:
            return _first_step(function, self, args, kwargs)
        # This call is nested: either a class's step calls its base class's, or an optimizer wraps another one.
        if tracker.phase == OPTIMIZER or _patch.is_compiling():
            return function(self, *args, **kwargs)
        before = tracker.switch(OPTIMIZER)
        try:
            result = function(self, *args, **kwargs)
        except BaseException:
            tracker.switch(before)
            raise
        if (id(self) == _optimizers.primary or _optimizers.ends_step(self)) and not tracker.explicit:
            if _optimizers.others:
                _optimizers.others.clear()
            tracker.end_step(before)
        else:
            tracker.switch(before)
        return result

    step._paceline = True
    _patch.hide_from_dynamo(step, _first_step)
    return step


def _first_step(function, optimizer, args, kwargs):
    """Run the first step, before there is a ring, and attach at the end of the outermost optimizer step."""
    if _patch.is_compiling() or tracker.retired or _optimizers.running:
        return function(optimizer, *args, **kwargs)
    _optimizers.running = True
    try:
        result = function(optimizer, *args, **kwargs)
    finally:
        _optimizers.running = False
    try:
        _optimizers.ends_step(optimizer)
        attach(optimizer)
    except Exception as error:
        tracker.fail(error)
    return result


def attach(optimizer=None):
    """Create the ring, then wrap the rest of torch, at the end of the first step. Return True on success."""
    global _watch, _attached_to_torch
    torch = sys.modules.get("torch")
    distributed = sys.modules.get("torch.distributed")
    if torch is None or not hasattr(torch, "autograd"):
        _unseen.step_seen()
        return tracker.arm() and _look()
    _unseen.step_seen(torch.autograd)
    index = _gpu(torch, _device(optimizer))
    timeline = None
    if index is not None:
        from ._cuda import Timeline, captures

        captures.watch(torch.cuda.CUDAGraph)
        captures.note = tracker.note
        timeline = functools.partial(Timeline, torch.cuda, index, COMPUTE)
    if not tracker.arm(
        distributed,
        -1 if index is None else index,
        _uuid(torch, index),
        _ring.TORCH,
        (_version(torch.__version__), *_gpu_versions(torch)),
        timeline,
    ):
        return False
    if index is not None:
        tracker.timeline.on_timed = _patch.timed_only.switch
    if not _attached_to_torch:
        _attached_to_torch = True
        _patch.wrap_torch(torch)
        _watch = _backward.Backward(_optimizers.parameters, torch.utils.hooks.unserializable_hook)
        if _ddp is not None:
            _watch.communicates()
        if index is not None:
            _watch.on_learned = _watch_buckets(torch)
            _patch.wrap_streams(torch.cuda)
        _patch.replace(torch.autograd, "backward", _watch.wrap)
    return _look()


def _watch_buckets(torch):
    """Return the function that periodically checks DDP's buckets."""
    gradient_edge = getattr(torch.autograd.graph, "get_gradient_edge", None)
    if gradient_edge is None:  # before torch 2.2
        return None
    from ._buckets import Buckets

    assign = getattr(torch.distributed, "_compute_bucket_assignment_by_size", None)
    buckets = Buckets(gradient_edge, torch.utils.hooks.unserializable_hook, assign)

    def look(arrived):
        model = _ddp() if _ddp is not None else None
        if model is not None:
            buckets.look(model, arrived)

    return look


def _look():
    """Look for the layout and for communicators now, and whenever records are written."""
    _layout.place.begin()
    _comms.tried = False
    tracker.on_flush = _on_flush
    if os.environ.get("PACELINE_TRACK"):
        from . import _stream  # noqa: F401
    _on_flush(tracker.began)
    return tracker.on


def _on_flush(now):
    _layout.place.look(now, tracker.ring, tracker.rank)
    if tracker.timeline is not None:
        _unseen.look_for_gpus(sys.modules["torch"].cuda)
    if not _comms.tried and _comms.is_needed():
        _comms.start(sys.modules["torch"], _ddp() if _ddp is not None else None)
    stream = sys.modules.get("paceline._stream")  # only if trackers were requested
    if stream is not None:
        stream.look(now)


def _device(optimizer):
    if optimizer is not None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                return parameter.device
    return None


def _gpu(torch, device):
    """Return the index of the GPU that the program computes on. If the parameters are on the host (for example
    offloaded ones), return the current GPU, if the program has created a context itself."""
    if device is not None and device.type == "cuda":
        return device.index
    if device is None or device.type == "cpu":
        cuda = getattr(torch, "cuda", None)
        if cuda is not None and cuda.is_initialized():
            return cuda.current_device()
    return None


def _uuid(torch, index):
    """Return the 16 bytes of the GPU's UUID, or zeros if torch does not provide it."""
    if index is None:
        return bytes(16)
    try:
        uuid = torch.cuda.get_device_properties(index).uuid
        return bytes(bytearray(b & 0xFF for b in uuid.bytes))[:16].ljust(16, b"\0")
    except Exception:
        return bytes(16)


def _gpu_versions(torch):
    """Return the versions of the loaded NCCL and of the CUDA that torch was built for; zeros if there is none."""
    none = (0, 0, 0), (0, 0)
    try:
        if not torch.version.cuda:
            return none
        nccl = tuple(min(int(number), 255) for number in torch.cuda.nccl.version()[:3])
        return nccl, _version(torch.version.cuda)[:2]
    except Exception:
        return none


def _version(text):
    """Return a version such as `2.15.0+cu130` as three numbers."""
    numbers = []
    for part in text.split("+")[0].split(".")[:3]:
        digits = "".join(c for c in part if c.isdigit())
        numbers.append(min(int(digits or 0), 255))
    return tuple(numbers + [0] * (3 - len(numbers)))
