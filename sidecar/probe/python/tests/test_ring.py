"""The ring's bytes, compared with layout.md, and its drops. No torch."""

import os
import stat
import struct
import subprocess
import sys
import tempfile
import unittest
import zlib

import ringdump
import support
from paceline import _ring
from paceline._rank import Rank


class Bytes(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory()
        self.addCleanup(self.directory.cleanup)
        self.ring = _ring.Ring(self.directory.name, capacity=128)

    def raw(self):
        with open(self.ring.path, "rb") as file:
            return file.read()

    def slot(self, index):
        at = 512 + index * 64
        return self.raw()[at : at + 64]

    def test_header(self):
        raw = self.raw()
        self.assertEqual(len(raw), 512 + 128 * 64)
        self.assertEqual(raw[:8], b"PACERING")
        self.assertEqual(struct.unpack_from("<6I", raw, 8), (1, 512, 64, 128, os.getpid(), os.getuid()))
        self.assertEqual(raw[32:], bytes(len(raw) - 32))

    def test_file(self):
        self.assertEqual(os.listdir(self.directory.name), ["%d.ring" % os.getpid()])
        self.assertEqual(stat.S_IMODE(os.stat(self.ring.path).st_mode), 0o600)

    def test_file_for_another_container(self):
        os.environ["PACELINE_RING_SHARED"] = "true"
        self.addCleanup(os.environ.pop, "PACELINE_RING_SHARED")
        mask = os.umask(0o077)
        self.addCleanup(os.umask, mask)
        first, second = (_ring.Ring(self.directory.name, capacity=128) for _ in range(2))
        self.assertNotEqual(first.path, second.path)
        self.assertEqual(stat.S_IMODE(os.stat(first.path).st_mode), 0o666)
        # The lock must be visible to others, and a fork must not hold it.
        look = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
        locked = subprocess.run([sys.executable, "-c", look, first.path], capture_output=True, text=True)
        self.assertIn("BlockingIOError", locked.stderr)
        make = (
            "import os, sys, time; sys.path.insert(0, sys.argv[1])\n"
            "from paceline import _ring; ring = _ring.Ring(sys.argv[2])\n"
            "if os.fork() == 0: os.close(1); time.sleep(20); os._exit(0)\n"
            "print(ring.path)"
        )
        words = [sys.executable, "-c", make, support.HOOK, self.directory.name]
        path = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True).stdout.strip()
        gone = subprocess.run([sys.executable, "-c", look, path], capture_output=True, text=True)
        self.assertEqual(gone.stderr, "")

    def test_step(self):
        spent = [0, 1_000_999, 2_000_000, 3_000_000, 4_000_000, 5_000_000, 6_000_000]
        self.ring.step(0x1122334455667788, 0x99AABBCCDDEE, spent, 7, 1, 1, 0x0102030405060708)
        expected = bytes.fromhex(
            "0100" "0000"  # kind, flags
            "8877665544332211" "eeddccbbaa990000"  # step, duration in ns
            "e8030000" "d0070000" "b80b0000" "a00f0000" "88130000"  # data, compute, wait, optimizer, checkpoint in µs
            "0700" "01" "01" "0807060504030201"  # backward passes, kind, phases known, tokens
        )  # fmt: skip
        slot = self.slot(0)
        self.assertEqual(slot[12:], expected)
        self.assertEqual(struct.unpack_from("<QI", slot), (1, zlib.adler32(expected, 1)))

    def test_step_saturates(self):
        self.ring.step(1, 2**63, [0, 2**62, 0, 2**62, 0, 0, 0], 70_000, 0, 0, 0)
        self.assertEqual(struct.unpack_from("<5IH", self.slot(0), 32), (2**32 - 1, 0, 2**32 - 1, 0, 0, 65535))

    def test_attach(self):
        self.ring.attach(Rank(3, 1, 8, 2), -1, bytes(range(16)), 1, (2, 15, 0))
        payload = "03000000" "01000000" "08000000" "02000000" "ffffffff" "000102030405060708090a0b0c0d0e0f" "020f0001"
        self.assertEqual(self.slot(0)[12:], bytes.fromhex("02000000" + payload) + bytes(8))

    def test_attach_with_nccl_and_cuda(self):
        self.ring.attach(Rank(3, 1, 8, 2), 0, bytes(16), 1, (2, 15, 1), (2, 27, 5), (13, 12))
        self.assertEqual(self.slot(0)[52:], bytes.fromhex("020f0101" "021b05" "0d0c" "000000"))

    def test_mark_detach_note_role(self):
        self.ring.mark(5, "épreuve" * 10, 9)
        self.ring.detach(6)
        self.ring.note("why")
        self.ring.role("stage 1")
        mark = self.slot(0)
        self.assertEqual(struct.unpack_from("<HHQQ", mark, 12), (3, 0, 5, 9))
        self.assertEqual(len(mark[32:64]), 32)
        self.assertTrue(mark[32:64].rstrip(b"\0").decode().startswith("épreuve"))  # cut at a character boundary
        self.assertEqual(self.slot(1)[12:], bytes.fromhex("04000000" "0600000000000000") + bytes(40))
        self.assertEqual(self.slot(2)[12:], b"\5\0\0\0why" + bytes(45))
        self.assertEqual(self.slot(3)[12:], b"\6\0\0\0stage 1" + bytes(41))

    def test_layout_work_group_comm(self):
        self.ring.layout([(1, 2), (3, 4), (5, 6), (7, 8), (9, 0x0A0B)], 12)
        self.ring.work(0x0102, 0x030405060708, 9, 10_999)
        self.ring.group(0x0102030405060708, 9, "a" * 30)
        self.ring.comm(0x0102, 0x0102030405060708, 5, 3, 4)
        # These must be the same bytes as in the tests of the Rust crate, which reads them.
        for index, expected in enumerate((
            "0700 0000 0100 0200 0300 0400 0500 0600 0700 0800 0900 0b0a 0c000000" + "00" * 24,
            "0800 0000 0201000000000000 0807060504030000 0900000000000000 0a000000" + "00" * 20,
            "0900 0000 0807060504030201 09000000 00000000" + "61" * 24 + "00" * 8,
            "0a00 0000 0201000000000000 0807060504030201 0300000000000000 0400000000000000 05000000" + "00" * 12,
        )):  # fmt: skip
            self.assertEqual(self.slot(index)[12:].hex(), expected.replace(" ", ""))

    def test_full_ring_drops_and_counts_and_goes_on_when_read(self):
        written = sum(self.ring.note(str(index)) for index in range(100))
        self.assertEqual(written, 64)  # capacity less the 64 spare slots
        dump = ringdump.dump(self.ring.path)
        self.assertEqual((dump.head, dump.dropped), (64, 36))
        self.ring.words[16] = 64  # the reader's tail
        self.assertEqual(sum(self.ring.note(str(index)) for index in range(100)), 64)
        dump = ringdump.dump(self.ring.path)
        self.assertEqual((dump.head, dump.dropped), (128, 72))
        self.assertEqual(dump.records, [("note", str(index)) for index in range(64)])

    def test_slots_are_used_again(self):
        for index in range(1000):
            self.assertTrue(self.ring.note(str(index)))
            self.ring.words[16] = self.ring.words[8]
        self.ring.words[16] -= 64
        self.assertEqual(ringdump.dump(self.ring.path).records, [("note", str(index)) for index in range(936, 1000)])


class CannotBeMade(unittest.TestCase):
    def test_no_directory(self):
        with self.assertRaises(OSError):
            _ring.Ring("/nonexistent/rings")

    def test_nothing_is_left_behind(self):
        with tempfile.TemporaryDirectory() as directory:
            os.mkdir(os.path.join(directory, "%d.ring" % os.getpid()))  # in the way of the rename
            with self.assertRaises(OSError):
                _ring.Ring(directory)
            self.assertEqual(os.listdir(directory), ["%d.ring" % os.getpid()])


if __name__ == "__main__":
    unittest.main()
