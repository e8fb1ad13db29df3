"""Measures the same phases by the GPU's own clock.

On a GPU, host times only show when work was enqueued. So an event is recorded on the trainer's stream at each boundary
and read later, when it has completed, without waiting or synchronizing. A phase lasts from its event to the next one.
Data loading and host work appear as the time that they kept the GPU waiting.

As a result, records are written a few steps late, in order. If a step has many boundaries, not every step is timed
(_sampling.py); for the others only the duration is known. No events are recorded while a CUDA graph is being captured,
nor on other streams; such steps are marked as having unknown phases. Work on communication streams does not count as
the trainer's (FSDP gathers and reduces on its own streams), but the time that the trainer's stream waits for them does.
_patch.py wraps the functions for both.

While any graph is captured in this process, no event is queried, read or freed either, because CUDA's default capture
mode forbids such calls to all threads, and a forbidden call ends the capture.
"""

import functools
import sys
from collections import deque
from time import perf_counter_ns

from ._sampling import WRAPPER_NS, Sampling
from ._tracker import COMPUTE, WAIT

SAID_AFTER = 16  # consecutive steps with unknown phases before a note with the reason
REPLAYS = 64  # of one CUDA graph without a step end in between, before a note
MOST_MARKS = 4096  # events in a step; with more, its phases are unknown
_TIMED_MARK = 5  # the mark of a step that is timed itself: the first ones have other cache contents
MOST_PENDING = 256  # steps whose events have not completed; with more, the oldest is written by the host's clock


class Captures:
    """CUDA graphs that are being captured in this process, on any stream."""

    def __init__(self):
        self.running = 0
        self.note = None  # writes a note for the report
        self._replays = {}  # id of a graph: replays since the last step end

    def step_ended(self):
        """Forget the replays, because steps are visible and the replays were parts of them."""
        if self._replays:
            self._replays.clear()

    def _replayed(self, graph):
        count = self._replays[id(graph)] = self._replays.get(id(graph), 0) + 1
        if count == REPLAYS and self.note is not None:
            self.note("steps in CUDA graphs are not seen")

    def watch(self, graph):
        """Wrap the methods of `graph`, which is torch.cuda.CUDAGraph, by which every capture begins and ends."""
        if getattr(graph.capture_begin, "_paceline", False):
            return
        begin, end = graph.capture_begin, graph.capture_end

        @functools.wraps(begin)
        def capture_begin(*args, **kwargs):
            self.running += 1  # counted first, because the call itself may take a while and may fail
            try:
                return begin(*args, **kwargs)
            except BaseException:
                self.running -= 1
                raise

        @functools.wraps(end)
        def capture_end(*args, **kwargs):
            try:
                return end(*args, **kwargs)
            finally:
                self.running = max(self.running - 1, 0)

        replay = graph.replay

        @functools.wraps(replay)
        def counted_replay(graph):
            self._replayed(graph)
            return replay(graph)

        capture_begin._paceline = True
        graph.replay = counted_replay
        graph.capture_begin, graph.capture_end = capture_begin, capture_end


captures = Captures()


