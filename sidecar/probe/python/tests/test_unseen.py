"""What the hook cannot see in a program, from the files that it writes."""

import json
import os
import tempfile
import unittest

from support import run

TORCH = "import torch; w = torch.ones(3, requires_grad=True)\n"


class Unseen(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = directory.name

    def reported(self):
        """Return the content of each file."""
        folder = os.path.join(self.directory, "unseen")
        names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
        said = []
        for name in names:
            with open(os.path.join(folder, name)) as file:
                said.append(json.load(file))
        return said

    def run_script(self, script, path=()):
        done = run(script, path=path, PACELINE_RING_DIR=self.directory)
        self.assertEqual((done.code, done.err), (0, ""))
        return done.out

    def test_gradients_without_an_optimizer(self):
        script = TORCH + "for _ in range(%d): w.sum().backward()\nimport os; print(os.listdir(%r))\n"
        out = self.run_script(script % (70, self.directory))
        self.assertIn("unseen", out)  # while it runs
        self.assertEqual(self.reported(), [{"kind": "no_optimizer"}])

    def test_a_program_that_ends_after_a_few(self):
        self.run_script(TORCH + "w.sum().backward()")
        self.assertEqual(self.reported(), [{"kind": "no_optimizer"}])

    def test_an_optimizer_that_steps_takes_it_back(self):
        script = TORCH + "optimizer = torch.optim.SGD([w], lr=0.1)\nfor _ in range(100): w.sum().backward()\noptimizer.step()\n"
        script += "print(torch.autograd.backward.__wrapped__.__code__.co_filename.endswith('autograd/__init__.py'))"
        self.assertEqual(self.run_script(script), "True\n")  # a single wrapper of ours
        self.assertEqual(self.reported(), [])

    def test_a_program_that_ends_its_steps_itself(self):
        self.run_script(TORCH + "import paceline\nfor _ in range(100):\n  w.sum().backward()\n  paceline.step()")
        self.assertEqual(self.reported(), [])

    def test_another_framework(self):
        other = os.path.join(self.directory, "site")
        os.makedirs(os.path.join(other, "jax"))
        with open(os.path.join(other, "jax", "__init__.py"), "w"):
            pass
        self.run_script("import jax", path=[other])
        self.assertEqual(self.reported(), [{"kind": "other_framework", "name": "jax"}])

    def test_what_comes_after_a_step_is_beside_the_training(self):
        other = os.path.join(self.directory, "site")
        os.makedirs(os.path.join(other, "jax"))
        with open(os.path.join(other, "jax", "__init__.py"), "w"):
            pass
        script = "from torch.autograd import backward\n" + TORCH
        script += "optimizer = torch.optim.SGD([w], lr=0.1)\nw.sum().backward()\noptimizer.step()\nimport jax\n"
        self.run_script(script + "for _ in range(100): backward(w.sum())\n", path=[other])
        self.assertEqual(self.reported(), [])

    def test_several_gpus(self):
        script = """
            from paceline import _unseen
            class cuda:
                used = [0, 0, 0, 0]
                device_count = staticmethod(lambda: 4)
                memory_allocated = staticmethod(lambda index: cuda.used[index])
            _unseen.look_for_gpus(cuda)
            cuda.used = [1 << 30, 1 << 20, 0, 0]  # a stray tensor
            _unseen.look_for_gpus(cuda)
            print(_unseen._reported)
            cuda.used = [1 << 30, 1 << 29, 1 << 29, 0]
            _unseen.look_for_gpus(cuda)
            _unseen.look_for_gpus(cuda)
        """
        self.assertEqual(self.run_script(script), "{}\n")
        self.assertEqual(self.reported(), [{"kind": "several_gpus", "gpus": 3}])


if __name__ == "__main__":
    unittest.main()
