"""The arithmetic of phases on a GPU's clock, with events completed by the test. No GPU, no torch."""

import unittest

import support  # noqa: F401 - puts the hook on sys.path
from paceline import _hook
from paceline._cuda import MOST_MARKS, MOST_PENDING, REPLAYS, SAID_AFTER, Captures, Timeline, captures
from paceline._tracker import COMPUTE, DATA, OPTIMIZER, WAIT, Tracker

MS = 1_000_000


class Cuda:
    """A GPU whose clock the test sets. Work enqueued now is done at `now`. Events up to `passed` have completed."""

    def __init__(self):
        self.now = 0.0
        self.passed = float("inf")
        self.capturing = False  # by the current stream
        self.capturing_elsewhere = False
        self.freed_while_capturing = False
        self.freed = 0
        self.stream = 1
        self.events = self.recorded = 0
        cuda = self

        class Event:
            def __init__(self, enable_timing):
                assert enable_timing
                cuda.events += 1

            def record(self, stream):
                cuda.recorded_on = stream.cuda_stream
                cuda.recorded += 1
                assert not cuda.capturing, "recorded into a graph"
                self.at = cuda.now

            def query(self):
                assert not (cuda.capturing or cuda.capturing_elsewhere), "ends the capture"
                return self.at <= cuda.passed

            def __del__(self):
                cuda.freed += 1
                if cuda.capturing or cuda.capturing_elsewhere:
                    cuda.freed_while_capturing = True

            def elapsed_time(self, end):
                assert self.query() and end.query(), "would wait"
                return end.at - self.at

        self.Event = Event

    def is_current_stream_capturing(self):
        return self.capturing

    def current_stream(self, _):
        return type("Stream", (), {"cuda_stream": self.stream})


