"""Wraps torch functions so that the time in them is charged to a phase.

A wrapper keeps the name, the documentation and the signature of the wrapped function, and passes results and exceptions
through. A wrapper that may be called inside a graph does nothing while torch.compile is tracing.
"""

import functools
import inspect
import sys

from . import _starts
from ._garbage import on_collection
from ._tracker import CHECKPOINT, DATA, WAIT, Tracker, tracker

# Collectives of torch.distributed that block. On a GPU they do not block, but later work waits for them. Names missing
# in a torch version are skipped.
COLLECTIVES = (
    "all_gather all_gather_coalesced all_gather_into_tensor all_gather_object all_gather_single all_reduce "
    "all_reduce_coalesced all_to_all all_to_all_single barrier broadcast broadcast_object_list gather gather_object "
    "gather_into_tensor gather_single monitored_barrier recv recv_object_list reduce reduce_scatter "
    "reduce_scatter_single reduce_scatter_tensor scatter scatter_object_list send send_object_list "
    "_all_gather_base _reduce_scatter_base"
).split()
# Functions that return a handle and never block.
LAUNCHES = ("isend", "irecv")


def _never():
    return False


# Returns whether torch.compile is tracing the caller. Once torch is loaded, this is the function that its tracer takes
# to be true.
is_compiling = _never


def timed(function, phase):
    """Return `function` with its time charged to `phase`. Do not use it for functions that may be called inside a
    graph."""

    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        if not tracker.on or tracker.phase == phase:
            return function(*args, **kwargs)
        before = tracker.switch(phase)
        try:
            return function(*args, **kwargs)
        finally:
            tracker.switch(before)

    return wrapper


def timed_next(function):
    """Return an iterator's __next__ with its time charged to data."""

    @functools.wraps(function)
    def __next__(self):
        if not tracker.on or tracker.phase == DATA:
            return function(self)
        before = tracker.switch(DATA)
        try:
            return function(self)
        finally:
            tracker.switch(before)

    return __next__


def _position(function, name):
    try:
        return list(inspect.signature(function).parameters).index(name)
    except (TypeError, ValueError):
        return None


def collective(function):
    """Return a collective with its time charged to wait. The launch of an asynchronous one does not count as wait."""
    group_at = _position(function, "group")
    async_at = _position(function, "async_op")

    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        if not tracker.on or tracker.phase == WAIT:
            # Only before the first step, and not when traced into a graph, which would contain the store.
            if _starts.place is None or is_compiling() or _starts.place.stage != _starts.JOINED:
                return function(*args, **kwargs)
            return _starts.waiting(function, args, kwargs)
        if kwargs.get("async_op") or (async_at is not None and len(args) > async_at and args[async_at]):
            return _launch(function, args, kwargs, group_at)
        if is_compiling() or (tracker.skips_waits() and _is_on_gpu(args)) or tracker.is_elsewhere():
            return function(*args, **kwargs)
        before = tracker.switch(WAIT)
        try:
            return function(*args, **kwargs)
        finally:
            if tracker.comms is None:
                tracker.switch(before)
            else:
                tracker.comms.ended(before, args, kwargs, group_at)

    return wrapper


def _is_on_gpu(args):
    """Return whether a collective with these arguments does not block the host, because its first tensor is on a
    GPU."""
    first = args[0] if args else None
    if isinstance(first, (list, tuple)) and first:
        first = first[0]
    return getattr(first, "is_cuda", False)


def _launch(function, args, kwargs, group_at):
    if tracker.comms is None or tracker.skips_waits() or is_compiling():
        return function(*args, **kwargs)
    work = function(*args, **kwargs)
    comms = tracker.comms  # read again, because a nested collective may have unset it
    return work if comms is None else comms.launched(work, args, kwargs, group_at)


def launch(function):
    """Wrap a send or receive that returns a handle."""
    group_at = _position(function, "group")

    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        if not tracker.on or tracker.comms is None or tracker.phase == WAIT:
            return function(*args, **kwargs)
        return _launch(function, args, kwargs, group_at)

    return wrapper


def launch_batch(function):
    """Wrap torch.distributed.batch_isend_irecv."""

    @functools.wraps(function)
    def batch_isend_irecv(p2p_op_list):
        works = function(p2p_op_list)
        if not tracker.on or tracker.comms is None or is_compiling():
            return works
        return tracker.comms.launched_batch(works, p2p_op_list)

    return batch_isend_irecv


def waiting(function):
    """Return Work.wait with its time charged to wait."""

    @functools.wraps(function)
    def wait(self, *args, **kwargs):
        if not tracker.on or tracker.phase == WAIT or tracker.is_elsewhere():
            return function(self, *args, **kwargs)
        before = tracker.switch(WAIT)
        try:
            return function(self, *args, **kwargs)
        finally:
            if tracker.comms is None:
                tracker.switch(before)
            else:
                tracker.comms.waited(before, self)

    return wait


