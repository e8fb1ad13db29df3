"""Real training programs under the hook, each in its own process. Skipped without torch."""

import unittest

from programs import BASE, GROUP, complaints, script
from ringdump import attach, steps
from support import has, run, run_both, torch_version

# torch.compile supports Python 3.11 since torch 2.1.
compiles = unittest.skipIf(torch_version() < (2, 1), "no torch.compile on this Python")


@unittest.skipUnless(has("torch"), "no torch")
class Steps(unittest.TestCase):
    def check(self, text, base=BASE, nursery=True, **env):
        """Run the program, which must succeed without output on stderr. Return the only ring and the output."""
        return self.judge(run(script(text, base), nursery=nursery, **env))

    def judge(self, done):
        self.assertEqual((done.code, complaints(done.err)), (0, []))
        self.assertEqual(len(done.rings), 1, done.files)
        return done.rings[0], done.out

    def test_steps_and_identity(self):
        ring, _ = self.check("for _ in range(5): step()", nursery=False, RANK="1", LOCAL_RANK="1", WORLD_SIZE="2")
        who = attach(ring)
        self.assertEqual(who[:5], (1, 1, 2, 0, -1))
        self.assertEqual((who.framework, who.major), (1, 2))
        self.assertEqual([(s.step, s.passes, s.kind, s.known) for s in steps(ring)], [(n, 1, 0, 1) for n in range(2, 6)])
        self.assertEqual(ring.records[-1], ("detach", 5))
        self.assertEqual(ring.progress, (6, "compute"))

    def test_a_program_that_never_steps_has_no_ring(self):
        done = run(script("forward().backward()"))
        self.assertEqual((done.code, done.files), (0, ["unseen"]))

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
        self.assertEqual(len(found), 5)  # SlowSGD's step calls its base class's: one step
        for s in found[:4]:
            self.assertTrue(30_000 <= s.data < 45_000, s)
            self.assertTrue(20_000 <= s.optimizer < 35_000, s)
            self.assertTrue(10_000 <= s.compute < 25_000, s)
        self.assertGreater(found[4].checkpoint, 100)

    test_phases.measures_time = True

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
        self.assertEqual(len(steps(ring)), 2 + 13)  # the eighth step of the other optimizer is the first that counts

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
        # Two of the first three steps come before the first call, and then there is one for each further call.
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

    def test_computed_buckets_are_those_that_ddp_makes(self):
        """Train the same model twice: in the ordinary way, with buckets reported by DDP, and as with a pipeline
        schedule, without reports. Parameters are used in a different order than declared."""
        _, out = self.check("""
            join()
            step()
            from paceline._buckets import Buckets, bucket_ends
            class Net(torch.nn.Module):
                def __init__(self):
                    super().__init__()
                    self.layers = torch.nn.ModuleList(torch.nn.Linear(512, 512) for _ in range(8))
                def forward(self, x):
                    for index in (3, 0, 6, 1, 7, 2, 5, 4): x = self.layers[index](x)
                    return x.mean()
            for how in ({}, {"bucket_cap_mb": 3}):
                model = torch.nn.parallel.DistributedDataParallel(Net(), **how)
                arrived = []
                for parameter in model.parameters(): parameter.register_hook(lambda _, it=parameter: arrived.append(it))
                for _ in range(3):
                    arrived.clear()
                    model(torch.ones(2, 512)).backward()
                reported = bucket_ends(model._get_ddp_logging_data(), 16)
                scheduled = torch.nn.parallel.DistributedDataParallel(Net(), **how)
                for _ in range(3):
                    with scheduled.no_sync(): loss = scheduled(torch.ones(2, 512))
                    scheduled.reducer.prepare_for_backward([loss])
                    loss.backward()
                assert not bucket_ends(scheduled._get_ddp_logging_data(), 16)
                computed = Buckets(None, None, dist._compute_bucket_assignment_by_size)
                print(bool(reported), computed._computed_ends(model, list(model.parameters()), arrived) == reported)
                del model, scheduled
            dist.destroy_process_group()
        """, BASE + GROUP)
        self.assertEqual(out, "True True\n" * 2)

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
            """ % (backend, backend), nursery=False)
            self.assertEqual((len(steps(ring)), out), (8, "True\n"))

    def check_same_without(self, text):
        """Check that the program has the same output with the hook and without it. Return its ring."""
        on, off = run_both(script(text, BASE + GROUP), {}, {"PACELINE_HOOK": "off"})
        ring, out = self.judge(on)
        self.assertEqual((off.code, off.out), (0, out))
        return ring

    @compiles
    def test_compiled_optimizer(self):
        """Torch breaks the graph at Optimizer.step itself. Our code runs in between, and must cause no further
        breaks."""
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
            if hasattr(torch.compiler, 'is_dynamo_compiling'):  # older ones trace no collectives
                for _ in range(3): collective(torch.ones(2))
            print(len(graphs))
            del net, compiled
            dist.destroy_process_group()
        """)
        self.assertEqual(len(steps(ring)), 19)


if __name__ == "__main__":
    unittest.main()
