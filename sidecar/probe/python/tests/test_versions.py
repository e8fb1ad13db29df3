"""The NCCL and CUDA versions of a rank, as reported by torch. No torch."""

import types
import unittest

import support  # noqa: F401 - puts the hook on sys.path
from paceline._hook import _gpu_versions


class Versions(unittest.TestCase):
    def check(self, expected, cuda, nccl):
        def version():
            if isinstance(nccl, Exception):
                raise nccl
            return nccl

        torch = types.SimpleNamespace()
        torch.version = types.SimpleNamespace(cuda=cuda)
        torch.cuda = types.SimpleNamespace(nccl=types.SimpleNamespace(version=version))
        self.assertEqual(_gpu_versions(torch), expected)

    def test_all(self):
        self.check(((2, 27, 5), (13, 0)), "13.0", (2, 27, 5))
        self.check(((2, 27, 5), (12, 8)), "12.8", (2, 27, 5, "suffix"))
        self.check(((0, 0, 0), (0, 0)), None, (2, 27, 5))
        self.check(((0, 0, 0), (0, 0)), "13.0", RuntimeError("built without NCCL"))
        self.assertEqual(_gpu_versions(types.SimpleNamespace()), ((0, 0, 0), (0, 0)))


if __name__ == "__main__":
    unittest.main()
