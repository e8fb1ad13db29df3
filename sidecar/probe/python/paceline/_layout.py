"""Determines this rank's position on the axes of parallelism: as declared, or otherwise as found in what the program
itself has loaded.

The sources are tried in this order: `paceline.layout()`, PACELINE_LAYOUT, Megatron-Core's parallel_state, torch's named
meshes, and the sizes that `accelerate launch` puts into the environment. Nothing is imported. A layout that does not
fit the world is ignored.
"""

import functools
import os
import sys
from operator import index as _whole

from . import _patch

AXES = ("dp", "tp", "pp", "ep", "cp")
_LARGEST = 65535
_TRIES = 5  # attempts, one per flush; a program that has not set up its layout by then will not do so later
_AGAIN = 60_000_000_000  # ns after which the layout is written again, for a sidecar that started later
_MOST_MESHES = 64

# Names of mesh dimensions in programs. Several data-parallel dimensions of one mesh (replicate and shard) count as one.
_DIMENSIONS = {
    "dp": "dp ddp data data_parallel batch replicate shard fsdp dp_replicate dp_shard dp_shard_mod_ep dp_shard_in_ep",
    "tp": "tp mp model tensor tensor_parallel",
    "pp": "pp pipe pipeline stage pipeline_parallel",
    "ep": "ep expert expert_parallel",
    "cp": "cp context context_parallel",
}
_AXIS_OF = {name: axis for axis, names in _DIMENSIONS.items() for name in names.split()}
_meshes = []  # axes of the meshes created so far, as returned by `_mesh_axes`


class Place:
    """The known layout, and when it is written."""

    def __init__(self):
        self._declared = None  # axes and micro-batches as passed by the program
        self._tries = _TRIES
        self._written = None  # arguments of Ring.layout
        self._again_at = 0

    def declare(self, axes, micro_batches):
        """See `paceline.layout`."""
        self._declared = {name: value for name, value in axes.items() if value is not None}, micro_batches
        self.begin()

    def begin(self):
        """Start over, as if nothing was written yet."""
        self._tries = _TRIES
        self._written = None
        self._again_at = 0

    def look(self, now, ring, rank):
        """Write the layout to `ring` if it is known and due. `rank` is an identity of `_rank`."""
        if self._written is None and self._tries:
            self._tries -= 1
            try:
                self._written = self._find(rank)
            except Exception as error:  # the program's mistake, in an optional setting
                self._tries = 0
                ring.note("layout: %s" % error)
                print("paceline: layout not used: %s" % error, file=sys.stderr)
        if self._written is not None and now >= self._again_at:
            self._again_at = now + _AGAIN
            ring.layout(*self._written)

    def _find(self, rank):
        axes, micro_batches = self._declared or ({}, None)
        if not axes:
            axes, said = _from_text(os.environ.get("PACELINE_LAYOUT", ""))
            micro_batches = said if micro_batches is None else micro_batches
        if not axes:
            axes = _from_megatron() or _from_meshes(rank.world_size) or _from_accelerate(os.environ, rank.world_size) or {}
            micro_batches = _megatron_micro_batches() if micro_batches is None else micro_batches
        if not axes and micro_batches is None:
            return None
        if not axes and self._tries:
            return None  # axes may still appear; data parallelism alone need not be reported
        count = 0 if micro_batches is None else _whole(micro_batches)
        if not 0 <= count < 2**32:
            raise ValueError("micro_batches is %d" % count)
        return positions(rank.rank, rank.world_size, axes), count


place = Place()