def stream_waiting(function):
    """Wrap torch.cuda.Event.wait, by which a stream waits for another. On the training stream it is a wait of the GPU.
    The host continues at once, so its own phase does not change."""

    @functools.wraps(function)
    def wait(self, stream=None):
        if not tracker.on or tracker.phase == WAIT or is_compiling() or not tracker.waits_on_gpu(stream):
            return function(self, stream)
        tracker.mark_gpu(WAIT)
        try:
            return function(self, stream)
        finally:
            tracker.mark_gpu(tracker.phase)

    return wait


class TimedOnly:
    """Switches methods of classes between their wrappers, in timed steps, and the originals, in all other steps."""

    def __init__(self):
        self._methods = []  # (class, name, wrapper, original)

    def wrap(self, owner, name, wrap):
        """Like `replace`."""
        original = getattr(owner, name, None)
        if callable(original):
            wrapper = wrap(original)
            setattr(owner, name, wrapper)
            self._methods.append((owner, name, wrapper, original))

    def switch(self, is_timed):
        """Begin a timed or an untimed step. Methods that other code has wrapped since then are left unchanged."""
        for owner, name, wrapper, original in self._methods:
            before, after = (original, wrapper) if is_timed else (wrapper, original)
            if getattr(owner, name) is before:
                setattr(owner, name, after)


timed_only = TimedOnly()


def replace(owner, name, wrap, *args):
    """Replace `owner.name` by `wrap(owner.name, *args)`, if it exists."""
    function = getattr(owner, name, None)
    if callable(function):
        setattr(owner, name, wrap(function, *args))


def wrap_collectives(module):
    """Wrap torch.distributed.distributed_c10d before torch.distributed copies its names. Then code that imports a
    collective by name gets the wrapper, and so does torch.compile, which recognizes collectives by identity."""
    replace(module, "init_process_group", _starts.joining)
    for name in COLLECTIVES:
        replace(module, name, collective)
    for name in LAUNCHES:
        replace(module, name, launch)
    replace(module, "batch_isend_irecv", launch_batch)


def wrap_checkpoints(module):
    """Wrap torch.distributed.checkpoint.state_dict_saver. Only the part of an asynchronous save that blocks the trainer
    counts."""
    for name in ("save", "async_save", "save_state_dict"):
        replace(module, name, timed, CHECKPOINT)


def watch_compiler(torch):
    """From now on, detect whether torch.compile is tracing."""
    global is_compiling
    compiler = getattr(torch, "compiler", None)
    for owner, name in (
        (compiler, "is_dynamo_compiling"),
        (compiler, "is_compiling"),
        (getattr(torch, "_utils", None), "is_compiling"),  # before torch 2.3
    ):
        if hasattr(owner, name):
            is_compiling = getattr(owner, name)
            break
    hide_from_dynamo(_starts.waiting, _starts._move, _starts._leave, collective(_never))


def wrap_streams(cuda):
    """Wrap the waits of torch.cuda. FSDP communicates on separate streams and makes the training stream wait for them.
    Stream.wait_event and Stream.wait_stream call Event.wait."""
    timed_only.wrap(cuda.Event, "wait", stream_waiting)


def wrap_torch(torch):
    """Wrap everything that is looked up at each call. This can wait until the first step has shown that this process
    trains."""
    watch_compiler(torch)
    hide_from_dynamo(
        timed(_never, WAIT),
        timed_next(_never),
        collective(_never),
        _launch,
        _is_on_gpu,
        launch(_never),
        launch_batch(_never),
        waiting(_never),
        stream_waiting(_never),
        on_collection,
        *(method for method in vars(Tracker).values() if hasattr(method, "__code__")),
    )
    replace(torch, "save", timed, CHECKPOINT)
    loader = sys.modules.get("torch.utils.data.dataloader")
    if loader is not None:
        replace(loader._BaseDataLoaderIter, "__next__", timed_next)
    bindings = getattr(torch._C, "_distributed_c10d", None)
    if bindings is not None:
        # Everything in Python that blocks on a collective calls Work.wait, including DTensor, FSDP and a program's own
        # handles.
        timed_only.wrap(bindings.Work, "wait", waiting)
        # Wraps DDP's broadcast of buffers before each forward.
        replace(torch.distributed, "_broadcast_coalesced", timed, WAIT)
    functional = sys.modules.get("torch.distributed._functional_collectives")
    if functional is not None:
        replace(functional, "wait_tensor", collective)  # traced into graphs


def hide_from_dynamo(*functions):
    """Keep dynamo from compiling our frames, which it would try between two graphs of a compiled function. (For a frame
    that is called inside a graph, see `is_compiling`.)"""
    try:
        from torch._C._dynamo import eval_frame
    except ImportError:
        return
    for function in functions:
        code = getattr(function, "__code__", None)
        if code is None:
            continue
        if hasattr(eval_frame, "skip_code"):
            eval_frame.skip_code(code)
        elif hasattr(eval_frame, "set_code_exec_strategy"):
            action = eval_frame._FrameAction
            eval_frame.set_code_exec_strategy(code, eval_frame._FrameExecStrategy(action.SKIP, action.DEFAULT))