class Phases(unittest.TestCase):
    def setUp(self):
        self.cuda = Cuda()
        self.written = []
        self.timeline = Timeline(self.cuda, 0, COMPUTE, lambda fields, known: self.written.append((fields, known)))

    def at(self, ms, phase):
        self.cuda.now = ms
        self.timeline.mark(phase)

    def end(self, ms, step, host_ns=77, comms=None):
        self.cuda.now = ms
        self.timeline.end_step(COMPUTE, (step, host_ns, [0] * 7, 1, 0, 0, None, comms))
        self.timeline.drain()

    def test_a_step(self):
        self.at(1, DATA)
        self.at(3, COMPUTE)
        self.at(10, WAIT)
        self.at(14, COMPUTE)
        self.at(15, OPTIMIZER)
        self.end(17, 2)
        (((step, duration, spent, passes, *_), known),) = self.written
        self.assertEqual((step, duration, passes, known), (2, 17 * MS, 1, True))
        self.assertEqual(spent, [0, 2 * MS, 9 * MS, 4 * MS, 2 * MS, 0, 0])

    def test_collectives_by_communicator(self):
        comms = {7: [2, 100, 0], 8: [1, 50, 0]}
        for began, ended, comm in ((1, 3, 7), (4, 5, 8), (6, 10, 7)):
            self.at(began, WAIT)
            self.timeline.tag_last(comm)
            self.at(ended, COMPUTE)
        self.at(11, WAIT)  # in no communicator
        self.end(15, 2, comms=comms)
        self.assertEqual(self.written[0][0][2][WAIT], 11 * MS)
        self.assertEqual(self.written[0][0][7], {7: [2, 100, 6 * MS], 8: [1, 50, MS]})

    def test_written_later_in_order_and_never_waiting(self):
        self.cuda.passed = 5
        self.at(8, WAIT)
        self.end(10, 2)
        self.end(20, 3)
        self.assertEqual(self.written, [])
        self.cuda.passed = 12
        self.end(30, 4)
        self.assertEqual([fields[0] for fields, _ in self.written], [2])
        self.cuda.passed = 100
        self.end(40, 5)
        self.assertEqual([fields[:2] for fields, _ in self.written], [(n, 10 * MS) for n in (2, 3, 4, 5)])

    def test_a_gpu_that_never_answers(self):
        self.cuda.passed = -1
        for step in range(MOST_PENDING + 3):
            self.end(step, step)
        self.assertEqual([(fields[:2], known) for fields, known in self.written], [((n, 77), False) for n in range(3)])
        self.timeline.drain(last=True)
        self.assertEqual(len(self.written), MOST_PENDING + 3)

    def test_a_wait_that_was_none(self):
        self.at(5, WAIT)
        self.cuda.now = 7
        self.timeline.relabel_last(COMPUTE)
        self.timeline.mark(WAIT)
        self.end(10, 2)
        self.assertEqual(self.written[0][0][2][COMPUTE], 7 * MS)
        self.assertEqual(self.written[0][0][2][WAIT], 3 * MS)

    def test_a_closure_inside_the_optimizer(self):
        self.at(2, OPTIMIZER)  # Optimizer.step begins, the closure runs forward
        self.at(6, COMPUTE)  # and backward
        self.at(8, OPTIMIZER)
        self.timeline.relabel(OPTIMIZER, COMPUTE)
        self.end(9, 2)
        self.assertEqual(self.written[0][0][2], [0, 0, 8 * MS, 0, MS, 0, 0])

    def test_nothing_is_recorded_into_a_graph(self):
        self.cuda.capturing = True
        self.at(1, WAIT)
        self.cuda.capturing = False
        self.end(4, 2)
        self.end(6, 3)
        self.assertEqual([known for _, known in self.written], [False, True])
        self.cuda.capturing = True
        self.end(8, 4)
        self.cuda.capturing = False
        self.end(9, 5)
        self.end(11, 6)
        self.assertEqual([fields[1] for fields, _ in self.written[2:]], [77, 77, 2 * MS])
        self.assertEqual([known for _, known in self.written[2:]], [False, False, True])

    def test_nothing_is_asked_or_freed_while_anything_captures(self):
        """Capture a whole step in a graph, on any stream, after steps that the GPU has finished meanwhile."""
        for capture in ("capturing", "elsewhere"):
            self.setUp()
            self.cuda.passed = -1
            self.end(1, 2)
            self.end(2, 3)
            self.cuda.passed = float("inf")
            if capture == "capturing":
                self.cuda.capturing = True
            else:
                self.cuda.capturing_elsewhere, captures.running = True, 1
            for step in range(4, 20):
                self.at(step, WAIT)
                self.end(step, step)
            self.assertEqual(self.written, [])
            for step in range(20, MOST_PENDING + 6):  # too many: written without their events
                self.end(step, step)
            self.assertEqual({known for _, known in self.written}, {False})
            self.cuda.capturing = self.cuda.capturing_elsewhere = False
            captures.running = 0
            self.assertFalse(self.cuda.freed_while_capturing)
            self.end(1000, 1000)
            self.assertEqual([fields[0] for fields, _ in self.written], [2, 3, *range(4, MOST_PENDING + 6), 1000])

    def test_captures_are_counted(self):
        class Graph:
            def capture_begin(self, fails=False):
                if fails:
                    raise RuntimeError("not permitted")

            def capture_end(self):
                raise RuntimeError("invalidated")

            def replay(self):
                return "replayed"

        watched = Captures()
        watched.watch(Graph)
        watched.watch(Graph)
        graph = Graph()
        self.assertRaises(RuntimeError, graph.capture_begin, True)
        self.assertEqual(watched.running, 0)
        graph.capture_begin()
        self.assertEqual(watched.running, 1)
        self.assertRaises(RuntimeError, graph.capture_end)
        self.assertEqual(watched.running, 0)

    def test_steps_that_are_replayed_are_said_to_be_unseen(self):
        class Graph:
            capture_begin = capture_end = lambda self: None

            def replay(self):
                return "replayed"

        watched, notes = Captures(), []
        watched.watch(Graph)
        watched.note = notes.append
        whole_step, part_of_one = Graph(), Graph()
        for _ in range(2 * REPLAYS):
            self.assertEqual(part_of_one.replay(), "replayed")
            watched.step_ended()
        self.assertEqual(notes, [])
        for _ in range(2 * REPLAYS):
            whole_step.replay()
        self.assertEqual(notes, ["steps in CUDA graphs are not seen"])

    def test_why_phases_are_not_known_is_said_once(self):
        notes = []
        self.timeline.note = notes.append
        for step in range(3 * SAID_AFTER):
            self.cuda.stream = 2  # in the middle of a step, then back
            self.at(step, DATA)
            self.cuda.stream = 1
            if step < SAID_AFTER:
                self.end(step + 0.5, step)
                self.end(step + 0.6, step)  # a step with known phases
                self.assertEqual(notes, [])
            else:
                self.end(step + 0.5, step)
        self.assertEqual(notes, ["no phases: steps on several streams"])
        self.assertLessEqual(len("no phases: the GPU is %d steps behind" % MOST_PENDING), 48)  # bytes of a note

    def test_a_warm_up_on_another_stream(self):
        self.end(2, 2)
        self.cuda.stream = 9  # from here on
        self.at(3, WAIT)
        self.end(4, 3)
        self.at(5, WAIT)
        self.end(8, 4)
        self.assertEqual([known for _, known in self.written], [True, False, True])
        self.assertEqual((self.written[2][0][1], self.written[2][0][2][WAIT]), (4 * MS, 3 * MS))

    def test_other_streams_are_not_the_trainers(self):
        self.cuda.stream = 2
        self.at(1, DATA)
        self.cuda.stream = 1
        self.end(4, 2)
        self.assertEqual((self.written[0][0][2][DATA], self.written[0][1]), (0, False))

    def test_a_wait_is_the_trainers_whatever_stream_is_current(self):
        self.cuda.stream = 2  # of autograd's accumulation
        self.at(1, WAIT)
        self.assertEqual(self.cuda.recorded_on, 1)
        self.cuda.stream = 1
        self.at(3, COMPUTE)
        self.end(4, 2)
        self.assertEqual((self.written[0][0][2][WAIT], self.written[0][1]), (2 * MS, True))

    def test_too_many_marks_are_said_to_be(self):
        for index in range(MOST_MARKS + 1):
            self.at(index, WAIT if index % 2 else COMPUTE)
        self.end(2 * MOST_MARKS, 2)
        self.assertEqual((self.written[0][0][1], self.written[0][1]), (2 * MOST_MARKS * MS, False))

    def test_events_are_used_again(self):
        for step in range(50):
            self.at(step, WAIT)
            self.end(step + 0.5, step)
        self.assertLessEqual(self.cuda.events, 4)

    def test_a_forked_child_frees_none(self):
        tracker = Tracker()
        tracker.timeline = Timeline(self.cuda, 0, COMPUTE, None)
        tracker.forked()
        self.assertEqual((tracker.timeline, self.cuda.freed), (None, 0))


class Devices(unittest.TestCase):
    """Find the GPU that a program computes on, from the location of its parameters."""

    def check(self, expected, device, is_initialized=True):
        cuda = type("cuda", (), {"is_initialized": lambda: is_initialized, "current_device": lambda: 3})
        device = device and type("device", (), {"type": device[0], "index": device[1]})
        self.assertEqual(_hook._gpu(type("torch", (), {"cuda": cuda}), device), expected)

    def test_parameters_on_a_gpu(self):
        self.check(1, ("cuda", 1))

    def test_offloaded_parameters(self):
        self.check(3, ("cpu", None))
        self.check(3, None)  # none at all

    def test_a_program_for_the_cpu(self):
        self.check(None, ("cpu", None), is_initialized=False)
        self.check(None, ("xpu", 0))


if __name__ == "__main__":
    unittest.main()
