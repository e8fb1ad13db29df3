"""The effects of the hook on any program that is started with it on its path. No torch."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

from support import HOOK, run

# A fake torch.optim.optimizer. A program that imports it loads the hook.
FAKE_TORCH = {
    "torch/__init__.py": "",
    "torch/optim/__init__.py": "",
    "torch/optim/optimizer.py": "class Optimizer:\n    def _patch_step_function(self): pass\n",
}


def tree(directory, files):
    for name, text in files.items():
        path = os.path.join(directory, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(text)


QUIET = unittest.skipUnless("PACELINE_TIMED" in os.environ, "a timed claim needs a quiet machine: PACELINE_TIMED=1")


class Start(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.directory = folder.name

    def test_hidden_sitecustomize_runs_as_itself(self):
        tree(self.directory, {"sitecustomize.py": "import builtins\nbuiltins.hidden = __name__, __file__\n"})
        done = run(
            "import sitecustomize\nprint(hidden)\nprint(sitecustomize.__file__)", path=[self.directory]
        )
        path = os.path.join(self.directory, "sitecustomize.py")
        self.assertEqual(done.out, "('sitecustomize', %r)\n%s\n" % (path, path))

    def test_two_of_ours_behind_each_other(self):
        tree(self.directory, {"user/sitecustomize.py": "print('the user')\n"})
        other = os.path.join(self.directory, "other")
        shutil.copytree(HOOK, other, ignore=shutil.ignore_patterns("tests"))
        script = "import sys; print(sum(getattr(f, '__name__', '') == '_Watch' for f in sys.meta_path))"
        done = run(script, path=[other, os.path.join(self.directory, "user")])
        self.assertEqual((done.code, done.out, done.err), (0, "the user\n1\n", ""))

    def test_tracebacks_name_no_path_that_is_gone_afterwards(self):
        script = """
            import traceback
            from paceline import _patch, _tracker
            _tracker.tracker.on = True
            def save(): raise OSError("disk full")
            try: _patch.timed(save, _tracker.CHECKPOINT)()
            except OSError: print(traceback.format_exc())
            """
        done = run(script)
        self.assertIn('File "paceline/_patch.py", line', done.out + done.err)
        self.assertNotIn(HOOK, done.out + done.err)
        self.assertEqual(done.code, 0)

    def test_as_a_module_it_is_the_program(self):
        files = {
            "bin/paceline": "#!/bin/sh\necho beside $@\n",
            "site/paceline-1.dist-info/METADATA": "Metadata-Version: 2.4\nName: paceline\nVersion: 1\n",
            "site/paceline-1.dist-info/RECORD": "../bin/paceline,,\n",
            "path/paceline": "#!/bin/sh\necho on PATH $@\n",
        }
        tree(self.directory, files)
        for name in ("bin/paceline", "path/paceline"):
            os.chmod(os.path.join(self.directory, name), 0o755)

        def said(path, python_path):
            names = [HOOK] + [os.path.join(self.directory, name) for name in python_path]
            env = dict(os.environ, PATH=os.path.join(self.directory, path), PYTHONPATH=os.pathsep.join(names))
            words = [sys.executable, "-m", "paceline", "--version"]
            done = subprocess.run(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            return done.returncode, done.stdout.decode(), done.stderr.decode()

        self.assertEqual(said("path", ["site"]), (0, "beside --version\n", ""))
        self.assertEqual(said("path", []), (0, "on PATH --version\n", ""))
        code, out, err = said("nowhere", [])
        self.assertEqual((code, out), (1, ""))
        self.assertIn("pip install paceline", err)

    def test_its_error_is_printed_as_ever(self):
        tree(self.directory, {"sitecustomize.py": "raise ValueError('broken')\n"})
        with_hook = run("print('on')", path=[self.directory])
        env = dict(os.environ, PYTHONPATH=self.directory)
        without = subprocess.run(
            [sys.executable, "-c", "print('on')"], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        self.assertIn("ValueError: broken", with_hook.err)
        self.assertEqual(with_hook.err, without.stderr.decode())
        self.assertEqual((with_hook.code, with_hook.out), (0, "on\n"))

    def watches(self, *flags, **env):
        script = "import sys; print(any(f.__module__ == 'sitecustomize' for f in sys.meta_path if isinstance(f, type)))"
        return run(script, *flags, **env).out == "True\n"

    def test_watches_only_where_it_should(self):
        self.assertTrue(self.watches())
        self.assertTrue(self.watches(PACELINE_HOOK="on"))
        self.assertFalse(self.watches(PACELINE_HOOK="off"))
        self.assertFalse(self.watches(PACELINE_RING_DIR=""))
        self.assertFalse(self.watches("-I"))
        self.assertFalse(self.watches("-S"))

    def test_the_hook_loads_with_the_optimizer_and_not_before(self):
        tree(self.directory, FAKE_TORCH)
        script = """
            import sys
            import torch
            print('paceline' in sys.modules)
            import torch.optim.optimizer as module
            print('paceline._hook' in sys.modules, module.Optimizer._patch_step_function.__wrapped__ is not None)
            print(module.__spec__.loader.get_source('torch.optim.optimizer').startswith('class'))
        """
        done = run(script, path=[self.directory])
        self.assertEqual((done.out, done.err), ("False\nTrue True\nTrue\n", ""))

    def test_an_error_of_the_hook_is_not_the_programs(self):
        tree(self.directory, FAKE_TORCH)
        tree(self.directory, {"torch/optim/optimizer.py": "nothing = 'that the hook expects'\n"})
        done = run("import torch.optim.optimizer as m; print(m.nothing)", path=[self.directory])
        self.assertEqual((done.code, done.out, done.err), (0, "that the hook expects\n", ""))

    def test_an_error_of_the_module_is(self):
        tree(self.directory, FAKE_TORCH)
        tree(self.directory, {"torch/optim/optimizer.py": "raise OSError('no such library')\n"})
        done = run("import torch.optim.optimizer", path=[self.directory])
        self.assertEqual(done.code, 1)
        self.assertIn("OSError: no such library", done.err)
        self.assertIn('File "paceline/sitecustomize.py"', done.err)
        self.assertNotIn(HOOK, done.err)  # a path that no longer exists afterwards

    def test_console_scripts_start(self):
        script = os.path.join(self.directory, "tool")
        with open(script, "w") as file:
            file.write("#!%s\nimport sys\nprint('tool', sys.argv[1:])\n" % sys.executable)
        os.chmod(script, 0o755)
        env = dict(os.environ, PYTHONPATH=HOOK, PACELINE_RING_DIR=self.directory)
        self.assertEqual(subprocess.check_output([script, "a"], env=env), b"tool ['a']\n")

    def test_a_program_without_torch_loads_nothing_of_ours_but_the_watch(self):
        script = "import sys; print([name for name in sys.modules if name.startswith('paceline') or name == 'sitecustomize'])"
        self.assertEqual(run(script).out, "['sitecustomize']\n")

    @QUIET
    def test_a_program_without_torch_hardly_notices(self):
        def load():
            """Return the CPU time of the code that the interpreter runs at start, as it reports it itself."""
            script = """
                import importlib.util, os, sys, time
                spec = importlib.util.spec_from_file_location('again', %r)
                module = importlib.util.module_from_spec(spec)
                before = time.process_time_ns()
                spec.loader.exec_module(module)
                print(time.process_time_ns() - before)
            """
            return int(run(script % os.path.join(HOOK, "sitecustomize.py")).out)

        self.assertLess(min(load() for _ in range(5)), 1_000_000)

    @QUIET
    def test_importing_is_not_slowed(self):
        script = """
            import time, sitecustomize
            watch = sitecustomize._Watch
            before = time.process_time_ns()
            for _ in range(1000):
                watch.find_spec('json.decoder')
            print(time.process_time_ns() - before)
        """
        self.assertLess(min(int(run(script).out) for _ in range(3)), 1_000_000)


if __name__ == "__main__":
    unittest.main()
