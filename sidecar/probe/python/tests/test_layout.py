"""A rank's place in the layout: derived, or read from frameworks that the program has loaded. No torch."""

import sys
import types
import unittest

import support  # noqa: F401 - puts the hook on sys.path
from paceline import _layout
from paceline._layout import _from_accelerate, _from_megatron, _from_meshes, _from_text, _megatron_micro_batches
from paceline._layout import Place, positions
from paceline._rank import Rank


class Positions(unittest.TestCase):
    def test_megatron_order(self):
        """With 16 ranks, tp 2, cp 2, dp 2 and pp 2, positions must be in the order of megatron.core.parallel_state's
        docstring."""
        for rank in range(16):
            dp, tp, pp, ep, cp = positions(rank, 16, {"tp": 2, "cp": 2, "pp": 2})
            self.assertEqual((tp, cp, dp, pp), ((rank % 2, 2), (rank // 2 % 2, 2), (rank // 4 % 2, 2), (rank // 8, 2)))
            self.assertEqual(ep, (0, 1))

    def test_experts_divide_data_parallel_neighbours(self):
        found = [positions(rank, 16, {"tp": 2, "pp": 2, "ep": 2})[3] for rank in range(8)]
        self.assertEqual(found, [(0, 2), (0, 2), (1, 2), (1, 2)] * 2)

    def test_given_positions_stand(self):
        self.assertEqual(positions(5, 8, {"dp": (1, 2), "tp": (3, 4)})[:2], [(1, 2), (3, 4)])
        # pp varies fastest here, which is not Megatron's order.
        self.assertEqual(positions(5, 8, {"dp": (2, 4), "pp": (1, 2)})[2], (1, 2))

    def test_what_does_not_fit(self):
        for axes in ({"tp": 3}, {"dp": 4, "tp": 4}, {"tp": 0}, {"tp": (2, 2)}, {"dp": 8, "ep": 3}, {"tp": 2**17}):
            with self.assertRaises(ValueError, msg=axes):
                positions(0, 8, axes)
        with self.assertRaises(ValueError):
            positions(0, 2**17, {"tp": 1})
        with self.assertRaises(TypeError):
            positions(0, 8, {"tp": "two"})


class Environment(unittest.TestCase):
    def test_text(self):
        self.assertEqual(_from_text("dp=2, tp=4,micro_batches=8"), ({"dp": 2, "tp": 4}, 8))
        self.assertEqual(_from_text(""), ({}, None))
        for text in ("dp", "dp=x", "sp=2", "dp=-1"):
            with self.assertRaises(ValueError):
                _from_text(text)

    def test_accelerate(self):
        env = {"PARALLELISM_CONFIG_DP_SHARD_SIZE": "2", "PARALLELISM_CONFIG_TP_SIZE": "4"}
        self.assertEqual(_from_accelerate(env, 8), {"dp": 2, "tp": 4, "cp": 1})
        self.assertIsNone(_from_accelerate(env, 16))
        self.assertIsNone(_from_accelerate({}, 1))


class Mesh:
    """Behaves like torch's DeviceMesh."""

    def __init__(self, names, shape, coordinate):
        self.mesh_dim_names, self._shape, self._coordinate = names, shape, coordinate

    def get_coordinate(self):
        return self._coordinate

    def size(self, dimension):
        return self._shape[dimension]


class Meshes(unittest.TestCase):
    def check(self, expected, world, *meshes):
        class DeviceMesh(Mesh):
            pass

        self.addCleanup(_layout._meshes.clear)
        _layout._meshes.clear()
        _layout.watch_meshes(DeviceMesh)
        for mesh in meshes:
            DeviceMesh(*mesh)  # dropped at once: a script may keep the groups of a mesh and not the mesh
        self.assertEqual(_from_meshes(world), expected)

    def all(self, **axes):
        return {name: axes.get(name, (0, 1)) for name in _layout.AXES}

    def test_one(self):
        self.check(self.all(dp=(1, 2), tp=(0, 2)), 4, (("dp", "tp"), (2, 2), (1, 0)))

    def test_replicate_and_shard_are_one_axis(self):
        names = ("pp", "dp_replicate", "dp_shard", "tp")
        self.check(self.all(pp=(1, 2), dp=(5, 8), tp=(1, 2)), 32, (names, (2, 2, 4, 2), (1, 1, 1, 1)))

    def test_slices_of_the_whole_do_not_count(self):
        whole = (("dp", "cp", "tp"), (2, 2, 2), (1, 0, 1))
        parts = [(("dp",), (2,), (1,)), (("dp_cp",), (4,), (2,)), (("tp",), (2,), (1,))]
        self.check(self.all(dp=(1, 2), cp=(0, 2), tp=(1, 2)), 8, *parts, whole)

    def test_experts_are_in_another(self):
        """These are the meshes of torchtitan: for data, for dense layers (context folded into fsdp), and for
        experts."""
        data = (("pp", "batch", "cp", "tp"), (1, 4, 2, 2), (0, 3, 1, 0))
        dense = (("pp", "dp_replicate", "fsdp", "tp"), (1, 1, 8, 2), (0, 0, 7, 0))
        experts = (("pp", "dp_replicate", "efsdp", "ep", "etp"), (1, 1, 4, 4, 1), (0, 0, 3, 2, 0))
        self.check(self.all(dp=(3, 4), cp=(1, 2), tp=(0, 2), ep=(2, 4)), 16, dense, experts, data)

    def test_meshes_of_their_own_are_put_together(self):
        self.check(self.all(dp=(1, 2), tp=(0, 2)), 4, (("dp",), (2,), (1,)), (("tp",), (2,), (0,)))

    def test_the_latest_of_several(self):
        self.check(self.all(dp=(1, 4)), 4, (("pp", "dp"), (1, 4), (0, 2)), (("pp", "dp"), (1, 4), (0, 1)))

    def test_none(self):
        self.check(None, 4)
        self.check(None, 4, (None, (4,), (1,)))
        self.check(None, 4, (("x", "y"), (2, 2), (1, 1)))
        self.check(None, 8, (("dp", "tp"), (2, 2), (1, 1)))
        self.check(None, 4, (("dp", "tp"), (2, 2), None))


class Megatron(unittest.TestCase):
    def setUp(self):
        state = types.ModuleType("megatron.core.parallel_state")
        state.model_parallel_is_initialized = lambda: self.up
        for name, place in (("data", (1, 2)), ("tensor_model", (2, 4)), ("pipeline_model", (0, 2)), ("context", (0, 1))):
            setattr(state, "get_%s_parallel_rank" % name, lambda place=place: place[0])
            setattr(state, "get_%s_parallel_world_size" % name, lambda place=place: place[1])
        counts = types.ModuleType("megatron.core.num_microbatches_calculator")
        counts.get_num_microbatches = lambda: 16
        for module in (state, counts):
            sys.modules[module.__name__] = module
            self.addCleanup(sys.modules.pop, module.__name__)

    def test_its_own_state(self):
        self.up = True
        self.assertEqual(_from_megatron(), {"dp": (1, 2), "tp": (2, 4), "pp": (0, 2), "cp": (0, 1)})
        self.assertEqual(_megatron_micro_batches(), 16)

    def test_not_set_up(self):
        self.up = False
        self.assertIsNone(_from_megatron())

    def test_is_told(self):
        self.up = True
        ring, place = Ring(), Place()
        place.look(0, ring, Rank(9, 1, 16, 0))
        self.assertEqual(ring.layouts, [([(1, 2), (2, 4), (0, 2), (0, 1), (0, 1)], 16)])


class Ring:
    def __init__(self):
        self.layouts, self.notes = [], []

    def layout(self, axes, micro_batches):
        self.layouts.append((axes, micro_batches))

    def note(self, text):
        self.notes.append(text)


class Telling(unittest.TestCase):
    def test_once_and_again_after_a_minute(self):
        ring, place = Ring(), Place()
        place.declare({"tp": 2}, None)
        for second in (0, 1, 59, 61, 100):
            place.look(second * 10**9, ring, Rank(3, 3, 4, 0))
        self.assertEqual(ring.layouts, [([(1, 2), (1, 2), (0, 1), (0, 1), (0, 1)], 0)] * 2)

    def test_what_is_declared_later_counts(self):
        ring, place = Ring(), Place()
        for sizes in ({"tp": 2}, {"tp": 4}):
            place.declare(sizes, 8)
            place.look(0, ring, Rank(3, 3, 4, 0))
        self.assertEqual([axes[1] for axes, _ in ring.layouts], [(1, 2), (3, 4)])

    def test_micro_batches_alone_wait_for_what_is_seen(self):
        ring, place = Ring(), Place()
        place.declare({}, 8)
        for now in range(_layout._TRIES - 1):
            place.look(now, ring, Rank(3, 3, 4, 0))
            self.assertEqual(ring.layouts, [])
        place.look(9, ring, Rank(3, 3, 4, 0))
        self.assertEqual(ring.layouts, [([(3, 4), (0, 1), (0, 1), (0, 1), (0, 1)], 8)])

    def test_nothing_known_nothing_told(self):
        ring, place = Ring(), Place()
        for now in range(20):
            place.look(now, ring, Rank(0, 0, 4, 0))
        self.assertEqual((ring.layouts, ring.notes), ([], []))


if __name__ == "__main__":
    unittest.main()