def positions(rank, world, axes):
    """Return the (index, size) of every axis, in the order of AXES. `axes` has a size or an (index, size) for some of
    them. Without an index, it follows from the rank in Megatron's order, the first varying fastest: tp, cp, dp, pp.
    Experts are divided among neighbors with the same tensor-parallel index."""
    given, sizes = {}, {}
    for name, value in axes.items():
        if isinstance(value, (tuple, list)):
            where, size = value
            given[name] = _whole(where)
        else:
            size = value
        sizes[name] = size = _whole(size)
        if not 1 <= size <= _LARGEST or not 0 <= given.get(name, 0) < size:
            raise ValueError("%s is %s" % (name, value))
    tp, cp, pp, ep = [sizes.get(name, 1) for name in ("tp", "cp", "pp", "ep")]
    dp = sizes.get("dp", max(world // (tp * cp * pp), 1))
    if dp > _LARGEST:
        raise ValueError("dp is %d" % dp)
    if len(given) < len(sizes) or "dp" not in sizes:
        if dp * tp * cp * pp != world:
            raise ValueError("dp %d x tp %d x pp %d x cp %d is not world size %d" % (dp, tp, pp, cp, world))
        if dp * cp % ep:
            raise ValueError("ep %d does not divide dp %d x cp %d" % (ep, dp, cp))
    derived = {
        "dp": (rank // (tp * cp) % dp, dp),
        "tp": (rank % tp, tp),
        "pp": (rank // (tp * cp * dp) % pp, pp),
        "ep": (rank // tp % ep, ep),
        "cp": (rank // tp % cp, cp),
    }
    return [(given.get(name, derived[name][0]), derived[name][1]) for name in AXES]


def _from_text(text):
    """Parse a text such as `dp=2,tp=4,micro_batches=8`. Return the axes and the micro-batches."""
    axes, micro_batches = {}, None
    for part in text.split(","):
        if not part.strip():
            continue
        name, _, value = [word.strip() for word in part.partition("=")]
        if not value.isdigit() or name not in AXES + ("micro_batches",):
            raise ValueError("PACELINE_LAYOUT has %r" % part)
        if name == "micro_batches":
            micro_batches = int(value)
        else:
            axes[name] = int(value)
    return axes, micro_batches


def _from_megatron():
    state = sys.modules.get("megatron.core.parallel_state")
    try:
        if state is None or not state.model_parallel_is_initialized():
            return None
    except Exception:
        return None
    axes = {}
    for axis, name in (
        ("dp", "data"),
        ("tp", "tensor_model"),
        ("pp", "pipeline_model"),
        ("ep", "expert_model"),
        ("cp", "context"),
    ):
        try:
            place = getattr(state, "get_%s_parallel_rank" % name)()
            axes[axis] = int(place), int(getattr(state, "get_%s_parallel_world_size" % name)())
        except Exception:
            continue  # another version: without experts, without context
    return axes if len(axes) > 1 else None


def _megatron_micro_batches():
    module = sys.modules.get("megatron.core.num_microbatches_calculator")
    try:
        return int(module.get_num_microbatches())
    except Exception:
        return None  # not loaded, or not set up


def watch_meshes(cls):
    """Remember the axes of new meshes of `cls`, torch's DeviceMesh, because a script may keep only the groups of a
    mesh."""

    def wrap(init):
        @functools.wraps(init)
        def __init__(self, *args, **kwargs):
            init(self, *args, **kwargs)
            if len(_meshes) < _MOST_MESHES and not _patch.is_compiling():
                _remember(self)

        return __init__

    _patch.replace(cls, "__init__", wrap)


def _remember(mesh):
    try:
        axes = _mesh_axes(mesh)
    except Exception:
        return  # another version
    if axes:
        _meshes.append(axes)


def _from_meshes(world):
    """Return the layout of the mesh with named dimensions that covers the world and has the most axes, and of equal
    ones the latest. Experts may be in another mesh."""
    found = _meshes[::-1]
    merged = {}
    for axes in found:
        for name, value in axes.items():
            merged.setdefault(name, value)
    whole = [axes for axes in found + [merged] if _ranks(axes) == world and world > 1]
    if not whole:
        return None
    best = dict(max(whole, key=len))
    if "ep" in merged:
        best.setdefault("ep", merged["ep"])
    # An axis that the mesh does not name counts as not used, because there is nothing to derive it from.
    return {name: best.get(name, (0, 1)) for name in AXES}


def _mesh_axes(mesh):
    axes = {}
    coordinate = mesh.get_coordinate()
    for dimension, name in enumerate(mesh.mesh_dim_names or ()):
        axis = _AXIS_OF.get(name)
        if axis is not None and coordinate is not None:
            before, size = axes.get(axis, (0, 1))
            more = mesh.size(dimension)
            axes[axis] = before * more + coordinate[dimension], size * more
    return axes


def _ranks(axes):
    product = 1
    for name in ("dp", "tp", "pp", "cp"):
        product *= axes.get(name, (0, 1))[1]
    return product


def _from_accelerate(env, world):
    """Return the layout of the sizes that `accelerate launch` sets. Its mesh is in Megatron's order too."""
    sizes = {}
    for name in ("DP_REPLICATE", "DP_SHARD", "TP", "CP"):
        text = env.get("PARALLELISM_CONFIG_%s_SIZE" % name, "")
        sizes[name] = int(text) if text.isdigit() and int(text) else 1
    axes = {"dp": sizes["DP_REPLICATE"] * sizes["DP_SHARD"], "tp": sizes["TP"], "cp": sizes["CP"]}
    return axes if world > 1 and axes["dp"] * axes["tp"] * axes["cp"] == world else None
