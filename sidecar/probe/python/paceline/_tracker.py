"""Where the time of a step goes: one state, the phase that the trainer is in, and one sum per phase.

Every nanosecond between two step boundaries is charged to exactly one phase, the innermost that was entered, so
nested collectives are never counted twice and the phases of a step add up to its duration. Time that nobody claims is
compute. This module knows the ring and the clock, not torch.
"""

import os
import threading
import time

from . import _helper, _rank, _ring
from ._ring import CONTROL, PROGRESS, SINCE

OTHER, DATA, COMPUTE, WAIT, OPTIMIZER, CHECKPOINT, EVALUATION = range(7)
TRAIN_STEP, CHECKPOINT_STEP, EVALUATION_STEP, WARM_UP_STEP = range(4)
PHASES = {
    "data": DATA,
    "compute": COMPUTE,
    "wait": WAIT,
    "optimizer": OPTIMIZER,
    "checkpoint": CHECKPOINT,
    "evaluation": EVALUATION,
}

STAY = -1  # what `enter` gives when nothing changed and `leave` has nothing to undo
_CHECKPOINT_SHARE = 20  # a step is a checkpoint step from 1/20 of it on: small saves every step are ordinary

_clock = time.monotonic_ns
_thread = threading.get_ident


class Tracker:
    """The one writer of this process's ring. Nothing here raises: an error switches the tracker off and is noted."""

    def __init__(self):
        self.on = False  # a ring is attached and records are written
        self.retired = False  # never (again) in this process
        self.explicit = False  # the program calls paceline.step(): optimizers no longer end steps
        self.ring = None
        self.timeline = None  # CUDA events at the same boundaries, where the model is on a GPU
        self.thread = 0
        self.step = 0  # last finished
        self.phase = COMPUTE
        self.in_backward = 0
        self.optimizer_place = None  # inside Optimizer.step: what the optimizer had been charged before
        self._pending = []  # marks made before the first step
        self.spent = [0] * 7  # nanoseconds of the running step by phase
        self.began = self._since = 0
        self.passes = self.tokens = self.kind = 0
        self._running = 0  # the running step, as it stands in progress
        self._words = None  # the ring's header

    # Attach and detach.

    def arm(self, distributed=None, device=-1, uuid=bytes(16), framework=_ring.OTHER, version=(0, 0, 0), timeline=None):
        """Attach, at the end of the first step. True where it worked; else it is not tried again. `timeline`: makes
        one, given what writes a step."""
        try:
            directory = os.environ.get("PACELINE_RING_DIR")
            if not directory or os.environ.get("PACELINE_HOOK") == "off" or _helper.is_helper(distributed):
                self.retired = True
                return False
            self.ring = _ring.Ring(directory)
            self.thread = _thread()
            self.ring.attach(_rank.identity(distributed), device, uuid, framework, version)
            _helper.claim()
            if timeline is not None:
                self.timeline = timeline(self.ring.step)
        except Exception as error:
            self.fail(error)
            return False
        self.step = 1
        self._words = self.ring.words
        self._begin_step(COMPUTE, _clock())
        self.on = True
        for kind, value, text in self._pending:
            self.mark(kind, None, value, text)
        self._pending = []
        return True

    def detach(self):
        """The process ends in order."""
        if self.on:
            self.on = False
            try:
                if self.timeline is not None:
                    self.timeline.drain(last=True)
                self.ring.detach(self.step)
            except Exception:
                pass

    def fail(self, error):
        """Something of ours went wrong: say so once and stay out of the way."""
        self.on, self.retired = False, True
        try:
            if self.ring is not None:
                self.ring.note("hook off: %s: %s" % (type(error).__name__, error))
        except Exception:
            pass

    def forked(self):
        """In a forked child: the parent's ring is not ours to write."""
        self.__init__()

    def mine(self):
        """Whether the caller is the training thread, or autograd working for it while it waits in backward."""
        ident = _thread()
        return ident == self.thread or (self.in_backward > 0 and _helper.is_foreign_thread(ident))

    # Phases.

    # These run many times a step: they are written out, not built of each other.

    def enter(self, phase):
        """Begin a phase; the result goes to `leave`."""
        before = self.phase
        if before == phase or not self.on:
            return STAY
        try:
            if _thread() != self.thread and not self.mine():
                return STAY
            now = _clock()
            self.spent[before] += now - self._since
            self._since = now
            self.phase = phase
            words = self._words
            words[PROGRESS] = self._running | phase
            words[SINCE] = now
            if self.timeline is not None:
                self.timeline.mark(phase)
        except Exception as error:
            self.fail(error)
        return before

    def leave(self, before):
        """End the phase that `enter` began."""
        if before == STAY or not self.on:
            return
        try:
            now = _clock()
            self.spent[self.phase] += now - self._since
            self._since = now
            self.phase = before
            words = self._words
            words[PROGRESS] = self._running | before
            words[SINCE] = now
            if self.timeline is not None:
                self.timeline.mark(before)
        except Exception as error:
            self.fail(error)

    def wait_again(self):
        """In a wait that turned out to be none so far: what was waited goes to compute, the wait begins now."""
        now = _clock()
        self.spent[COMPUTE] += now - self._since
        self._since = now
        if self.timeline is not None:
            self.timeline.relabel_last(COMPUTE)
            self.timeline.mark(WAIT)

    def enter_optimizer(self):
        """`enter(OPTIMIZER)`, and remember where it began: see `not_optimizer`."""
        before = self.enter(OPTIMIZER)
        self.optimizer_place = self.spent[OPTIMIZER], 0 if self.timeline is None else self.timeline.count()
        return before

    def not_optimizer(self):
        """A backward has ended inside the optimizer's step: what was charged to the optimizer so far was the forward
        of a closure."""
        spent, count = self.optimizer_place
        self.spent[COMPUTE] += self.spent[OPTIMIZER] - spent
        self.spent[OPTIMIZER] = spent
        if self.timeline is not None:
            self.timeline.relabel_since(count, OPTIMIZER, COMPUTE)

    # Step boundaries.

    def end_step(self, phase=COMPUTE, step=None):
        """The step that was running has ended; the next begins in `phase`."""
        if not self.on or _thread() != self.thread:
            return
        try:
            words = self._words
            if words[CONTROL] & 1:  # the kill switch
                self.on, self.retired = False, True
                return
            now = _clock()
            spent = self.spent
            spent[self.phase] += now - self._since
            self.step = self.step + 1 if step is None else step
            duration = now - self.began
            kind = self.kind
            if kind == TRAIN_STEP and spent[CHECKPOINT] * _CHECKPOINT_SHARE > duration:
                kind = CHECKPOINT_STEP
            if self.timeline is None:
                self.ring.step(self.step, duration, spent, self.passes, kind, 1, self.tokens)
            else:
                self.timeline.end_step(phase, (self.step, duration, spent, self.passes, kind, self.tokens))
            self._begin_step(phase, now)
        except Exception as error:
            self.fail(error)

    def _begin_step(self, phase, now):
        self.phase = phase
        self.began = self._since = now
        self.spent = [0, 0, 0, 0, 0, 0, 0]
        self.passes = self.tokens = self.kind = 0
        self._running = (self.step + 1) << 8
        words = self._words
        words[PROGRESS] = self._running | phase
        words[SINCE] = now

    # What the program declares.

    def mark(self, kind, tokens, value, text):
        """See `paceline.mark`."""
        if self.retired:
            return
        if not self.on:
            if kind is not None and len(self._pending) < 16:
                self._pending.append((kind, value, text))
            return
        try:
            if _thread() != self.thread:
                return
            if tokens is not None:
                self.tokens = min(self.tokens + max(int(tokens), 0), 2**64 - 1)
            if kind is None:
                return
            if kind == "role":
                self.ring.role(text or value)
                return
            self.kind = {
                "checkpoint": CHECKPOINT_STEP,
                "evaluation": EVALUATION_STEP,
                "warm-up": WARM_UP_STEP,
            }.get(kind, self.kind)
            self.ring.mark(self.step + 1, kind, min(max(int(value), 0), 2**64 - 1))
        except Exception as error:
            self.fail(error)


tracker = Tracker()
