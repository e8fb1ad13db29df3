"""Measures where the time of a step goes, with one state, which is the trainer's current phase, and one sum per phase.

Every nanosecond between two step boundaries is charged to exactly one phase, the innermost, so nested collectives are
never counted twice and the phases of a step add up to its duration. Unassigned time is compute. This module uses the
ring and the clock, not torch.

`switch` and `end_step` run in every step, with the caches full of the trainer's data, so their cost is the number of
functions and objects that they touch. Therefore these are few, and the records of short steps are written several at a
time.
"""

import atexit
import os
import threading
import time

from . import _ends, _garbage, _helper, _rank, _ring, _stacks, _starts

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
STEP_KINDS = {"checkpoint": CHECKPOINT_STEP, "evaluation": EVALUATION_STEP, "warm-up": WARM_UP_STEP}

_HOLD = 500_000_000  # ns that a finished step's record may be held: written in batches, records cost a fifth
_MOST_HELD = 48  # steps
_CHECKPOINT_SHARE = 20  # a checkpoint step spends at least 1/20 in checkpoints: small saves every step are ordinary
_MOST_PENDING = 16  # marks before the first step
_GC_SHARE = 1000  # garbage collection of at least 1/1000 of the step is written
_GROUPS_AGAIN = 60_000_000_000  # ns after which groups are written again, for a sidecar that started later

_inherited = []  # timelines of the processes from which this one was forked

_clock = time.monotonic_ns
_thread = threading.get_ident


