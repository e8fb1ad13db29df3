"""Waits of the training stream without a collective in the program: for other streams, and for DDP's buckets. With a
timeline that records its calls. No GPU, no torch."""

import threading
import types
import unittest

import support  # noqa: F401 - puts the hook on sys.path
from paceline import _buckets, _patch
from paceline._tracker import COMPUTE, WAIT, tracker

TRAINING, COMMUNICATION = 1, 2


class Stream:
    def __init__(self, number):
        self.cuda_stream = number


class Timeline:
    """The timeline of a trainer on stream 1."""

    def __init__(self):
        self.current = TRAINING
        self.is_timed = True
        self.marks = []

    def is_training(self, stream=None):
        return self.current == TRAINING and (stream is None or stream.cuda_stream == TRAINING)

    def mark(self, phase):
        self.marks.append(phase)


class Watched(unittest.TestCase):
    """A tracker in the middle of a step."""

    def setUp(self):
        tracker.__init__()
        tracker.on, tracker._progress, tracker.phase = True, [0, 0], COMPUTE
        tracker.thread = threading.get_ident()
        tracker.timeline = self.timeline = Timeline()
        self.addCleanup(tracker.__init__)


class Streams(Watched):
    def setUp(self):
        super().setUp()
        self.during = []  # the last mark when a wait was enqueued
        test = self

        class Event:
            def wait(event, stream=None):
                test.during.append(test.timeline.marks[-1] if test.timeline.marks else None)

        self.Event, self.original = Event, Event.wait
        self.addCleanup(_patch.timed_only.__init__)
        _patch.timed_only.__init__()
        _patch.wrap_streams(type("cuda", (), {"Event": Event}))

    def test_the_training_stream_waits(self):
        self.Event().wait(Stream(TRAINING))
        self.Event().wait()
        self.assertEqual(self.during, [WAIT, WAIT])
        self.assertEqual(self.timeline.marks, [WAIT, COMPUTE] * 2)
        self.assertEqual(tracker.spent, [0] * 7)  # the host continued at once

    def test_another_stream_waits(self):
        self.Event().wait(Stream(COMMUNICATION))
        self.timeline.current = COMMUNICATION
        self.Event().wait()
        self.Event().wait(Stream(COMMUNICATION))
        self.assertEqual((self.during, self.timeline.marks), ([None] * 3, []))

    def test_a_wait_in_a_wait(self):
        tracker.switch(WAIT)
        self.Event().wait()
        self.assertEqual(self.timeline.marks, [WAIT])

    def test_on_the_host_streams_mean_nothing(self):
        timeline, tracker.timeline = self.timeline, None
        self.Event().wait()
        self.assertEqual(timeline.marks, [])

    def test_a_step_that_is_not_timed(self):
        self.timeline.is_timed = False
        _patch.timed_only.switch(False)
        self.assertIs(self.Event.wait, self.original)
        _patch.timed_only.switch(True)
        self.Event().wait()  # the step is not timed, whatever the caller
        self.assertEqual(self.timeline.marks, [])
        self.timeline.is_timed = True
        self.Event().wait()
        self.assertEqual(self.timeline.marks, [WAIT, COMPUTE])

    def test_wrappers_of_others_stay(self):
        ours = self.Event.wait
        theirs = self.Event.wait = lambda event, stream=None: ours(event, stream)
        for is_timed in (False, True):
            _patch.timed_only.switch(is_timed)
            self.assertIs(self.Event.wait, theirs)


class Collectives(Watched):
    def check(self, function, *args):
        during = []
        wrapped = function(lambda *_: during.append(tracker.phase))
        wrapped(*args)
        self.timeline.current = COMMUNICATION
        wrapped(*args)
        self.assertEqual(during, [WAIT, COMPUTE])
        self.assertEqual(self.timeline.marks, [WAIT, COMPUTE])

    def test_a_collective_on_a_stream_of_communication_is_no_wait(self):
        self.check(_patch.collective, "tensor")

    def test_nor_is_a_handle_that_is_waited_for_there(self):
        self.check(_patch.waiting, "work")

    def test_in_a_step_that_is_not_timed_only_what_blocks_the_host_is_told(self):
        self.timeline.is_timed = False
        during = []
        wrapped = _patch.collective(lambda *_: during.append(tracker.phase))
        on_gpu = type("Tensor", (), {"is_cuda": True})
        for argument in (on_gpu, [on_gpu], "a tensor of the host's", []):
            wrapped(argument)
        self.assertEqual(during, [COMPUTE, COMPUTE, WAIT, WAIT])


class Handle:
    def __init__(self, hooks, hook):
        self._hooks, self._hook = hooks, hook

    def remove(self):
        self._hooks.remove(self._hook)


class Parameter:
    """A parameter, and the node that accumulates its gradient."""

    requires_grad = True

    def __init__(self):
        self.before, self.after = [], []

    def register_hook(self, hook):
        self.before.append(hook)
        return Handle(self.before, hook)

    def edge(self):
        def register_hook(hook):
            self.after.append(hook)
            return Handle(self.after, hook)

        return type("Edge", (), {"node": type("Node", (), {"register_hook": staticmethod(register_hook)})})


