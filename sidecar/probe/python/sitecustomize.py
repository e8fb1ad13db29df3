"""Python loads this module at start because `paceline run` puts this directory first on PYTHONPATH.

It measures nothing itself. It watches for imports of a few modules of PyTorch and other frameworks, and runs the
sitecustomize that it hides, if any, as Python would have run it. Without PACELINE_RING_DIR, or with PACELINE_HOOK=off,
it only runs the hidden sitecustomize. A program that never imports torch pays for one dictionary look-up per import.
"""

import os
import sys
from importlib.machinery import PathFinder, SourceFileLoader

_HERE = os.path.dirname(os.path.abspath(__file__))


class _Watch:
    """A meta path finder that finds nothing itself. It delegates to the other finders and is notified after each
    load."""

    # For these modules the hook must be installed before other code copies a name from the module.
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
            except Exception:  # a trainer must never see an internal error of the hook
                pass

        # This name is shown in the traceback of a failing import.
        exec_module.__code__ = _renamed(exec_module.__code__, "paceline/sitecustomize.py")
        try:
            spec.loader.exec_module = exec_module
        except Exception:  # a loader that cannot be changed: no hook, and the program continues
            pass


def _renamed(code, filename):
    """Return `code`, and the functions and classes in it, with another file name."""
    kind = type(code)
    constants = tuple(_renamed(each, filename) if isinstance(each, kind) else each for each in code.co_consts)
    return code.replace(co_filename=filename, co_consts=constants)


def _relative(spec):
    """Return `spec`. For one of this directory's modules, its file names are relative to the directory, because the
    directory is removed when the job ends. A traceback that outlives the job then shows `paceline/_hook.py`, not a path
    that no longer exists."""
    try:
        loader = spec.loader if spec is not None else None
        if type(loader) is SourceFileLoader and spec.origin.startswith(_HERE + os.sep):
            name, get_code = os.path.relpath(spec.origin, _HERE), loader.get_code
            loader.get_code = lambda fullname: _renamed(get_code(fullname), name)
    except Exception:  # the import continues unchanged
        pass
    return spec


def _run_hidden_sitecustomize():
    """Run the next sitecustomize on sys.path in place of this one. Its errors are left to Python, which prints them."""
    here = _HERE
    entries = [os.path.abspath(entry) for entry in sys.path if isinstance(entry, str)]
    # Looks only after this directory, because another of our directories may come before it, from an enclosing
    # `paceline run`, and would find this one again.
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
    # If there are several of ours, the first one is enough.
    if not any(getattr(finder, "__qualname__", "") == "_Watch" for finder in sys.meta_path):
        sys.meta_path.insert(0, _Watch)
_run_hidden_sitecustomize()
