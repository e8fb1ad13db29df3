"""The waits in the middle of DDP's backward, on a GPU.

DDP exchanges gradients by buckets, in C++. Which backend it has decides where the training stream waits for them: with
ProcessGroupNCCL ("nccl-legacy" since torch 2.15) at the end of backward, where _backward.py looks; with nccl2 (torch 2.15's
"nccl") as soon as a bucket is full, in the middle of the gradients. There waiting would pass for compute, on every rank.

Full is a bucket at the gradient that comes last in it. DDP says which those are, once it has rebuilt its buckets in the
order in which gradients came. On these parameters a hook before DDP's own marks the begin of a wait, one behind it the end.
What DDP does in between, a copy into the bucket, counts as wait too, on all ranks alike.
"""

import weakref

from . import _patch
from ._tracker import COMPUTE, WAIT, tracker

MOST_BUCKETS = 256  # past them a step would have too many marks


class Buckets:
    """Hooks on the last parameter of each bucket but the last, whose wait ends with backward. `gradient_edge`:
    torch.autograd.graph.get_gradient_edge; `unserializable`: torch.utils.hooks.unserializable_hook."""

    def __init__(self, gradient_edge, unserializable):
        self._gradient_edge = gradient_edge
        self._unserializable = unserializable
        self._model = None  # weak reference
        self._kept = {}  # index of a parameter: its two handles
        self._waits = False

    def look(self, model):
        """Between two backwards: know the buckets of this model, as they are now."""
        try:
            if self._model is None or self._model() is not model:
                self._clear()
                self._model = weakref.ref(model)
            parameters = [parameter for parameter in model.module.parameters() if parameter.requires_grad]
            ends = bucket_ends(model._get_ddp_logging_data(), len(parameters))
            if len(ends) > MOST_BUCKETS:
                ends = set()
            for index in set(self._kept) - ends:
                for handle in self._kept.pop(index):
                    handle.remove()
            for index in ends - set(self._kept):
                self._kept[index] = self._watch(parameters[index])
        except Exception as error:  # a model or a version of torch that is made in another way
            self._clear()
            tracker.note("DDP's buckets: %s: %s" % (type(error).__name__, error))

    def _clear(self):
        for handles in self._kept.values():
            for handle in handles:
                handle.remove()
        self._kept = {}

    def _watch(self, parameter):
        """DDP has put its own hook on the node that accumulates this gradient; ours on that node comes after it."""

        @self._unserializable
        def begin(_):
            self._begin()

        @self._unserializable
        def end(*_):
            self._end()

        _patch.hide_from_dynamo(begin, end, Buckets._begin, Buckets._end)
        return parameter.register_hook(begin), self._gradient_edge(parameter).node.register_hook(end)

    def _begin(self):
        if tracker.in_backward and tracker.phase == COMPUTE and not tracker.is_elsewhere():
            model = self._model()
            if model is not None and model.require_backward_grad_sync:
                self._waits = True
                tracker.switch(WAIT)

    def _end(self):
        if self._waits:
            self._waits = False
            if tracker.phase == WAIT:
                tracker.switch(COMPUTE)


def bucket_ends(said, parameters):
    """Indices of the parameters that complete a bucket, without the last bucket. `said`: DDP's own data; none before it
    has rebuilt its buckets."""
    order, buckets = said.get("prev_iteration_grad_ready_order_indices"), said.get("rebuilt_per_bucket_param_indices")
    if not order or not buckets or said.get("num_parameter_tensors") != parameters:
        return set()
    place = {int(index): place for place, index in enumerate(order.split(","))}
    ends = {max(map(int, bucket.split()), key=lambda index: place.get(index, -1)) for bucket in buckets.split(",")}
    ends.discard(max(ends, key=lambda index: place.get(index, -1)))
    return ends
