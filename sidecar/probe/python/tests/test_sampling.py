"""The selection of steps whose phases are timed. No GPU, no torch."""

import unittest

from test_cuda import MS, Cuda

from paceline import _cuda
from paceline._sampling import FULL_STEPS, MOST_PERIOD, SHARE, Sampling, described
from paceline._tracker import COMPUTE, WAIT

STEP = 100_000_000  # ns


class Periods(unittest.TestCase):
    def timed(self, sampling, cost_ns, steps):
        """Return the numbers, from 0, of the timed steps among this many steps, at this host cost per timed step."""
        timed = []
        for step in range(steps):
            if sampling.begins():
                timed.append(step)
                sampling.measured(cost_ns, STEP)
        return timed

    def check(self, cost_ns, period):
        sampling = Sampling()
        self.assertEqual(len(self.timed(sampling, cost_ns, FULL_STEPS - 1)), FULL_STEPS - 1)
        many = 10 * MOST_PERIOD
        timed = self.timed(sampling, cost_ns, many)
        self.assertEqual((sampling.period, len(timed)), (period, many // period))
        return len(timed) * cost_ns / (many * STEP)

    def test_marks_that_cost_little_are_taken_in_every_step(self):
        self.check(STEP // SHARE, 1)

    def test_marks_that_cost_more_stay_within_their_share(self):
        for times, period in ((1.1, 2), (2, 2), (5, 8), (400, 512)):
            self.assertLessEqual(self.check(STEP // SHARE * times, period), 1 / SHARE)

    def test_it_ends_somewhere(self):
        self.check(STEP, MOST_PERIOD)

    def test_all_ranks_time_the_same_steps(self):
        """A rank's timed steps must be a subset of those of a rank whose marks cost half."""
        slow, fast = Sampling(), Sampling()
        often, rarely = (set(self.timed(one, cost, 2000)) for one, cost in ((fast, 75e3), (slow, 150e3)))
        self.assertTrue(rarely < often)

    def test_back_only_where_it_is_clearly_affordable(self):
        sampling, notes = Sampling(), []
        sampling.note = notes.append
        for cost in (2e5, 1.2e5, 0.8e5, 1e4):
            self.timed(sampling, cost, 8 * MOST_PERIOD)
        self.assertEqual(notes, [described(8), described(1)])
        self.assertLessEqual(max(len(described(period)) for period in (1, MOST_PERIOD)), 48)  # bytes of a note


class Steps(unittest.TestCase):
    """Simulate a timeline whose marks exceed their budget."""

    def test_a_step_that_is_not_timed_has_its_duration(self):
        cuda, written = Cuda(), []
        timeline = _cuda.Timeline(cuda, 0, COMPUTE, lambda fields, known: written.append((fields[1], known)))
        switched, notes = [], []
        timeline.on_timed, timeline.note = switched.append, notes.append
        timeline.sampling.measured = lambda *_: None
        timeline.sampling._costs, timeline.sampling._durations = [4 * STEP // SHARE], [STEP]
        steps = 2 * FULL_STEPS
        for step in range(steps):
            recorded = cuda.recorded
            timeline.mark(WAIT)
            timeline.mark(COMPUTE)
            self.assertEqual(cuda.recorded - recorded, 2 if timeline.is_timed else 0)
            cuda.now += 100
            timeline.end_step(COMPUTE, (step, 77, [0] * 7, 1, 0, 0, None, None))
            timeline.drain()
        self.assertEqual({duration for duration, _ in written}, {100 * MS})
        self.assertEqual([known for _, known in written[-8:]].count(True), 2)
        self.assertTrue(all(known for _, known in written[: FULL_STEPS - 1]))
        self.assertEqual(switched[:3], [False, True, False])
        self.assertEqual(notes, [described(4)])  # and no note about unknown phases


if __name__ == "__main__":
    unittest.main()
