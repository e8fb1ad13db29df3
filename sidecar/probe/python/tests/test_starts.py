"""A rank's progress before its first step, in the file that its hook writes."""

import os
import struct
import tempfile
import unittest
from unittest import mock

import support  # noqa: F401

from paceline import _starts
from paceline._rank import Rank


def read(folder):
    """Return (stage, call) by file."""
    found = []
    for name in sorted(os.listdir(folder)):
        with open(os.path.join(folder, name), "rb") as file:
            data = file.read()
        stage = struct.unpack_from("<Q", data, 40)[0]
        found.append((stage, data[48:96].rstrip(b"\0").decode()))
    return found


class Starts(unittest.TestCase):
    def setUp(self):
        self.rings = tempfile.TemporaryDirectory()
        self.addCleanup(self.rings.cleanup)
        self.addCleanup(_starts.end)
        self.folder = os.path.join(self.rings.name, "starts")
        _starts.place = _starts.Place(self.rings.name, Rank(3, 1, 4, 2))

    def test_the_file_says_who_it_is(self):
        (name,) = os.listdir(self.folder)
        with open(os.path.join(self.folder, name), "rb") as file:
            data = file.read()
        self.assertEqual(len(data), 128)
        self.assertEqual(struct.unpack_from("<8sIIIIII", data), (b"PACESTRT", 1, os.getpid(), 3, 1, 4, 2))
        self.assertEqual(read(self.folder), [(_starts.LOADING, "")])

    def test_calls_move_it_and_give_back_what_they_give(self):
        seen = []

        def init_process_group(backend):
            seen.append(read(self.folder))
            return backend

        def barrier():
            seen.append(read(self.folder))
            # Within another collective, the outer one must stay.
            _starts.waiting(lambda: seen.append(read(self.folder)), (), {}, "inner")
            raise ValueError("x")

        self.assertEqual(_starts.joining(init_process_group)("gloo"), "gloo")
        _starts.place = _starts.place or _starts.Place(self.rings.name, Rank(3, 1, 4, 2))
        with self.assertRaises(ValueError):
            _starts.waiting(barrier, (), {})
        joining, waiting = [(_starts.JOINING, "init_process_group")], [(_starts.WAITING, "barrier")]
        self.assertEqual(seen[0], joining)
        self.assertEqual(seen[-2:], [waiting, waiting])

    def test_the_file_goes_with_the_first_step(self):
        _starts.end()
        self.assertEqual(os.listdir(self.folder), [])
        self.assertIsNone(_starts.place)
        self.assertEqual(_starts.waiting(lambda: 7, (), {}), 7)

    def test_no_directory_is_no_error_of_the_program(self):
        _starts.end()
        with self.assertRaises(OSError):
            _starts.Place("/nonexistent/rings", Rank(0, 0, 2, 0))
        before = dict(os.environ)
        self.addCleanup(os.environ.update, before)
        os.environ.update(PACELINE_RING_DIR="/nonexistent/rings", RANK="0", WORLD_SIZE="2")
        self.addCleanup(os.environ.pop, "PACELINE_RING_DIR")
        # Tests may run in a process that another one forked, which would count as a helper.
        with mock.patch("paceline._helper.is_helper", return_value=False), self.assertRaises(OSError):
            _starts.begin()  # sitecustomize ignores exceptions of the hook


if __name__ == "__main__":
    unittest.main()
