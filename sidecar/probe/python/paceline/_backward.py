"""The wait in backward: from the last local gradient to the end of backward, when a wrapper such as DDP communicates in
C++, invisible to Python.

A hook on every parameter would cost 3 to 5 µs each. So one backward is watched in full to learn which parameter's
gradient comes last, and only that parameter keeps a hook. Different losses may end at different parameters: a few hooks
are kept, and the last one that fires in a backward counts. Learning is repeated at the 2nd, 4th, 8th, ... backward, and
when the hooks stop firing.
"""

import functools
import weakref
from threading import get_ident

from . import _patch
from ._tracker import COMPUTE, OPTIMIZER, WAIT, tracker

_KEPT = 8  # hooks that are kept at most
_MISSES = 8  # backward passes in which no hook fires, before learning again


class Backward:
    """Wraps torch.autograd.backward. `parameters` returns the parameters of the optimizers seen so far."""

    __slots__ = (
        "_seen", "_learn_at", "_kept", "_misses", "_last", "_learning", "_parameters", "_unserializable", "_arrived",
        "on_learned",
    )  # fmt: skip

    def __init__(self, parameters, unserializable):
        self._parameters = parameters
        self._unserializable = unserializable  # torch.utils.hooks.unserializable_hook
        self._kept = []  # (weak reference to the parameter, handle)
        self._learning = []  # handles of the hooks while learning
        self._last = None
        self._seen = 0  # backward passes
        self._learn_at = float("inf")
        self._misses = 0
        self._arrived = []  # parameters in the order in which their gradients arrived, while learning
        self.on_learned = None  # called with that order between two backward passes

    def communicates(self):
        """Look for a wait in backward, because a DDP model was created in this process."""
        self._learn_at = self._seen + 1

    def wrap(self, function):
        """Wrap torch.autograd.backward."""

        @functools.wraps(function)
        def backward(*args, **kwargs):
            # This call is nested, because activation checkpointing runs a backward of its own.
            if not tracker.on or tracker.in_backward or get_ident() != tracker.thread:
                return function(*args, **kwargs)
            before = tracker.phase
            if before != COMPUTE:
                tracker.switch(COMPUTE)
            tracker.in_backward = True
            tracker.passes += 1
            self._seen = seen = self._seen + 1
            learn = seen >= self._learn_at
            if learn:
                self._start_learning()
            try:
                return function(*args, **kwargs)
            finally:
                tracker.in_backward = False
                if tracker.phase == WAIT:
                    if tracker.comms is None:
                        tracker.switch(COMPUTE)
                    else:
                        tracker.comms.ended_backward()
                elif self._kept:
                    self._missed()
                if learn:
                    self._finish_learning()
                if before != COMPUTE:
                    tracker.switch(before)
                    if before == OPTIMIZER:
                        tracker.not_optimizer()

        _patch.hide_from_dynamo(backward, Backward._start_learning, Backward._finish_learning, Backward._missed)
        return backward

    def _hook(self, parameter=None):
        """Return a hook for a gradient that may be the last of this backward. With a parameter, also remember the
        parameter."""

        @self._unserializable
        def on_gradient(_):
            if tracker.in_backward:
                if parameter is not None:
                    self._last = parameter
                    self._arrived.append(parameter)
                if tracker.phase == WAIT:
                    tracker.wait_again()
                else:
                    tracker.switch(WAIT)

        _patch.hide_from_dynamo(on_gradient)
        return on_gradient

    def _missed(self):
        """Count a backward in which no hook fired. Either nothing was communicated, or it ended at another
        parameter."""
        self._misses += 1
        if self._misses >= _MISSES:
            self._misses = 0
            self._learn_at = self._seen + 1

    def _start_learning(self):
        self._last = None
        self._learn_at = 2 * self._seen
        try:
            for parameter in self._parameters():
                if parameter.requires_grad:
                    self._learning.append(parameter.register_hook(self._hook(parameter)))
        except Exception as error:
            tracker.fail(error)

    def _finish_learning(self):
        try:
            for handle in self._learning:
                handle.remove()
            self._learning = []
            last, self._last = self._last, None
            if last is None or any(parameter() is last for parameter, _ in self._kept):
                return
            if len(self._kept) == _KEPT:
                self._kept.pop(0)[1].remove()
            self._kept.append((weakref.ref(last), last.register_hook(self._hook())))
        except Exception as error:
            tracker.fail(error)
        finally:
            arrived, self._arrived = self._arrived, []
            if self.on_learned is not None:
                self.on_learned(arrived)
