"""What a program declares about its work, its layout and its communicators; the parts with torch are skipped without
it."""

import unittest

import ringdump
from programs import BASE, GROUP, script
from ringdump import of, steps
from support import has, run


class Work(unittest.TestCase):
    def check(self, text, **env):
        done = run(text, **env)
        self.assertEqual((done.code, done.err), (0, ""))
        return done.rings[0]

    def test_declared_work_adds_up_and_stands_before_its_step(self):
        ring = self.check("""
            import gc, paceline
            gc.disable()
            paceline.step()
            paceline.mark(tokens=4, sum_sq=100)
            paceline.mark(sum_sq=23, expert_tokens=7)
            paceline.step()
            paceline.step()
            paceline.step(tokens=1, sum_sq=1, expert_tokens=2**70)
        """)
        self.assertEqual(of(ring, ringdump.Work), [(2, 123, 7, 0), (4, 1, 2**64 - 1, 0)])
        kinds = [type(record).__name__ for record in ring.records]
        self.assertEqual(kinds, ["Attach", "Work", "Step", "Step", "Work", "Step", "tuple"])
        self.assertEqual([s.tokens for s in steps(ring)], [4, 0, 1])

    def test_garbage(self):
        ring = self.check("""
            import gc, time, threading, paceline
            gc.disable()
            paceline.step()
            rings = [[] for _ in range(200_000)]
            for r in rings: r.append(r)
            paceline.step()
            before = time.monotonic_ns()
            gc.collect()
            took = time.monotonic_ns() - before
            paceline.step()
            thread = threading.Thread(target=gc.collect)
            thread.start(); thread.join()
            paceline.step()
            del rings, r
            gc.collect(); gc.collect()
            paceline.step()
            print(took // 1000)
        """)
        work = {w.step: w for w in of(ring, ringdump.Work)}
        self.assertEqual(sorted(work), [3, 5])  # not the collection of the other thread
        for step in steps(ring):
            if step.step in work:
                self.assertTrue(1000 < work[step.step].gc <= step.dur_ns / 1000, (work, step))

    def test_layout(self):
        ring = self.check(
            """
            import paceline
            paceline.layout(tp=2, pp=2, micro_batches=8)
            for _ in range(3): paceline.step()
            """,
            RANK="5",
            WORLD_SIZE="8",
        )
        self.assertEqual(of(ring, ringdump.Layout), [((0, 2), (1, 2), (1, 2), (0, 1), (0, 1), 8)])
        ring = self.check("import paceline; paceline.step()", RANK="5", WORLD_SIZE="8", PACELINE_LAYOUT="tp=4")
        self.assertEqual(of(ring, ringdump.Layout)[0].tp, (1, 4))

    def test_a_wrong_layout_is_reported_and_harms_nobody(self):
        for text in ("paceline.layout(tp=3)", "paceline.layout(tp='x')", "paceline.layout(dp=(4, 4))"):
            done = run("import paceline; %s; paceline.step(); paceline.step()" % text, RANK="0", WORLD_SIZE="4")
            self.assertEqual(done.code, 0)
            self.assertEqual(done.err.count("paceline: layout not used: "), 1, done.err)
            self.assertEqual((len(steps(done.rings[0])), of(done.rings[0], ringdump.Layout)), (1, []))
            self.assertTrue([r for r in done.rings[0].records if r[0] == "note"])
            self.assertEqual(run("import paceline; " + text, PACELINE_RING_DIR="").err, "")


FOUR = """
    import multiprocessing
    def train(rank, path):
        join(rank, 4, path)
        {setup}
        for _ in range(8):
            {body}
        time.sleep(0.6)
        step()  # writes what was held: such a child ends without a word
        dist.barrier()
        dist.destroy_process_group()
    path = tempfile.mktemp()
    all = [multiprocessing.get_context('fork').Process(target=train, args=(r, path)) for r in range(4)]
    for p in all: p.start()
    for p in all: p.join(); assert p.exitcode == 0, p.exitcode
"""
MESH = (
    "from torch.distributed.device_mesh import init_device_mesh; "
    "mesh = init_device_mesh('cpu', (2, 2), mesh_dim_names=('dp', 'tp')); "
    "dp, tp = mesh.get_group('dp'), mesh.get_group('tp')"
)


