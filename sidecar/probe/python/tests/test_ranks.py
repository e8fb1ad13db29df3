"""Trainers of several ranks, and processes that inherit a rank without being one. Skipped without torch."""

import unittest

from programs import BASE, GROUP, script
from ringdump import attach, steps
from support import has, run


@unittest.skipUnless(has("torch"), "no torch")
class Helpers(unittest.TestCase):
    """Every process that a trainer starts inherits RANK, but is not the rank."""

    def check(self, text, expected, base=BASE + GROUP):
        done = run(script(text, base), RANK="0", WORLD_SIZE="1", LOCAL_RANK="0")
        self.assertEqual((done.code, done.err), (0, ""))
        self.assertEqual(len(done.rings), expected, done.files)
        return done

    def test_loader_workers(self):
        for method, workers in (("fork", 2), ("spawn", 1)):
            self.check("""
                from torch.utils.data import DataLoader, Dataset
                class Steps(Dataset):
                    def __len__(self): return 4
                    def __getitem__(self, index):
                        net = torch.nn.Linear(1, 1)
                        opt = torch.optim.SGD(net.parameters(), lr=1.0)
                        for _ in range(3):
                            net(torch.ones(1, 1)).sum().backward(); opt.step()
                        return torch.ones(4)
                if __name__ == '__main__':
                    for _ in DataLoader(Steps(), num_workers=%d, multiprocessing_context=%r): pass
                    step()
                    for _ in DataLoader(Steps(), num_workers=%d, multiprocessing_context=%r): pass
                    step()
            """ % (workers, method, workers, method), 1)

    def test_children_that_train_for_themselves(self):
        self.check("""
            import multiprocessing, subprocess
            def child():
                for _ in range(3): step()
            if __name__ == '__main__':
                if os.environ.get('CHILD'):
                    child()
                else:
                    step()
                    for method in ('fork', 'spawn'):
                        process = multiprocessing.get_context(method).Process(target=child)
                        process.start(); process.join()
                        assert process.exitcode == 0
                    subprocess.check_call([sys.executable, __file__], env=dict(os.environ, CHILD='1'))
                    step()
        """, 1)

    def test_trainers_that_a_launcher_spawns(self):
        """Under torch.multiprocessing.spawn, RANK is not even correct, but the process group is."""
        done = self.check("""
            import torch.multiprocessing as mp
            def train(rank, path):
                join(rank, 2, path)
                for _ in range(4): step()
                dist.barrier()
                dist.destroy_process_group()
            if __name__ == '__main__':
                mp.spawn(train, args=(tempfile.mktemp(),), nprocs=2)
        """, 2)
        self.assertEqual([attach(ring)[:3] for ring in done.rings], [(0, 0, 2), (1, 0, 2)])

    def test_trainers_that_fork(self):
        done = self.check("""
            import multiprocessing
            def train(rank, path):
                join(rank, 2, path)
                for _ in range(4): step()
                dist.barrier()
                dist.destroy_process_group()
            path = tempfile.mktemp()
            all = [multiprocessing.get_context('fork').Process(target=train, args=(r, path)) for r in range(2)]
            for p in all: p.start()
            for p in all: p.join()
        """, 2)
        self.assertEqual([attach(ring).rank for ring in done.rings], [0, 1])


@unittest.skipUnless(has("torch"), "no torch")
class Collectives(unittest.TestCase):
    """Two ranks run in one program. Rank 1 is late by 50 ms, so rank 0 waits for it."""

    measures_time = True

    LATE = """
        import multiprocessing
        def train(rank, path):
            join(rank, 2, path)
            {setup}
            for _ in range(6):
                time.sleep(0.05 * rank)
                {body}
            dist.barrier()
            {end}
            dist.destroy_process_group()
        path = tempfile.mktemp()
        both = [multiprocessing.get_context('fork').Process(target=train, args=(r, path)) for r in range(2)]
        for p in both: p.start()
        for p in both: p.join(); assert p.exitcode == 0, p.exitcode
    """

    def check(self, body, setup="pass", end="pass", settled=3):
        text = self.LATE.format(body=body, setup=setup, end=end)
        done = run(script(text, BASE + GROUP), nursery=True)
        self.assertEqual((done.code, done.err), (0, ""))
        early, late = [[s for s in steps(ring) if s.step >= settled] for ring in done.rings]
        for step in early:
            self.assertTrue(40_000 <= step.wait <= step.dur_ns / 1000, (body, step))
        for step in late:
            self.assertLess(step.wait, 30_000, (body, step))
            self.assertGreaterEqual(step.compute, 50_000, (body, step))

    def test_every_kind(self):
        for body in (
            "dist.all_reduce(torch.ones(1)); step()",
            "dist.all_reduce(torch.ones(1), async_op=True).wait(); step()",
            "dist.barrier(); step()",
            "dist.all_gather_object([None, None], rank); step()",
            "dist.all_gather([torch.ones(1), torch.ones(1)], torch.ones(1)); step()",
        ):
            self.check(body)

    def test_ddp(self):
        setup = "net = torch.nn.parallel.DistributedDataParallel(globals()['net'])"
        body = "net(torch.ones(2, 4)).mean().backward(); opt.step(); opt.zero_grad()"
        self.check(body, setup, "del net")

    def test_ddp_with_buffers_broadcast(self):
        setup = (
            "inner = globals()['net']; inner.register_buffer('b', torch.ones(2)); "
            "net = torch.nn.parallel.DistributedDataParallel(inner)"
        )
        body = "net(torch.ones(2, 4)).mean().backward(); opt.step(); opt.zero_grad()"
        self.check(body, setup, "del net")

    def test_ddp_that_ends_at_another_parameter_now_and_then(self):
        setup = (
            "a, b = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4); opt = torch.optim.SGD([*a.parameters(), "
            "*b.parameters()], lr=0.1); a, b = map(torch.nn.parallel.DistributedDataParallel, (a, b)); n = [0]"
        )
        body = (
            "n[0] += 1; (a if n[0] % 2 else b)(torch.ones(2, 4)).mean().backward(); opt.step(); opt.zero_grad()"
        )
        # At its second forward, each model agrees on buckets, in C++.
        self.check(body, setup, "del a, b", settled=5)

    def test_a_name_imported_early(self):
        self.check("all_reduce(torch.ones(1)); step()", "from torch.distributed import all_reduce")


if __name__ == "__main__":
    unittest.main()
