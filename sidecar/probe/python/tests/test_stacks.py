"""Stacks of this process on request: the signal, the file, and processes that must not be signaled."""

import os
import signal
import subprocess
import sys
import tempfile
import unittest

from support import HOOK

BEGIN = "import os, signal\nfrom signal import signal as early\nfrom paceline import _stacks\n"
NUMBER = "int(os.path.basename(_stacks._path).split('-')[2])"


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
        said = self.run_program("_stacks.watch(); _stacks.watch(); print(os.getpid(), %s, _stacks._file)" % start)
        self.assertEqual(os.listdir(self.folder), ["%s-%s-%d-%s" % (*said[:2], signal.SIGRTMAX - 3, said[2])])

    def test_a_signal_of_ones_own_choice(self):
        for asked, number in ("40", "40"), ("on", str(signal.SIGRTMAX - 3)), ("1", str(signal.SIGRTMAX - 3)):
            self.assertEqual(self.run_program("_stacks.watch(); print(%s)" % NUMBER, PACELINE_STACKS=asked), [number])

    def test_off(self):
        for asked in "off", "OFF", "9", "99", "x":  # the last three are not allowed
            self.run_program("_stacks.watch()", PACELINE_STACKS=asked)
            self.assertFalse(os.path.exists(self.folder) and os.listdir(self.folder), asked)

    def test_no_place(self):
        self.run_program("os.environ.pop('PACELINE_RING_DIR'); _stacks.watch(); assert _stacks._path is None")
        self.run_program("os.environ['PACELINE_RING_DIR'] = '/nowhere'; _stacks.watch(); assert _stacks._path is None")

    def test_the_answer_is_the_main_threads(self):
        said = self.run_program(
            "import threading\n"
            "_stacks.watch()\n"
            "threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
            "os.kill(os.getpid(), %s)\n"
            "print(open(_stacks._path).read().count('most recent call first'))\n" % NUMBER
        )
        self.assertEqual(said, ["1"])

    def test_who_takes_our_signal_has_it(self):
        for taker in "signal.signal", "early":
            said = self.run_program(
                "_stacks.watch()\n"
                "number, file = %s, _stacks._file\n"
                "signal.signal(signal.SIGUSR1, signal.SIG_DFL)\n"
                "assert os.path.exists(_stacks._path), 'another signal'\n"
                "child = os.fork()\n"
                "%s(number, lambda *_: os.write(1, b'theirs\\n'))\n"
                "assert child == 0 or not os.path.exists(_stacks._path), 'it is the file of the process that made it'\n"
                "assert not os.path.exists('/proc/self/fd/%%d' %% file), 'a process that has taken it is not asked'\n"
                "_stacks.watch()\n"
                "os.kill(os.getpid(), number)\n"
                "os._exit(0) if child == 0 else os.waitpid(child, 0)\n" % (NUMBER, taker)
            )
            self.assertEqual(said, ["theirs", "theirs"])

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
