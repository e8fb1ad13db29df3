"""The three calls, in programs that have no torch."""

import unittest

from ringdump import Mark, attach, steps
from support import run


class Api(unittest.TestCase):
    def test_without_a_ring_nothing_happens(self):
        script = """
            import paceline
            for _ in range(3):
                with paceline.phase('data'):
                    paceline.mark('checkpoint', value=1)
                paceline.step()
            print('done')
        """
        for ring in ("", "/nonexistent/rings"):
            done = run(script, PACELINE_RING_DIR=ring)
            self.assertEqual((done.code, done.out, done.err), (0, "done\n", ""))
        self.assertEqual(run(script, PACELINE_HOOK="off").files, [])

    def test_steps_phases_and_marks(self):
        script = """
            import time, paceline
            paceline.mark('role', text='stage 1')
            paceline.mark('early', value=5)
            paceline.step()
            for index in range(3):
                with paceline.phase('data'):
                    time.sleep(0.02)
                    with paceline.phase('wait'):
                        time.sleep(0.04)
                with paceline.phase('no such phase'):
                    time.sleep(0.01)
                paceline.mark(tokens=100)
                paceline.mark(tokens=28)
                if index == 1:
                    paceline.mark('evaluation', value=7)
                paceline.step()
            paceline.step(step=1000, tokens=5)
        """
        done = run(script, RANK="3", LOCAL_RANK="1", WORLD_SIZE="4")
        self.assertEqual((done.code, done.err), (0, ""))
        (ring,) = done.rings
        self.assertEqual(attach(ring)[:6], (3, 1, 4, 0, -1, bytes(16)))
        self.assertEqual(attach(ring).framework, 3)
        found = steps(ring)
        self.assertEqual([step.step for step in found], [2, 3, 4, 1000])
        self.assertEqual([step.tokens for step in found], [128, 128, 128, 5])
        self.assertEqual([step.kind for step in found], [0, 2, 0, 0])
        self.assertTrue(all(step.known for step in found))
        for step in found[:3]:
            self.assertGreaterEqual(step.data, 20_000)
            self.assertLess(step.data, 40_000)
            self.assertGreaterEqual(step.wait, 40_000)
            self.assertGreaterEqual(step.compute, 10_000)
            parts = step.data + step.compute + step.wait + step.optimizer + step.checkpoint
            self.assertAlmostEqual(parts, step.dur_ns / 1000, delta=6)
        others = [record for record in ring.records if not hasattr(record, "dur_ns")][1:]
        self.assertEqual(others[:2], [("role", "stage 1"), Mark(1, 5, "early")])
        self.assertEqual(others[2:], [Mark(3, 7, "evaluation"), ("detach", 1000)])
        self.assertEqual(ring.progress, (1001, "compute"))

    def test_a_wrong_argument_harms_nobody(self):
        script = """
            import paceline
            paceline.step()
            paceline.mark('x', value='not a number')
            paceline.mark(tokens=-5)
            paceline.mark(tokens=2**70)
            paceline.mark('y' * 100, value=-1)
            paceline.step()
        """
        done = run(script)
        self.assertEqual((done.code, done.err), (0, ""))
        records = done.rings[0].records
        self.assertEqual([r for r in records if isinstance(r, Mark)], [Mark(2, 0, "y" * 32)])
        self.assertEqual(steps(done.rings[0])[0].tokens, 2**64 - 1)

    def test_what_is_no_number_switches_nothing_off(self):
        # This is torch's error for a tensor of two elements.
        script = """
            import paceline
            class Tensor:
                def __int__(self):
                    raise RuntimeError('a Tensor with 2 elements cannot be converted to Scalar')
                __bool__ = __str__ = __int__
            paceline.mark('early', value=float('inf'))
            paceline.mark('role', text=Tensor())
            paceline.step()
            for wrong in (float('inf'), float('nan'), Tensor()):
                paceline.mark(tokens=wrong)
                paceline.mark(sum_sq=wrong)
                paceline.mark('x', value=wrong)
                paceline.mark(wrong)
            paceline.mark('role', text=Tensor())
            paceline.mark('z', tokens=3, value=4)
            paceline.step()
        """
        done = run(script)
        self.assertEqual((done.code, done.err), (0, ""))
        records = done.rings[0].records
        self.assertEqual([r for r in records if isinstance(r, Mark)][-1], Mark(2, 4, "z"))
        self.assertEqual(steps(done.rings[0])[0].tokens, 3)
        self.assertNotIn("note", [record[0] for record in records])

    def test_exceptions_pass_through_a_phase(self):
        script = """
            import paceline
            paceline.step()
            try:
                with paceline.phase('data'):
                    raise KeyError('mine')
            except KeyError as error:
                print(error)
            paceline.step()
        """
        done = run(script)
        self.assertEqual(done.out, "'mine'\n")
        self.assertEqual(done.rings[0].progress, (3, "compute"))

    def test_a_script_that_fails_does_not_say_goodbye(self):
        done = run("import paceline; paceline.step(); paceline.step(); raise RuntimeError('mine')")
        self.assertEqual(done.code, 1)
        self.assertNotIn(("detach", 2), done.rings[0].records)
        done = run("import paceline, sys; paceline.step(); paceline.step(); sys.exit(3)")
        self.assertEqual(done.code, 3)
        self.assertNotIn(("detach", 2), done.rings[0].records)
        done = run("import paceline, sys; paceline.step(); paceline.step(); sys.exit(0)")
        self.assertIn(("detach", 2), done.rings[0].records)

    def test_a_hang_is_seen_where_it_is(self):
        script = """
            import os, paceline
            paceline.step()
            paceline.phase('wait').__enter__()
            os._exit(0)
        """
        self.assertEqual(run(script).rings[0].progress, (2, "wait"))

    def test_the_kill_switch_stops_the_writer(self):
        script = """
            import paceline
            from paceline import _tracker
            paceline.step()
            paceline.step()
            ring = _tracker.tracker.ring
            ring.words[40] = 1
            _tracker.tracker._flush_at = 0
            before = ring.words[8]
            for _ in range(100):
                paceline.step()
            print(ring.words[8] - before, _tracker.tracker.on)
        """
        self.assertEqual(run(script).out, "0 False\n")

    def test_a_forked_child_writes_nothing(self):
        script = """
            import os, paceline
            paceline.step()
            paceline.step()
            child = os.fork()
            for _ in range(20):
                paceline.step()
            if child:
                os.waitpid(child, 0)
        """
        done = run(script)
        self.assertEqual(len(done.rings), 1)
        self.assertEqual([step.step for step in steps(done.rings[0])], list(range(2, 23)))
        self.assertEqual([record for record in done.rings[0].records if record[0] == "detach"], [("detach", 22)])


if __name__ == "__main__":
    unittest.main()