class Timeline:
    """Events of the running step and of steps that the GPU has not finished. `cuda` is torch.cuda."""

    def __init__(self, cuda, device, phase, write):
        self._cuda = cuda
        self._device = device
        self._write = write  # takes the fields of a step, and whether its phases are known
        self._free = []
        self._unread = []  # events of steps that were written without reading them: freed when nothing captures
        self._pending = deque()
        self._marks = []  # [phase, event, communicator or None], oldest first
        self._known = True
        self._why = None  # the reason for unknown phases
        self._unknown = 0  # consecutive timed steps with unknown phases
        self._note = None
        self._phase = phase  # the phase in which the step began
        self.sampling = Sampling()
        self.is_timed = self.sampling.begins()  # whether the running step is timed; otherwise marks are not taken
        self.on_timed = None  # called when that changes
        self._mark_ns = 0  # host cost of one mark in this step
        self._bind(sys.modules.get("torch._C"))
        self._rebase()
        self._began = self._event()  # the end of the previous step

    def _bind(self, bindings):
        """Use the functions below torch.cuda's own if they are available, because they are called at each mark."""
        event = self._cuda.Event
        base = getattr(bindings, "_CudaEventBase", None)
        if base is None or not issubclass(event, base):
            base, bindings = event, None
        self._record, self._elapsed = base.record, base.elapsed_time
        self._stream_of = getattr(bindings, "_cuda_getCurrentRawStream", None)
        self._captures = getattr(bindings, "_cuda_isCurrentStreamCapturing", self._cuda.is_current_stream_capturing)

    @property
    def note(self):
        """The function that writes a note for the report."""
        return self._note

    @note.setter
    def note(self, note):
        self._note = self.sampling.note = note

    def _rebase(self):
        """Make the current stream the trainer's."""
        self._stream = self._current_stream()
        self._own = self._cuda.current_stream(self._device)

    def _current_stream(self):
        if self._stream_of is not None:
            return self._stream_of(self._device)
        return self._cuda.current_stream(self._device).cuda_stream

    def is_training(self, stream=None):
        """Return whether the current stream, and `stream` if given, is the trainer's."""
        if stream is not None and getattr(stream, "cuda_stream", None) != self._stream:
            return False
        return self._current_stream() == self._stream

    def _event(self, is_wait=False):
        """Return an event recorded now, or None if that is not possible. `is_wait` means that the trainer's stream
        enters or leaves a wait, whatever stream is current, because autograd accumulates gradients on other streams if
        CUDA graphs created them."""
        if self._is_capturing():
            return self._not_known("a CUDA graph is captured")
        if not is_wait and self._current_stream() != self._stream:
            return self._not_known("steps on several streams")
        event = self._free.pop() if self._free else self._cuda.Event(enable_timing=True)
        self._record(event, self._own)  # on the model's device, which need not be the current one
        return event

    def _not_known(self, why):
        self._known, self._why = False, why

    def _is_capturing(self):
        return captures.running > 0 or self._captures()

    def mark(self, phase):
        """Record that a phase begins."""
        if not self.is_timed:
            return
        count = len(self._marks)
        if count >= MOST_MARKS:
            self._not_known("over %d marks a step" % MOST_MARKS)
            return
        since = perf_counter_ns() if count == _TIMED_MARK else 0
        before = self._marks[-1][0] if count else self._phase
        event = self._event(is_wait=phase == WAIT or before == WAIT)
        if event is not None:
            self._marks.append([phase, event, None])
        if since:
            self._mark_ns = perf_counter_ns() - since + WRAPPER_NS

    def relabel_last(self, phase):
        """Change the phase of the last mark."""
        if self._marks:
            self._marks[-1][0] = phase

    def tag_last(self, comm):
        """Attribute the last mark to this communicator."""
        if self._known and self._marks:
            self._marks[-1][2] = comm

    def relabel(self, old, new):
        """Change `old` to `new` for this step so far, except for the last mark."""
        for mark in self._marks[:-1]:
            if mark[0] == old:
                mark[0] = new

    def end_step(self, phase, fields):
        """End a step; the next one begins in `phase`. `fields` has the step's times by the host's clock. `drain` writes
        the step."""
        captures.step_ended()
        end = self._event()
        known = self._known if self.is_timed else None
        self._pending.append((self._began, self._phase, self._marks, end, known, self._mark_ns, fields))
        self._began, self._phase, self._marks, self._known, self._mark_ns = end, phase, [], True, 0
        if end is None and not self._is_capturing():
            # Follows the program to another stream, on which it trains from here on, for example during a warm-up.
            self._rebase()
            self._began = self._event()
        self._begin_step()

    def _begin_step(self):
        is_timed = self.sampling.begins()
        if is_timed != self.is_timed:
            self.is_timed = is_timed
            if self.on_timed is not None:
                self.on_timed(is_timed)

    def drain(self, last=False):
        """Write the steps that the GPU has finished. With `last`, write all steps, and use the host's clock for the
        unfinished ones."""
        pending = self._pending
        may_ask = not self._is_capturing()
        if may_ask:
            self._unread.clear()
        while pending:
            began, _, _, end, *_ = pending[0]
            timed = began is not None and end is not None
            if timed and not (may_ask and end.query()):
                if not last and len(pending) <= MOST_PENDING:
                    return
                timed = False
                self._why = "the GPU is %d steps behind" % MOST_PENDING
            self._write_step(timed, *pending.popleft())

    def _write_step(self, timed, began, phase, marks, end, known, mark_ns, fields):
        if timed:
            since = perf_counter_ns()
            duration = self._passed(began, end)
            spent, comms = self._spent(began, phase, marks, end, duration, fields)
            fields = (fields[0], duration, spent, *fields[3:-1], comms)
            if known and marks:
                self.sampling.measured(len(marks) * mark_ns + perf_counter_ns() - since, duration)
        self._write(fields, bool(timed and known))
        if known is not None:
            self._say_why(timed and known)
        events = [event for _, event, _ in marks] + [began]
        if timed:
            self._free += events
        else:  # still in flight: must not be reused
            self._unread += events

    def _spent(self, began, phase, marks, end, duration, fields):
        """Return the time by phase, in ns, and the time in collectives by communicator. Compute is the remainder of the
        step, so its events need not be read."""
        spent, comms = [0] * len(fields[2]), fields[-1]
        since, comm = began, None
        for next_phase, event, next_comm in [*marks, [phase, end, None]]:
            if phase != COMPUTE:
                passed = self._passed(since, event)
                spent[phase] += passed
                if comm is not None and comms is not None and comm in comms:
                    comms[comm][2] += passed
            phase, since, comm = next_phase, event, next_comm
        spent[COMPUTE] = max(duration - sum(spent), 0)
        return spent, comms

    def _passed(self, start, end):
        return max(int(self._elapsed(start, end) * 1e6), 0)

    def _say_why(self, known):
        """Report the reason once for phases that stay unknown, because that is not a coincidence."""
        self._unknown = 0 if known else self._unknown + 1
        if self._unknown == SAID_AFTER and self._note is not None and self._why is not None:
            note, self._note = self._note, None
            note("no phases: " + self._why)
