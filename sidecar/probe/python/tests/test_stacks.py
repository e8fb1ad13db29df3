"""Stacks of this process on request: which signal, which file, and who is left alone."""

import os
import signal
import subprocess
import sys
import tempfile
import unittest

from support import HOOK

BEGIN = "import os, signal\nfrom paceline import _stacks\n"


class Stacks(unittest.TestCase):
    def setUp(self):
        self.rings = tempfile.TemporaryDirectory()
        self.addCleanup(self.rings.cleanup)
        self.folder = os.path.join(self.rings.name, "stacks")

    def run_program(self, program, **variables):
        environment = dict(os.environ, PYTHONPATH=HOOK, PACELINE_RING_DIR=self.rings.name, **variables)
        environment.pop("PACELINE_RING_SHARED", None)
        done = subprocess.run(
            [sys.executable, "-c", BEGIN + program], env=environment, capture_output=True, text=True, timeout=60
        )
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout.split()

    def test_the_files_name_says_who_answers_to_which_signal(self):
        start = "open('/proc/self/stat').read().rpartition(')')[2].split()[19]"
        (pid, started) = self.run_program("_stacks.watch(); _stacks.watch(); print(os.getpid(), %s)" % start)
        self.assertEqual(os.listdir(self.folder), ["%s-%s-%d" % (pid, started, signal.SIGRTMAX - 3)])

    def test_a_signal_of_ones_own_choice(self):
        self.run_program("_stacks.watch()", PACELINE_STACKS="40")
        (name,) = os.listdir(self.folder)
        self.assertTrue(name.endswith("-40"), name)

    def test_off(self):
        for asked in "off", "OFF", "9", "99":  # the last two may not be taken
            self.run_program("_stacks.watch()", PACELINE_STACKS=asked)
            self.assertFalse(os.path.exists(self.folder) and os.listdir(self.folder), asked)

    def test_no_place(self):
        self.run_program("os.environ.pop('PACELINE_RING_DIR'); _stacks.watch(); assert _stacks._path is None")
        self.run_program("os.environ['PACELINE_RING_DIR'] = '/nowhere'; _stacks.watch(); assert _stacks._path is None")

    def test_the_answer_of_all_threads(self):
        said = self.run_program(
            "import threading\n"
            "_stacks.watch()\n"
            "threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
            "os.kill(os.getpid(), int(_stacks._path.rpartition('-')[2]))\n"
            "print(open(_stacks._path).read().count('most recent call first'))\n"
        )
        self.assertEqual(said, ["2"])

    def test_who_takes_our_signal_has_it(self):
        said = self.run_program(
            "_stacks.watch()\n"
            "number = int(_stacks._path.rpartition('-')[2])\n"
            "before = signal.signal(signal.SIGUSR1, signal.SIG_DFL)\n"
            "assert os.path.exists(_stacks._path), 'another signal'\n"
            "signal.signal(number, lambda *_: print('theirs'))\n"
            "assert not os.path.exists(_stacks._path)\n"
            "os.kill(os.getpid(), number)\n"
        )
        self.assertEqual(said, ["theirs"])

    def test_a_forked_rank_has_a_file_of_its_own(self):
        self.run_program(
            "_stacks.watch()\n"
            "child = os.fork()\n"
            "if child == 0:\n"
            "    _stacks.watch()\n"
            "    os._exit(0)\n"
            "os.waitpid(child, 0)\n"
        )
        self.assertEqual(len({name.split("-")[0] for name in os.listdir(self.folder)}), 2)


if __name__ == "__main__":
    unittest.main()
