"""Real training programs under the hook, each in a process of its own. Skipped where there is no torch."""

import re
import unittest

from ringdump import attach, steps
from support import has, run, torch_version

# torch.compile came to Python 3.11 with torch 2.1.
compiles = unittest.skipIf(torch_version() < (2, 1), "no torch.compile on this Python")

# A model, an optimizer and one ordinary step.
BASE = """
import os, sys, time, torch
torch.set_num_threads(1)
net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))
opt = torch.optim.SGD(net.parameters(), lr=0.1)
def forward():
    return net(torch.ones(2, 4)).mean()
def step():
    forward().backward()
    opt.step()
    opt.zero_grad()
def tracker():
    from paceline import _tracker
    return _tracker.tracker
"""
GROUP = """
import tempfile, torch.distributed as dist
def join(rank=0, world=1, path=None):
    dist.init_process_group("gloo", init_method="file://" + (path or tempfile.mktemp()), rank=rank, world_size=world)
"""


def script(text, base=BASE):
    import textwrap

    return base + textwrap.dedent(text)


def complaints(err):
    """Lines of stderr that are not torch's own log."""
    return [line for line in err.splitlines() if not re.match(r"(\[rank\d\]:)?W\d{4} .* torch/", line)]


@unittest.skipUnless(has("torch"), "no torch")
class Steps(unittest.TestCase):
    def check(self, text, base=BASE, **env):
        """Run; the program must end well and say nothing on stderr. Gives the only ring and what it printed."""
        done = run(script(text, base), **env)
        self.assertEqual((done.code, complaints(done.err)), (0, []))
        self.assertEqual(len(done.rings), 1, done.files)
        return done.rings[0], done.out

    def test_steps_and_identity(self):
        ring, _ = self.check("for _ in range(5): step()", RANK="1", LOCAL_RANK="1", WORLD_SIZE="2")
        who = attach(ring)
        self.assertEqual(who[:5], (1, 1, 2, 0, -1))
        self.assertEqual((who.framework, who.major), (1, 2))
        self.assertEqual([(s.step, s.passes, s.kind, s.known) for s in steps(ring)], [(n, 1, 0, 1) for n in range(2, 6)])
        self.assertEqual(ring.records[-1], ("detach", 5))
        self.assertEqual(ring.progress, (6, "compute"))

    def test_a_program_that_never_steps_has_no_ring(self):
        done = run(script("forward().backward()"))
        self.assertEqual((done.code, done.files), (0, []))

    def test_no_ring_directory(self):
        done = run(script("for _ in range(5): step()"), PACELINE_RING_DIR="/nonexistent/rings")
        self.assertEqual((done.code, done.err), (0, ""))

    def test_accumulation_is_one_step(self):
        ring, _ = self.check("for _ in range(4):\n    forward().backward(); forward().backward(); step()")
        self.assertEqual([s.passes for s in steps(ring)], [3, 3, 3])

    def test_phases(self):
        ring, _ = self.check("""
            from torch.utils.data import DataLoader, Dataset
            class Slow(Dataset):
                def __len__(self): return 4
                def __getitem__(self, index):
                    time.sleep(0.03)
                    return torch.ones(4)
            class SlowSGD(torch.optim.SGD):
                def step(self, closure=None):
                    time.sleep(0.02)
                    return super().step(closure)
            opt = SlowSGD(net.parameters(), lr=0.1)
            step()
            for batch in DataLoader(Slow(), batch_size=1):
                time.sleep(0.01)
                step()
            start = time.time()
            torch.save(net.state_dict(), 'net.pt')
            time.sleep(0.05)
            step()
        """)
        found = steps(ring)
        self.assertEqual(len(found), 5)  # the step of SlowSGD calls its base class's: one step
        for s in found[:4]:
            self.assertTrue(30_000 <= s.data < 45_000, s)
            self.assertTrue(20_000 <= s.optimizer < 35_000, s)
            self.assertTrue(10_000 <= s.compute < 25_000, s)
        self.assertGreater(found[4].checkpoint, 100)

    def test_a_long_checkpoint_marks_the_step(self):
        ring, _ = self.check("""
            step()
            step()
            class Slow:
                def __reduce__(self):
                    time.sleep(0.05)
                    return int, ()
            torch.save(Slow(), 'x.pt')
            step()
            step()
        """)
        self.assertEqual([s.kind for s in steps(ring)], [0, 1, 0])
        self.assertGreaterEqual(steps(ring)[1].checkpoint, 50_000)

    def test_two_optimizers_are_one_step(self):
        ring, _ = self.check("""
            other = torch.optim.Adam(net.parameters())
            for _ in range(12):
                forward().backward(); opt.step(); other.step()
        """)
        self.assertEqual(len(steps(ring)), 11)

    def test_another_takes_over_when_the_primary_stops(self):
        ring, _ = self.check("""
            other = torch.optim.Adam(net.parameters())
            for _ in range(3): step()
            for _ in range(20): forward().backward(); other.step()
        """)
        self.assertEqual(len(steps(ring)), 2 + 13)  # the eighth of the other's steps is the first that counts

    @unittest.skipIf(torch_version() < (2, 1), "torch has no hook for it")
    def test_optimizers_in_backward(self):
        ring, _ = self.check("""
            net = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(10)))
            own = {p: torch.optim.SGD([p], lr=0.1) for p in net.parameters()}
            for p in own:
                p.register_post_accumulate_grad_hook(lambda p: own[p].step())
            for _ in range(20): net(torch.ones(1, 4)).sum().backward()
        """)
        self.assertEqual(len(steps(ring)), 19)

    def test_closures(self):
        ring, _ = self.check("""
            opt = torch.optim.LBFGS(net.parameters(), max_iter=3, tolerance_grad=0, tolerance_change=0)
            def closure():
                opt.zero_grad()
                time.sleep(0.01)
                loss = forward()
                loss.backward()
                return loss
            for _ in range(4): opt.step(closure)
        """)
        self.assertEqual(len(steps(ring)), 3)
        for s in steps(ring):
            self.assertGreaterEqual(s.compute, 10_000 * s.passes)
            self.assertLess(s.optimizer, 10_000)

    def test_explicit_steps_take_over(self):
        ring, _ = self.check("""
            import paceline
            for _ in range(5):
                step(); step(); step()
                paceline.step()
        """)
        # Two of the first three before the first call, then one for each further call.
        self.assertEqual([s.step for s in steps(ring)], [2, 3, 4, 5, 6, 7])
        self.assertEqual([s.passes for s in steps(ring)][2:], [3, 3, 3, 3])

    def test_exceptions_pass_through(self):
        ring, out = self.check("""
            class Bad(torch.optim.SGD):
                bad = False
                def step(self, closure=None):
                    if self.bad: raise KeyError('step')
                    return super().step(closure)
            opt = Bad(net.parameters(), lr=0.1)
            step(); step()
            for what in ('opt.step()', 'torch.zeros(2).sum().backward()', 'torch.save(lambda: 0, "x")'):
                opt.bad = True
                try:
                    exec(what)
                except Exception as error:
                    print(type(error).__name__)
                opt.bad = False
            x = torch.ones(1, requires_grad=True)
            x.register_hook(lambda _: 1 / 0)
            try:
                (x * 2).backward()
            except ZeroDivisionError:
                print('hook')
            step()
        """)
        self.assertEqual(out.split()[:2] + out.split()[3:], ["KeyError", "RuntimeError", "hook"])
        self.assertEqual([s.step for s in steps(ring)], [2, 3])
        self.assertEqual(ring.progress, (4, "compute"))

    def test_an_error_of_ours_is_noted_and_ends_it(self):
        ring, _ = self.check("""
            step(); step()
            tracker().spent = None
            for _ in range(5): step()
        """)
        self.assertEqual([s.step for s in steps(ring)], [2])
        self.assertTrue(any(r[0] == "note" and r[1].startswith("hook off: TypeError") for r in ring.records), ring)

    def test_wrappers_look_like_what_they_wrap(self):
        self.check_same_without("""
            import inspect, pickle
            step()
            from torch.utils.data import dataloader
            for f in (torch.autograd.backward, torch.save, dist.all_reduce, torch.optim.SGD.step, dist.barrier,
                      dataloader._BaseDataLoaderIter.__next__, torch.nn.parallel.DistributedDataParallel.__init__):
                print(f.__module__, f.__qualname__, (f.__doc__ or '')[:40], inspect.signature(f))
            print(pickle.loads(pickle.dumps(dist.all_reduce)) is dist.all_reduce is dist.distributed_c10d.all_reduce)
        """)

    def test_a_hooked_parameter_can_be_saved_and_copied(self):
        self.check_same_without("""
            import copy, io, warnings
            warnings.simplefilter('error')
            join()
            model = torch.nn.parallel.DistributedDataParallel(net)
            for _ in range(5):
                model(torch.ones(2, 4)).mean().backward(); opt.step(); opt.zero_grad()
            copied = copy.deepcopy(net)
            file = io.BytesIO()
            torch.save(net, file)
            import multiprocessing.reduction
            multiprocessing.reduction.ForkingPickler.dumps(net[0].bias.detach())
            print(len(file.getvalue()) > 100, sum(len(p._backward_hooks or ()) for p in copied.parameters()))
            del model
            dist.destroy_process_group()
        """)

    @compiles
    def test_compiled_model_and_compiled_step(self):
        for backend in ("eager", "aot_eager"):
            ring, out = self.check("""
                compiled = torch.compile(net, backend=%r)
                def forward(): return compiled(torch.ones(2, 4)).mean()
                for _ in range(3): step()
                @torch.compile(backend=%r)
                def whole():
                    compiled(torch.ones(2, 4)).mean().backward()
                for _ in range(6): whole(); opt.step(); opt.zero_grad()
                print(float(forward()) < 10)
            """ % (backend, backend))
            self.assertEqual((len(steps(ring)), out), (8, "True\n"))

    def check_same_without(self, text):
        """The program prints the same with the hook and without it; gives its ring."""
        ring, out = self.check(text, BASE + GROUP)
        off = run(script(text, BASE + GROUP), PACELINE_HOOK="off")
        self.assertEqual((off.code, off.out), (0, out))
        return ring

    @compiles
    def test_compiled_optimizer(self):
        """Torch breaks the graph at Optimizer.step by itself; we are called between, and break nothing more."""
        ring = self.check_same_without("""
            step(); step()
            fast = torch.compile(lambda: opt.step(), backend='eager')
            for _ in range(4):
                forward().backward(); fast()
            print(torch._dynamo.utils.counters['graph_break'].total())
        """)
        self.assertEqual([s.step for s in steps(ring)], [2, 3, 4, 5, 6])

    @compiles
    def test_no_graph_more_because_of_us(self):
        ring = self.check_same_without("""
            graphs = []
            def backend(graph, inputs):
                graphs.append(graph)
                return graph.forward
            join()
            net = torch.nn.parallel.DistributedDataParallel(net)
            compiled = torch.compile(net, backend=backend)
            for _ in range(20):
                compiled(torch.ones(2, 4)).mean().backward(); opt.step(); opt.zero_grad()
            @torch.compile(backend=backend, fullgraph=True)
            def collective(x):
                dist.all_reduce(x)
                return x + 1
            for _ in range(3): collective(torch.ones(2))
            print(len(graphs))
            del net, compiled
            dist.destroy_process_group()
        """)
        self.assertEqual(len(steps(ring)), 19)


