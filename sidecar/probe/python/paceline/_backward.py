"""The wait in backward: from the last local gradient to the end of backward, when a wrapper such as DDP communicates
there in C++, out of Python's sight.

A hook on every parameter would cost 3 to 5 µs for each of them. So one backward is watched in full to learn which
parameter's gradient comes last, and only that one keeps a hook. Different losses may end at different parameters: a
few are kept, and whichever fires last in a backward counts. Learning is repeated at the 2nd, 4th, 8th, ... backward,
and when the hooks stop firing.
"""

import functools
import weakref

from . import _patch
from ._tracker import COMPUTE, STAY, WAIT, tracker

_KEPT = 8  # hooks
_MISSES = 8  # backwards in a row without a hook firing, then learn again


class Backward:
    """Wraps torch.autograd.backward. `parameters` gives those of the optimizers seen so far."""

    def __init__(self, parameters, unserializable):
        self.communicates = False  # a DDP model was made in this process
        self._parameters = parameters
        self._unserializable = unserializable  # torch.utils.hooks.unserializable_hook
        self._kept = []  # (weak reference to the parameter, handle)
        self._learning = []  # handles
        self._last = None
        self._waiting = False  # the wait that is running was begun by a gradient
        self._seen = 0
        self._misses = 0

    def wrap(self, function):
        """torch.autograd.backward, watched."""

        @functools.wraps(function)
        def backward(*args, **kwargs):
            if not tracker.on or not tracker.mine():
                return function(*args, **kwargs)
            tracker.in_backward += 1
            before = STAY if tracker.phase == COMPUTE else tracker.enter(COMPUTE)
            if tracker.in_backward == 1:  # else recomputed activations: a backward inside a backward
                tracker.passes += 1
                self._waiting = False
                if self.communicates:
                    self._seen = seen = self._seen + 1
                    if seen & (seen - 1) == 0 or self._misses >= _MISSES:
                        self._start_learning()
            try:
                return function(*args, **kwargs)
            finally:
                tracker.in_backward -= 1
                if tracker.in_backward == 0:
                    self._end()
                if before != STAY:
                    tracker.leave(before)
                    if tracker.optimizer_place is not None:
                        tracker.not_optimizer()

        _patch.hide_from_dynamo(backward, Backward._end)
        return backward

    def _end(self):
        if self._waiting:
            self._misses = 0
            tracker.leave(COMPUTE)
        elif self._kept:
            self._misses += 1
        if self._learning:
            self._finish_learning()

    def _hook(self, parameter=None):
        """A hook that says: this gradient may be the last of this backward. With a parameter, remember it too."""

        @self._unserializable
        def on_gradient(_):
            if tracker.in_backward:
                if parameter is not None:
                    self._last = parameter
                if not self._waiting:
                    self._waiting = True
                    tracker.enter(WAIT)
                elif tracker.phase == WAIT:
                    tracker.wait_again()

        _patch.hide_from_dynamo(on_gradient)
        return on_gradient

    def _start_learning(self):
        self._last = None
        self._misses = 0
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