class Tracker:
    """The only writer of this process's ring. Nothing here raises. An error switches the tracker off and is noted."""

    __slots__ = (
        "on", "phase", "thread", "spent", "since", "_progress", "_running", "timeline", "in_backward", "began", "step",
        "passes", "tokens", "kind", "_held", "_unflushed", "_flush_at", "explicit", "ring", "retired", "_pending", "work", "comms",
        "on_flush", "rank", "_told", "_tell_again_at",
    )  # fmt: skip

    def __init__(self):
        self.on = False  # a ring is attached and records are written
        self.retired = False  # off for the rest of this process
        self.explicit = False  # the program calls paceline.step(): optimizers no longer end steps
        self.ring = None
        self.timeline = None  # CUDA events at the same boundaries, if the model is on a GPU
        self.thread = 0
        self.phase = COMPUTE
        self.in_backward = False
        self.step = 0  # number of the last finished step
        self.spent = [0] * 7  # nanoseconds of the running step by phase
        self.began = self.since = 0
        self.passes = self.tokens = self.kind = 0
        self._progress = None  # the ring's two words of progress
        self._running = 0  # the running step, as stored there
        self._held = []  # steps not written yet; on a GPU the timeline holds them
        self._unflushed = 0  # steps that ended since records were last written
        self._flush_at = 0
        self._pending = []  # marks made before the first step
        self.work = None  # work of the running step: sum of squared lengths, expert tokens, ns of garbage collection
        self.comms = None  # Comms, if there are several communicators
        self.on_flush = None  # called with the time, periodically
        self.rank = None  # identity
        self._told = set()  # communicators already written
        self._tell_again_at = 0

    # Methods that attach and detach.

    def arm(self, distributed=None, device=-1, uuid=bytes(16), framework=_ring.OTHER, versions=((0, 0, 0),), timeline=None):
        """Attach, at the end of the first step. Return True on success; otherwise it is not tried again. `versions` has
        those of the framework, NCCL and CUDA. `timeline` builds a timeline from the function that writes a step."""
        try:
            directory = os.environ.get("PACELINE_RING_DIR")
            if not directory or os.environ.get("PACELINE_HOOK") == "off" or _helper.is_helper(distributed):
                self.retired = True
                return False
            self.ring = _ring.Ring(directory)
            self._progress = self.ring.progress
            self.thread = _thread()
            self.rank = _rank.identity(distributed)
            self.ring.attach(self.rank, device, uuid, framework, *versions)
            _helper.claim()
            _ends.watch()
            _starts.end()
            if timeline is not None:
                self.timeline = timeline(self._write)
                self.timeline.note = self.note
            self.began = self.since = now = _clock()
            self.step = 1
            self._running = 2 << 8
            self.phase = COMPUTE
            self._progress[0] = self._running | COMPUTE
            self._progress[1] = now
            self.on = True
            _garbage.watch(self)
            _stacks.watch()
        except Exception as error:
            self.fail(error)
            return False
        for kind, value, text in self._pending:
            self._mark(1, kind, value, text)
        self._pending = []
        return True

    def close(self, in_order):
        """End the ring with the process. `in_order` is True if the process ends as its program intended."""
        if not self.on:
            return
        try:
            if self.timeline is not None:
                self.timeline.drain(last=True)
            self._flush(_clock())
            if self.on and in_order:
                self.ring.detach(self.step)
        except Exception:
            pass
        self.on = False

    def fail(self, error):
        """Note an internal error once and switch off."""
        self.on, self.retired = False, True
        try:
            if self.ring is not None:
                self.ring.note("hook off: %s: %s" % (type(error).__name__, error))
        except Exception:
            pass

    def note(self, why):
        """Write a note for the user."""
        try:
            if self.on:
                self.ring.note(why)
        except Exception as error:
            self.fail(error)

    def forked(self):
        """Reset in a forked child, because the ring belongs to the parent. Its CUDA events are kept, because freeing
        one calls CUDA, which does not work in a forked child (CUDA_ERROR_NOT_INITIALIZED at best, and a lock held by
        another thread at worst)."""
        if self.timeline is not None:
            _inherited.append(self.timeline)
        self.__init__()
        _starts.forked()

    # Methods for phases.

    def switch(self, phase):
        """Enter `phase`. Return the previous phase, to be restored later."""
        before = self.phase
        if before == phase or not self.on or (_thread() != self.thread and not self._is_autograd()):
            return phase
        try:
            now = _clock()
            self.spent[before] += now - self.since
            self.since = now
            self.phase = phase
            progress = self._progress
            progress[0] = self._running | phase
            progress[1] = now
            if self.timeline is not None:
                self.timeline.mark(phase)
        except Exception as error:
            self.fail(error)
        return before

    def is_elsewhere(self):
        """Return whether the current stream is not the training stream. A wait on another stream does not block
        training."""
        return self.timeline is not None and not self.timeline.is_training()

    def waits_on_gpu(self, stream):
        """Return whether the training stream would wait if `stream` did; None means the current stream."""
        timeline = self.timeline
        return timeline is not None and timeline.is_timed and timeline.is_training(stream) and self.is_own_thread()

    def mark_gpu(self, phase):
        """Record that the training stream enters `phase` here, while the host does not."""
        try:
            self.timeline.mark(phase)
        except Exception as error:
            self.fail(error)

    def skips_waits(self):
        """Return whether this step's GPU waits need not be separated from work, because the step is not timed."""
        return self.timeline is not None and not self.timeline.is_timed

    def is_own_thread(self):
        """Return whether the calling thread's time is this trainer's."""
        return _thread() == self.thread or self._is_autograd()

    def _is_autograd(self):
        """Return whether a thread other than the trainer's is an autograd thread that works for the trainer while the
        trainer is in backward. Background loaders and savers are not."""
        return self.in_backward and _helper.is_foreign_thread(_thread())

    def wait_again(self):
        """Charge the time of the assumed wait so far to compute, because it was not a wait. The wait begins now."""
        try:
            now = _clock()
            self.spent[COMPUTE] += now - self.since
            self.since = now
            if self.timeline is not None:
                self.timeline.relabel_last(COMPUTE)
                self.timeline.mark(WAIT)
        except Exception as error:
            self.fail(error)

    def not_optimizer(self):
        """Charge the optimizer's time so far to compute, because a backward has ended inside Optimizer.step, and that
        time was the forward of a closure."""
        self.spent[COMPUTE] += self.spent[OPTIMIZER]
        self.spent[OPTIMIZER] = 0
        if self.timeline is not None:
            self.timeline.relabel(OPTIMIZER, COMPUTE)

    # Methods for step boundaries.

    def end_step(self, phase=COMPUTE, step=None):
        """End the running step. The next one begins in `phase`."""
        if not self.on or _thread() != self.thread:
            return
        try:
            now = _clock()
            self.spent[self.phase] += now - self.since
            self.phase = phase
            self.step = ended = self.step + 1 if step is None else int(step)
            comms = self.comms.take() if self.comms is not None else None
            fields = ended, now - self.began, self.spent, self.passes, self.kind, self.tokens, self.work, comms
            self.work = None
            self.began = self.since = now
            self.spent = [0, 0, 0, 0, 0, 0, 0]
            self.passes = self.tokens = self.kind = 0
            self._running = running = (ended + 1) << 8
            progress = self._progress
            progress[0] = running | phase
            progress[1] = now
            if self.timeline is not None:
                self.timeline.end_step(phase, fields)
            else:
                self._held.append(fields)
            self._unflushed += 1
            if now >= self._flush_at or self._unflushed >= _MOST_HELD:
                self._flush(now)
        except Exception as error:
            self.fail(error)

    def _flush(self, now):
        """Write the held steps, preceded by facts about the rank."""
        if self.ring.stopped():  # the kill switch
            self.on, self.retired = False, True
            return
        if self.on_flush is not None:
            self.on_flush(now)
        if now >= self._tell_again_at:
            self._tell_again_at = now + _GROUPS_AGAIN
            self._told.clear()
        self._unflushed = 0
        held, self._held = self._held, []
        for fields in held:
            self._write(fields, True)
        if self.timeline is not None:
            self.timeline.drain()
        self._flush_at = now + _HOLD

    def _write(self, fields, known):
        step, duration, spent, passes, kind, tokens, work, comms = fields
        if work is not None:
            self._write_work(step, duration, work)
        if comms is not None and known and self.comms is not None:
            self._write_comms(step, comms)
        if spent[CHECKPOINT] * _CHECKPOINT_SHARE > duration and kind == TRAIN_STEP:
            kind = CHECKPOINT_STEP
        self.ring.step(step, duration, spent, passes, kind, known, tokens)

    def _write_work(self, step, duration, work):
        sum_sq, expert_tokens, garbage = work
        if garbage * _GC_SHARE < duration:
            garbage = 0
        if sum_sq or expert_tokens or garbage:
            self.ring.work(step, sum_sq, expert_tokens, garbage)

    def _write_comms(self, step, comms):
        for comm, (collectives, size, spent) in comms.items():
            if comm not in self._told:
                self._told.add(comm)
                self.ring.group(comm, *self.comms.groups[comm])
            self.ring.comm(step, comm, collectives, size, spent)

    # Methods for declarations by the program.

    def mark(self, kind, tokens, value, text, sum_sq=None, expert_tokens=None):
        """See `paceline.mark`."""
        if self.retired:
            return
        if not self.on:
            if kind is not None and len(self._pending) < _MOST_PENDING:
                self._pending.append((kind, value, text))
            return
        try:
            if _thread() != self.thread:
                return
            if tokens is not None:
                self.tokens = _u64(self.tokens + _u64(tokens))
            if sum_sq is not None or expert_tokens is not None:
                self._add_work(_u64(sum_sq or 0), _u64(expert_tokens or 0))
            # Takes the highest of several kinds, because a checkpoint's time is known separately and an evaluation's is
            # not.
            self.kind = max(self.kind, STEP_KINDS.get(kind, TRAIN_STEP))
        except Exception:  # TypeError, ValueError; OverflowError of an infinity; any exception of a tensor
            pass  # the program's own mistake in an optional argument: no reason to switch off
        if kind is not None:
            self._mark(self.step + 1, kind, value, text)

    def _add_work(self, sum_sq, expert_tokens):
        work = self.work
        if work is None:
            work = self.work = [0, 0, 0]
        work[0] = _u64(work[0] + sum_sq)
        work[1] = _u64(work[1] + expert_tokens)

    def _mark(self, step, kind, value, text):
        try:
            kind = str(kind)
            said = str(text or value) if kind == "role" else _u64(value)
        except Exception:
            return  # the program's own mistake again
        try:
            self._flush(_clock())
            if kind == "role":
                self.ring.role(said)
            else:
                self.ring.mark(step, kind, said)
        except Exception as error:
            self.fail(error)


def _u64(number):
    return min(max(int(number), 0), 2**64 - 1)


def _at_exit():
    # The end is not in order if the program ended with an uncaught exception or a nonzero code.
    tracker.close(in_order=_ends.at_exit())


tracker = Tracker()
_helper.watch_forks(tracker.forked)
atexit.register(_at_exit)
