"""The same phases on a GPU's own clock.

On a GPU host times only say when work was enqueued. So an event is recorded on the trainer's stream at each boundary
and read later, when it has passed: never waiting, never synchronising. A phase lasts from its event to the next one's.
Data loading and host work come out as what the GPU was kept waiting, which is what they cost.

Records therefore leave a few steps late, in order. No events are recorded while a CUDA graph is being captured, nor on
other streams (FSDP communicates on its own); such steps say that their phases are not known.
"""

import sys
from collections import deque

MOST_MARKS = 64  # events in a step; past them its phases are not known
MOST_PENDING = 32  # steps whose events have not passed; past them the oldest is written by the host's clock


class Timeline:
    """Events of the running step and of those that the GPU has not finished. `cuda` is torch.cuda."""

    def __init__(self, cuda, device, phase, write):
        self._cuda = cuda
        self._device = device
        self._write = write  # takes the fields of a step, and whether its phases are known
        self._free = []
        self._pending = deque()
        self._marks = []  # [phase, event, communicator or None], oldest first
        self._known = True
        self._phase = phase  # that the step began in
        self._stream_of = getattr(sys.modules.get("torch._C"), "_cuda_getCurrentRawStream", None)
        self._stream = self._current_stream()
        self._began = self._event()  # at the end of the step before

    def _current_stream(self):
        if self._stream_of is not None:
            return self._stream_of(self._device)
        return self._cuda.current_stream(self._device).cuda_stream

    def _event(self):
        """An event recorded now; None where there can be none."""
        if self._cuda.is_current_stream_capturing() or self._current_stream() != self._stream:
            self._known = False
            return None
        event = self._free.pop() if self._free else self._cuda.Event(enable_timing=True)
        event.record()
        return event

    def mark(self, phase):
        """A phase begins."""
        if len(self._marks) >= MOST_MARKS:
            self._known = False
            return
        event = self._event()
        if event is not None:
            self._marks.append([phase, event, None])

    def relabel_last(self, phase):
        """What began last was of another phase."""
        if self._marks:
            self._marks[-1][0] = phase

    def tag_last(self, comm):
        """What began last was in this communicator."""
        if self._known and self._marks:
            self._marks[-1][2] = comm

    def relabel(self, old, new):
        """What was `old` so far in this step was `new`; what began last stays."""
        for mark in self._marks[:-1]:
            if mark[0] == old:
                mark[0] = new

    def end_step(self, phase, fields):
        """A step has ended and the next begins in `phase`. `fields`: what was seen of it by the host's clock."""
        end = self._event()
        self._pending.append((self._began, self._phase, self._marks, end, self._known, fields))
        self._began, self._phase, self._marks, self._known = end, phase, [], True
        self.drain()

    def drain(self, last=False):
        """Write the steps that the GPU has finished; with `last`, all, by the host's clock where it has not."""
        pending = self._pending
        while pending:
            began, phase, marks, end, known, fields = pending[0]
            timed = began is not None and end is not None
            if timed and not end.query():
                if not last and len(pending) <= MOST_PENDING:
                    return
                timed = False
            pending.popleft()
            self._write_step(timed, began, phase, marks, end, known, fields)

    def _write_step(self, timed, began, phase, marks, end, known, fields):
        if timed:
            step, _, spent, *rest, comms = fields
            spent = [0] * len(spent)
            since, comm = began, None
            for next_phase, event, next_comm in [*marks, [phase, end, None]]:
                passed = _nanoseconds(since, event)
                spent[phase] += passed
                if comm is not None and comms is not None and comm in comms:
                    comms[comm][2] += passed
                phase, since, comm = next_phase, event, next_comm
            fields = (step, _nanoseconds(began, end), spent, *rest, comms)
        self._write(fields, timed and known)
        if timed:  # events still in flight are not used again
            self._free += [event for _, event, _ in marks] + [began]


def _nanoseconds(start, end):
    return max(int(start.elapsed_time(end) * 1e6), 0)
