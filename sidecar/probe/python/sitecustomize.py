"""Loaded by Python at start because `paceline run` puts this directory first on PYTHONPATH.

It arms nothing. It watches for a few modules of PyTorch and other frameworks to be imported, and runs the sitecustomize
that it hides, if there is one, as Python would have run it. Without PACELINE_RING_DIR, or with PACELINE_HOOK=off, it only
does the second. A program that never imports torch pays for one dictionary look-up per import.
"""

import os
import sys
from importlib.machinery import PathFinder, SourceFileLoader

_HERE = os.path.dirname(os.path.abspath(__file__))


class _Watch:
    """A meta path finder that finds nothing by itself: it lets the others find, and is told when they have loaded."""

    # At these the hook must be there before anyone else copies a name out of the module.
    MODULES = frozenset(
        (
            "torch.optim.optimizer",
            "torch.distributed.distributed_c10d",
            "torch.distributed.device_mesh",
            "torch.distributed.elastic.multiprocessing.api",
            "torch.distributed.elastic.multiprocessing.errors",
            "torch.distributed.checkpoint.state_dict_saver",
            "torch.nn.parallel.distributed",
            "torch.autograd",
            "jax",
            "tensorflow",
        )
    )

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name == "paceline" or name.startswith("paceline."):
            return _relative(PathFinder.find_spec(name, path, target))
        if name not in cls.MODULES:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            if finder is cls or find is None:
                continue
            spec = find(name, path, target)
            if spec is not None:
                cls._tell_when_loaded(spec)
                return spec
        return None

    @staticmethod
    def _tell_when_loaded(spec):
        load = getattr(spec.loader, "exec_module", None)
        if load is None:
            return

        def exec_module(module):
            load(module)
            try:
                from paceline import _hook

                _hook.loaded(module)
            except Exception:  # a trainer must never see an error of ours
                pass

        # In the traceback of an import that fails.
        exec_module.__code__ = _renamed(exec_module.__code__, "paceline/sitecustomize.py")
        try:
            spec.loader.exec_module = exec_module
        except Exception:  # a loader that cannot be changed: no hook, and the program goes on
            pass


def _renamed(code, filename):
    """`code`, and the functions and classes in it, with another file name."""
    kind = type(code)
    constants = tuple(_renamed(each, filename) if isinstance(each, kind) else each for each in code.co_consts)
    return code.replace(co_filename=filename, co_consts=constants)


def _relative(spec):
    """`spec`; one of this directory's modules with file names relative to it. The directory is removed when the job ends: a
    traceback that outlives the job then shows `paceline/_hook.py`, not a path that no longer exists."""
    try:
        loader = spec.loader if spec is not None else None
        if type(loader) is SourceFileLoader and spec.origin.startswith(_HERE + os.sep):
            name, get_code = os.path.relpath(spec.origin, _HERE), loader.get_code
            loader.get_code = lambda fullname: _renamed(get_code(fullname), name)
    except Exception:  # the import goes on as Python found it
        pass
    return spec


def _run_hidden_sitecustomize():
    """Run the next sitecustomize on sys.path in place of this one. Its errors are its own: Python prints them."""
    here = _HERE
    entries = [os.path.abspath(entry) for entry in sys.path if isinstance(entry, str)]
    # Behind us only: one of ours may stand there too, from a watch around this one, and would find us again.
    behind = entries[entries.index(here) + 1 :] if here in entries else entries
    others = [entry for entry in behind if entry != here]
    spec = PathFinder.find_spec("sitecustomize", others)
    if spec is None or spec.loader is None:
        return
    from importlib.util import module_from_spec

    module = module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


if os.environ.get("PACELINE_RING_DIR") and os.environ.get("PACELINE_HOOK") != "off":
    # The first of several of ours is enough.
    if not any(getattr(finder, "__qualname__", "") == "_Watch" for finder in sys.meta_path):
        sys.meta_path.insert(0, _Watch)
_run_hidden_sitecustomize()