@unittest.skipUnless(has("torch"), "no torch")
class Helpers(unittest.TestCase):
    """RANK is inherited by everything that a trainer starts."""

    def check(self, text, expected, base=BASE + GROUP):
        done = run(script(text, base), RANK="0", WORLD_SIZE="1", LOCAL_RANK="0")
        self.assertEqual((done.code, done.err), (0, ""))
        self.assertEqual(len(done.rings), expected, done.files)
        return done

    def test_loader_workers(self):
        for method in ("fork", "spawn"):
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
                    for _ in DataLoader(Steps(), num_workers=2, multiprocessing_context=%r): pass
                    step()
                    for _ in DataLoader(Steps(), num_workers=2, multiprocessing_context=%r): pass
                    step()
            """ % (method, method), 1)

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
        """torch.multiprocessing.spawn: RANK is not even right there, the process group is."""
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
    """Two ranks in one program; rank 1 is late by 50 ms, so rank 0 waits for it."""

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
        done = run(script(text, BASE + GROUP))
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
        # The second forward of each model agrees on buckets, in C++.
        self.check(body, setup, "del a, b", settled=5)

    def test_a_name_imported_early(self):
        self.check("all_reduce(torch.ones(1)); step()", "from torch.distributed import all_reduce")


if __name__ == "__main__":
    unittest.main()
