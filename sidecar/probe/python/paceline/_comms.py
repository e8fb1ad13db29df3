"""Sums up a step's collectives by communicator, for programs that use more than one, because tensor-parallel ranks wait
for other peers than data-parallel ranks do.

These sums include the collectives that Python code calls on torch.distributed, and the wait in DDP's backward, which
counts as one collective over all its gradients. Collectives issued by compiled graphs or C++ count as wait, but in no
communicator.
"""

import hashlib
import sys
import weakref

from . import _patch
from ._tracker import COMPUTE, WAIT, tracker

_MOST_LAUNCHED = 4096  # asynchronous collectives that were not waited for
_MOST_GROUPS = 256


tried = False


def is_needed():
    """Return whether there are groups besides the default group."""
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    try:
        return len(c10d._world.pg_map) > 1
    except Exception:
        return False


def start(torch, ddp):
    """Start summing. `ddp` is the latest DDP model, or None."""
    global tried
    tried = True
    try:
        comms = Comms(torch.distributed, torch.Tensor)
        if ddp is not None:
            comms.made_ddp(ddp)
        _patch.hide_from_dynamo(*vars(Comms).values(), _group)
        tracker.comms = comms
    except Exception as error:
        _off(error)


def _off(error):
    """Continue without these sums after an internal error."""
    tracker.comms = None
    tracker.note("collectives by group off: %s: %s" % (type(error).__name__, error))


class Comms:
    """The running step's sums by communicator. `tensor` is torch.Tensor."""

    def __init__(self, distributed, tensor):
        self._distributed = distributed
        self._tensor = tensor
        self._of = {}  # id of a group: (weak reference to it, communicator)
        self._launched = {}  # id of a handle: (weak reference to it, communicator)
        self._sums = {}  # communicator: [collectives, bytes, ns]
        self._ddp = None  # weak reference, bytes of its gradients
        self.groups = {}  # communicator: (size, name)

    def take(self):
        """Return the sums of the step that has ended, or None if this rank has only ever used one communicator."""
        sums = self._sums
        if not sums:
            return None
        self._sums = {}
        return sums if len(self.groups) > 1 else None

    # The wrappers call these methods. The phase is wait, unless `before` says that this thread must not change it.

    def ended(self, before, args, kwargs, group_at):
        """Record that a blocking collective has returned."""
        try:
            comm = None if before == WAIT else self._comm(_group(args, kwargs, group_at))
            if comm is not None:
                self._count(comm, self._bytes(args, kwargs))
        except Exception as error:
            comm = _off(error)
        self._leave(before, comm)

    def launched(self, work, args, kwargs, group_at):
        """Record that an asynchronous collective has returned a handle."""
        try:
            comm = self._comm(_group(args, kwargs, group_at)) if work is not None and tracker.is_own_thread() else None
            if comm is not None:
                self._count(comm, self._bytes(args, kwargs))
                self._remember(work, comm)
        except Exception as error:
            _off(error)
        return work

    def launched_batch(self, works, operations):
        """Record a call of torch.distributed.batch_isend_irecv. Each of its operations was already counted when it was
        called, unless the backend coalesced them."""
        try:
            comm = self._comm(operations[0].group) if operations and tracker.is_own_thread() else None
            for work in works if comm is not None else ():
                if self._launched_in(work) is None:
                    self._remember(work, comm)
        except Exception as error:
            _off(error)
        return works

    def waited(self, before, work):
        """Record that the wait on a handle is over."""
        comm = None
        if before != WAIT:
            comm = self._launched_in(work)
            self._launched.pop(id(work), None)
        self._leave(before, comm)

    def made_ddp(self, model):
        """Record that a DDP model was created."""
        try:
            gradients = (p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
            self._ddp = weakref.ref(model), sum(gradients)
        except Exception as error:
            _off(error)

    def ended_backward(self):
        """Record that the wait in the backward of a wrapper that communicates in C++ is over."""
        comm = None
        try:
            model, size = self._ddp or (None, 0)
            model = model() if model is not None else None
            if model is not None and model.require_backward_grad_sync:
                comm = self._comm(model.process_group)
                if comm is not None:
                    self._count(comm, size)
        except Exception as error:
            comm = _off(error)
        self._leave(COMPUTE, comm)

    # The remaining methods are internal.

    def _leave(self, before, comm):
        since = tracker.since
        if comm is not None and tracker.timeline is not None:
            tracker.timeline.tag_last(comm)  # its time comes from the GPU, later
        tracker.switch(before)
        if comm is not None and tracker.timeline is None:
            self._sum(comm)[2] += tracker.since - since

    def _count(self, comm, size):
        sums = self._sum(comm)
        sums[0] += 1
        sums[1] += size

    def _sum(self, comm):
        sums = self._sums.get(comm)
        if sums is None:
            sums = self._sums[comm] = [0, 0, 0]
        return sums

    def _remember(self, work, comm):
        if len(self._launched) >= _MOST_LAUNCHED:
            self._launched.clear()
        try:
            self._launched[id(work)] = weakref.ref(work), comm
        except TypeError:
            pass  # no weak reference: a later handle may reuse its address, so its wait has no communicator

    def _launched_in(self, work):
        """Return the communicator of a handle. A handle that is never waited for is freed, and another one may get its
        address."""
        reference, comm = self._launched.get(id(work), (None, None))
        return comm if reference is not None and reference() is work else None

    def _comm(self, group):
        known = self._of.get(id(group))
        if known is None or (known[0] is not None and known[0]() is not group):
            known = self._of[id(group)] = self._identify(group)
        return known[1]

    def _identify(self, group):
        real = self._distributed.group.WORLD if group is None else group
        reference = None if group is None else weakref.ref(group)
        try:
            ranks = sorted(self._distributed.get_process_group_ranks(real))
        except Exception:
            return reference, None  # not a member
        if len(ranks) < 2:
            return reference, None
        name = str(real.group_name)
        key = "%s;%s" % (",".join(map(str, ranks)), name)
        comm = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "little")
        if comm not in self.groups and len(self.groups) >= _MOST_GROUPS:
            return reference, None
        words = getattr(real, "group_desc", None)
        self.groups[comm] = len(ranks), name if words in (None, "", "undefined") else words
        return reference, comm

    def _bytes(self, args, kwargs):
        """Return the size of the larger of input and output, as nccl-tests count it."""
        most = 0
        for value in (*args[:2], *kwargs.values()):
            if isinstance(value, self._tensor):
                most = max(most, value.nbytes)
            elif isinstance(value, (list, tuple)) and value and isinstance(value[0], self._tensor):
                most = max(most, sum(each.nbytes for each in value))
        return most


def _group(args, kwargs, at):
    if at is not None and len(args) > at:
        return args[at]
    return kwargs.get("group")