@unittest.skipUnless(has("torch"), "no torch")
class Communicators(unittest.TestCase):
    measures_time = True

    def check(self, body, setup=MESH):
        done = run(script(FOUR.format(setup=setup, body=body), BASE + GROUP), nursery=True)
        self.assertEqual((done.code, done.err), (0, ""))
        self.assertEqual(len(done.rings), 4)
        return done.rings

    def sums(self, ring, name):
        """Return the communicator of that name with its members, and its sums in the last steps."""
        (group,) = {group for group in of(ring, ringdump.Group) if group.name == name}
        return group, [comm for comm in of(ring, ringdump.Comm) if comm.comm == group.comm][2:]

    def test_a_mesh_is_a_layout(self):
        rings = self.check("step()")
        found = [of(ring, ringdump.Layout) for ring in rings]
        expected = [[((rank // 2, 2), (rank % 2, 2), (0, 1), (0, 1), (0, 1), 0)] for rank in range(4)]
        self.assertEqual(found, expected)
        self.assertEqual([of(ring, ringdump.Comm) for ring in rings], [[]] * 4)  # there are groups, but none is used

    def test_two_groups(self):
        rings = self.check(
            "time.sleep(0.03 * (rank == 1)); dist.all_reduce(torch.ones(100), group=tp); "
            "dist.all_reduce(torch.ones(10), group=tp); out = torch.empty(8); "
            "dist.all_gather_into_tensor(out, torch.ones(4), group=dp); step()"
        )
        ids = {"mesh_tp": {}, "mesh_dp": {}}
        for rank, ring in enumerate(rings):
            for name, collectives, size in (("mesh_tp", 2, 440), ("mesh_dp", 1, 32)):
                group, sums = self.sums(ring, name)
                self.assertEqual(group.size, 2)
                ids[name].setdefault(group.comm, []).append(rank)
                self.assertTrue(sums)
                for comm in sums:
                    self.assertEqual((comm.collectives, comm.bytes), (collectives, size))
                waits = {s.step: s.wait for s in steps(ring)}
                self.assertTrue(all(comm.ns / 1000 <= waits[comm.step] + 1 for comm in sums))
        self.assertEqual(sorted(ids["mesh_tp"].values()), [[0, 1], [2, 3]])
        self.assertEqual(sorted(ids["mesh_dp"].values()), [[0, 2], [1, 3]])
        # Rank 0 must wait for rank 1 among its tensor-parallel peers, and for no other rank.
        median = lambda name: ringdump.median(comm.ns for comm in self.sums(rings[0], name)[1])  # noqa: E731
        self.assertGreater(median("mesh_tp"), 25_000_000)
        self.assertLess(median("mesh_dp"), 15_000_000)

    def test_handles_and_point_to_point(self):
        rings = self.check(
            "time.sleep(0.03 * (rank == 1)); handle = dist.all_reduce(torch.ones(100), group=tp, async_op=True); "
            "handle.wait(); t = torch.ones(5); peer = rank ^ 2; "
            "ops = [dist.P2POp(dist.isend, t, peer, dp), dist.P2POp(dist.irecv, torch.empty(5), peer, dp)]; "
            "[w.wait() for w in dist.batch_isend_irecv(ops)]; step()"
        )
        _, sums = self.sums(rings[0], "mesh_tp")
        self.assertEqual({(comm.collectives, comm.bytes) for comm in sums}, {(1, 400)})
        self.assertGreater(ringdump.median(comm.ns for comm in sums), 25_000_000)
        _, sums = self.sums(rings[0], "mesh_dp")
        self.assertEqual({(comm.collectives, comm.bytes) for comm in sums}, {(2, 40)})

    def test_a_handle_by_position(self):
        rings = self.check(
            "handle = dist.all_reduce(torch.ones(100), dist.ReduceOp.SUM, tp, True); "
            "time.sleep(0.03 * (rank == 1)); handle.wait(); dist.all_reduce(torch.ones(1), group=dp); step()"
        )
        _, sums = self.sums(rings[0], "mesh_tp")
        self.assertEqual({(comm.collectives, comm.bytes) for comm in sums}, {(1, 400)})
        # Rank 1 sleeps between the launch and the wait, so rank 0 must wait for it.
        self.assertLess(ringdump.median(step.wait for step in steps(rings[1])), 15_000)
        self.assertGreater(ringdump.median(comm.ns for comm in sums), 20_000_000)

    def test_a_handle_at_the_address_of_another(self):
        done = run("""
            from paceline._comms import Comms
            class Work:
                pass
            comms = Comms(None, int)
            works = [Work() for _ in range(1000)]
            for work in works:
                comms._remember(work, 7)
                assert comms._launched_in(work) == 7
            addresses = {id(work) for work in works}
            del work, works
            again = [work for work in [Work() for _ in range(1000)] if id(work) in addresses]
            assert again  # which of them, the allocator chooses
            print({comms._launched_in(work) for work in again})
            comms._remember(0, 7)  # has no weak references
            print(comms._launched_in(0))
        """)
        self.assertEqual((done.out, done.err), ("{None}\nNone\n", ""))

    def test_ddp_in_one_of_them(self):
        setup = MESH + "; net = torch.nn.parallel.DistributedDataParallel(globals()['net'], process_group=dp)"
        rings = self.check(
            "time.sleep(0.03 * (rank == 2)); dist.all_reduce(torch.ones(1), group=tp); "
            "net(torch.ones(2, 4)).mean().backward(); opt.step(); opt.zero_grad()",
            setup,
        )
        for ring in rings:
            _, sums = self.sums(ring, "mesh_dp")
            self.assertEqual({(comm.collectives, comm.bytes) for comm in sums}, {(1, 100)})  # 25 parameters
        _, sums = self.sums(rings[0], "mesh_dp")
        self.assertGreater(ringdump.median(comm.ns for comm in sums), 25_000_000)

    def test_one_group_is_not_told(self):
        for setup in ("pass", "side = dist.new_group([0, 1, 2, 3])"):
            for ring in self.check("dist.all_reduce(torch.ones(1)); step()", setup):
                self.assertEqual(of(ring, ringdump.Comm) + of(ring, ringdump.Group) + of(ring, ringdump.Layout), [])


if __name__ == "__main__":
    unittest.main()
