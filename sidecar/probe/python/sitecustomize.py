"""Loaded by Python at start because `paceline run` puts this directory first on PYTHONPATH.

It arms nothing. It watches for a few modules of PyTorch to be imported, and runs the sitecustomize that it hides, if
there is one, as Python would have run it. Without PACELINE_RING_DIR, or with PACELINE_HOOK=off, it only does the
second. A program that never imports torch pays for one dictionary look-up per import.
"""

import os
import sys


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
        )
    )

    @classmethod
    def find_spec(cls, name, path=None, target=None):
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

        try:
            spec.loader.exec_module = exec_module
        except Exception:  # a loader that cannot be changed: no hook, and the program goes on
            pass


def _run_hidden_sitecustomize():
    """Run the next sitecustomize on sys.path in place of this one. Its errors are its own: Python prints them."""
    from importlib.machinery import PathFinder

    here = os.path.dirname(os.path.abspath(__file__))
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
