"""Selects the steps whose phases are timed on a GPU, so that the trainer's thread spends at most 1/1000 of its steps on
timing.

An event costs the host some microseconds, and FSDP alone makes the training stream wait several hundred times a step.
The first steps are all timed, long enough to find a rank that is slow from the start. After that, one step in a power
of two is timed, depending on the cost of marks so far. Steps are counted from the first, so that all ranks time the
same ones.
"""

from statistics import median

FULL_STEPS = 256  # at the start; afterwards the interval between decisions
MOST_PERIOD = 512  # steps
SHARE = 4000  # at most 1/4000 of the steps' time may be host time for marks, because the rest of the hook takes more
_MEASURED = 32  # timed steps whose costs are kept
WRAPPER_NS = 1_000  # cost of a mark outside Timeline.mark, in the wrapper around the waiting function


class Sampling:
    """Decides for each step whether it is timed. Times in ns."""

    def __init__(self):
        self.period = 1
        self.note = None  # writes a note for the report
        self._step = 0
        self._costs = []  # of the host, in the latest timed steps
        self._durations = []  # durations of these steps

    def begins(self):
        """Begin a step. Return whether it is timed."""
        self._step += 1
        if self._step % FULL_STEPS == 0:  # the same on all ranks
            self._decide()
        return self._step % self.period == 0

    def measured(self, cost_ns, duration_ns):
        """Record the host cost of the marks of one timed step, and the step's duration."""
        if len(self._costs) >= _MEASURED:
            self._costs.pop(0)
            self._durations.pop(0)
        self._costs.append(cost_ns)
        self._durations.append(duration_ns)

    def _decide(self):
        if not self._costs:
            return
        allowed = max(median(self._durations) / SHARE, 1)
        needed = median(self._costs) / allowed
        period = 1
        while period < needed and period < MOST_PERIOD:
            period *= 2
        # Avoids switching back and forth: samples less at once, but samples more only if that is clearly affordable.
        if period > self.period or 4 * needed <= self.period:
            changed, self.period = period != self.period, period
            if changed and self.note is not None:
                self.note(described(period))


def described(period):
    """Return a description for the report, of 48 bytes at most."""
    return "phases of every step" if period == 1 else "phases of 1 step in %d, to spare the host" % period