class Model:
    """A DDP model after its first backward. Its own hook records the current phase."""

    require_backward_grad_sync = True
    static_graph = find_unused_parameters = False
    bucket_bytes_cap = 2  # parameters

    def __init__(self, order="5, 4, 3, 2, 1, 0", buckets="5 4, 2 3, 1 0", parameters=6):
        self.parameters = [Parameter() for _ in range(parameters)]
        self.module = type("Module", (), {"parameters": lambda _: self.parameters})()
        self.said = {
            "prev_iteration_grad_ready_order_indices": order,
            "rebuilt_per_bucket_param_indices": buckets,
            "num_parameter_tensors": parameters,
        }
        self.during = {}

    def _get_ddp_logging_data(self):
        return self.said

    def backward(self):
        self.during = {}
        tracker.in_backward = True
        for index in reversed(range(len(self.parameters))):
            parameter = self.parameters[index]
            for hook in parameter.before:
                hook("gradient")
            self.during[index] = tracker.phase
            for hook in parameter.after:
                hook((), ())
        tracker.in_backward = False


def assigned(tensors, limits, sparse, indices):
    """Like torch.distributed._compute_bucket_assignment_by_size, with parameters of size 1."""
    assert len(tensors) == len(sparse) == len(indices)
    return [indices[at : at + limits[-1]] for at in range(0, len(indices), limits[-1])], limits


class DdpBuckets(Watched):
    def watched(self, model, arrived=()):
        buckets = _buckets.Buckets(Parameter.edge, lambda function: function, assigned)
        buckets.look(model, arrived)
        return buckets

    def waits(self, model):
        model.backward()
        self.assertEqual(tracker.phase, COMPUTE)
        return [index for index, phase in sorted(model.during.items()) if phase == WAIT]

    def test_a_bucket_is_full_at_its_last_gradient(self):
        model = Model()
        self.watched(model)
        self.assertEqual(self.waits(model), [2, 4])  # not 0: that wait ends with backward
        self.assertEqual(self.timeline.marks, [WAIT, COMPUTE] * 2)

    def test_without_synchronization_nobody_waits(self):
        model = Model()
        self.watched(model)
        model.require_backward_grad_sync = False
        self.assertEqual(self.waits(model), [])

    def test_what_autograd_does_on_another_stream(self):
        model = Model()
        self.watched(model)
        self.timeline.current = COMMUNICATION
        self.assertEqual(self.waits(model), [])

    def test_a_step_that_is_not_timed(self):
        model = Model()
        self.watched(model)
        self.timeline.is_timed = False
        self.assertEqual(self.waits(model), [])

    def test_other_buckets_later(self):
        model = Model(buckets="")
        buckets = self.watched(model)
        self.assertEqual(self.waits(model), [])
        model.said["rebuilt_per_bucket_param_indices"] = "5 4 3, 2 1 0"
        buckets.look(model)
        self.assertEqual(self.waits(model), [3])
        other = Model()
        buckets.look(other)
        self.assertEqual(self.waits(model), [])
        self.assertEqual(self.waits(other), [2, 4])

    def test_buckets_that_ddp_does_not_report(self):
        """Simulate a torch.distributed.pipelining schedule, whose forwards do not synchronize."""
        model = Model()
        model.said = {"num_parameter_tensors": 6}
        self.watched(model, arrived=[Parameter(), *reversed(model.parameters)])
        self.assertEqual(self.waits(model), [2, 4])
        self.watched(model)  # no backward was watched
        model = Model()
        model.said = {"num_parameter_tensors": 6}
        self.watched(model, arrived=model.parameters[1:])
        self.assertEqual(self.waits(model), [])  # a gradient may still arrive, or the parameter is another model's

    def test_buckets_that_are_never_rebuilt(self):
        """With find_unused_parameters, buckets must stay in the model's order."""
        model = Model(buckets="")
        model.find_unused_parameters = True
        self.watched(model, arrived=list(reversed(model.parameters[1:])))
        self.assertEqual(self.waits(model), [2, 4])  # of 0 1, 2 3, 4 5; the wait of 1 ends with backward

    def test_a_model_of_another_kind_is_left_alone(self):
        notes = []
        tracker.ring = type("Ring", (), {"note": lambda _, text: notes.append(text)})()
        model = Model()
        model._get_ddp_logging_data = None
        self.watched(model)
        self.assertEqual(self.waits(model), [])
        self.assertEqual(len(notes), 1)

    def test_parameters_that_ddp_does_not_count(self):
        model = Model()
        model.said["num_parameter_tensors"] = 5
        self.watched(model)
        self.assertEqual(self.waits(model), [])

    def test_sizes_that_an_older_ddp_has(self):
        """Older versions of torch, such as 2.7, have no _bucket_config. The first bucket is small unless a size was
        requested."""
        mib = 1 << 20
        for by_default, expected in ((True, [mib, 25 * mib]), (False, [25 * mib] * 2)):
            model = types.SimpleNamespace(bucket_bytes_cap=25 * mib, bucket_bytes_cap_default=by_default)
            self.assertEqual(_buckets._size_limits(model), expected)

    def test_bucket_ends(self):
        def check(order, buckets, ends, parameters=4):
            said = {
                "prev_iteration_grad_ready_order_indices": order,
                "rebuilt_per_bucket_param_indices": buckets,
                "num_parameter_tensors": parameters,
            }
            self.assertEqual(_buckets.bucket_ends(said, parameters), ends)

        check("3, 2, 1, 0", "3, 2 1, 0", {3, 1})
        check("0, 3, 1, 2", "0 3, 1 2", {3})
        check("3, 2, 1, 0", "3 2 1 0", set())  # one bucket: its wait ends with backward
        check("3, 2, 1, 0", "", set())
        check("", "3, 2 1, 0", set())
        self.assertEqual(_buckets.bucket_ends({}, 4), set())


if __name__ == "__main__":
    unittest.main()
