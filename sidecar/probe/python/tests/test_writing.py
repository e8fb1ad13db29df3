"""Tests when the records of finished steps are written: in batches, twice a second, a bounded number at a time. No GPU,
no torch."""

import threading
import unittest
from types import SimpleNamespace
from unittest import mock

from paceline import _tracker
from paceline._cuda import Timeline
from paceline._tracker import _HOLD, _MOST_HELD, COMPUTE, Tracker
from test_cuda import MS, Cuda


class OnAGpu(unittest.TestCase):
    def setUp(self):
        self.cuda, self.now, self.written, self.looks, self.is_stopped = Cuda(), 0, [], 0, False
        self.tracker = tracker = Tracker()
        tracker.ring = SimpleNamespace(stopped=self.stopped, step=lambda step, *_: self.written.append(step))
        tracker.timeline = Timeline(self.cuda, 0, COMPUTE, tracker._write)
        tracker.thread, tracker._progress, tracker.on = threading.get_ident(), [0, 0], True
        clock = mock.patch.object(_tracker, "_clock", lambda: self.now)
        clock.start()
        self.addCleanup(clock.stop)
        self.steps(1, 100)
        self.assertEqual(self.written, [1])  # the first at once

    def stopped(self):
        """Return the kill switch, and count that it is read each time that records are written."""
        self.looks += 1
        return self.is_stopped

    def steps(self, count, ms):
        for _ in range(count):
            self.now += ms * MS
            self.cuda.now += ms
            self.tracker.end_step()

    def test_twice_a_second_in_order(self):
        per_write = _HOLD // (100 * MS)
        self.steps(per_write - 1, 100)
        self.assertEqual(self.written, [1])
        self.steps(1, 100)
        self.assertEqual(self.written, list(range(1, per_write + 2)))
        self.steps(10 * per_write, 100)
        self.assertEqual((self.looks, len(self.written)), (12, 11 * per_write + 1))

    def test_short_steps_are_not_held_without_bound(self):
        self.steps(_MOST_HELD - 1, 1)
        self.assertEqual(self.written, [1])
        self.steps(1, 1)
        self.assertEqual(len(self.written), _MOST_HELD + 1)

    def test_a_gpu_that_is_behind_costs_no_more_writes(self):
        self.cuda.passed = self.cuda.now
        self.steps(4 * _MOST_HELD, 1)
        self.assertEqual((self.written, self.looks), ([1], 5))
        self.cuda.passed = float("inf")
        self.steps(_MOST_HELD, 1)
        self.assertEqual(self.written, list(range(1, 5 * _MOST_HELD + 2)))

    def test_the_kill_switch(self):
        self.is_stopped = True
        self.steps(20, 100)
        self.assertEqual(self.written, [1])
        self.assertFalse(self.tracker.on)


if __name__ == "__main__":
    unittest.main()
