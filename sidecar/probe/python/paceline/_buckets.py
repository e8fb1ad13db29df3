"""Measures the waits in the middle of DDP's backward, on a GPU.

DDP exchanges gradients by buckets, in C++. Its backend determines where the training stream waits for them.
ProcessGroupNCCL ("nccl-legacy" since torch 2.15) waits at the end of backward, which _backward.py covers. nccl2 (torch
2.15's "nccl") waits as soon as a bucket is full, in the middle of the gradients. Without this module, that waiting
would look like compute on every rank.

A bucket is full at its last gradient. DDP reports which gradients those are once it has rebuilt its buckets in the
order in which gradients arrived. Under a pipeline schedule it reports nothing, and they are computed here as DDP does.
On these parameters, a hook before DDP's own marks the start of a wait, and a hook after it marks the end. What DDP does
in between, a copy into the bucket, counts as wait too, on all ranks alike.
"""

import weakref

from . import _patch
from ._tracker import COMPUTE, WAIT, tracker

MOST_BUCKETS = 256  # with more, a step would have too many marks
_ORDER = "prev_iteration_grad_ready_order_indices"  # in DDP's logging data
_FIRST_BUCKET_BYTES = 1 << 20  # torch.distributed._DEFAULT_FIRST_BUCKET_BYTES


class Buckets:
    """Hooks on the last parameter of each bucket except the last bucket, whose wait ends with backward.
    `gradient_edge`: torch.autograd.graph.get_gradient_edge; `unserializable`: torch.utils.hooks.unserializable_hook;
    `assign`: torch.distributed's _compute_bucket_assignment_by_size, or None."""

    def __init__(self, gradient_edge, unserializable, assign=None):
        self._gradient_edge = gradient_edge
        self._unserializable = unserializable
        self._assign = assign
        self._model = None  # weak reference
        self._kept = {}  # the two handles of a parameter, by its index
        self._waits = False

    def look(self, model, arrived=()):
        """Update the buckets of this model. Call this between two backward passes. `arrived` has the parameters in the
        order in which their gradients arrived in the previous backward; parameters of another model are ignored."""
        try:
            if self._model is None or self._model() is not model:
                self._clear()
                self._model = weakref.ref(model)
            parameters = [parameter for parameter in model.module.parameters() if parameter.requires_grad]
            reported = model._get_ddp_logging_data()
            ends = bucket_ends(reported, len(parameters))
            is_silent = _ORDER not in reported or not _rebuilds(model)
            if is_silent and reported.get("num_parameter_tensors") == len(parameters):
                ends = self._computed_ends(model, parameters, arrived)
            if len(ends) > MOST_BUCKETS:
                ends = set()
            for index in set(self._kept) - ends:
                for handle in self._kept.pop(index):
                    handle.remove()
            for index in ends - set(self._kept):
                self._kept[index] = self._watch(parameters[index])
        except Exception as error:  # a model or a torch version with other internals
            self._clear()
            tracker.note("DDP's buckets: %s: %s" % (type(error).__name__, error))

    def _computed_ends(self, model, parameters, arrived):
        """Return indices of parameters, like `bucket_ends`, by the rules of PyTorch's `rebuild_buckets` (reducer.cpp).
        Buckets are in the order in which gradients arrived, or in the model's order if DDP does not rebuild them
        because of unused parameters."""
        index_of = {id(parameter): index for index, parameter in enumerate(parameters)}
        order = list(dict.fromkeys(index_of[id(parameter)] for parameter in arrived if id(parameter) in index_of))
        place = {index: place for place, index in enumerate(order)}
        indices = order if _rebuilds(model) else list(range(len(parameters)))
        if self._assign is None or not order or len(indices) < len(parameters):
            return set()
        tensors = [parameters[index] for index in indices]
        buckets, _ = self._assign(tensors, _size_limits(model), [False] * len(indices), indices)
        return _ends(buckets, place)

    def _clear(self):
        for handles in self._kept.values():
            for handle in handles:
                handle.remove()
        self._kept = {}

    def _watch(self, parameter):
        """Hook this parameter. DDP has its own hook on the node that accumulates the gradient, and our hook on that
        node runs after it."""

        @self._unserializable
        def begin(_):
            self._begin()

        @self._unserializable
        def end(*_):
            self._end()

        _patch.hide_from_dynamo(begin, end, Buckets._begin, Buckets._end)
        return parameter.register_hook(begin), self._gradient_edge(parameter).node.register_hook(end)

    def _begin(self):
        if tracker.skips_waits():
            return
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


def _rebuilds(model):
    """Return whether DDP rebuilds its buckets after the first step."""
    return model.static_graph or not model.find_unused_parameters


def _size_limits(model):
    """Return the size limits, in bytes, of the first bucket and of each later one."""
    config = getattr(model, "_bucket_config", None)  # not in older versions of torch
    if config is not None and config.per_bucket_bytes_caps:
        return list(config.per_bucket_bytes_caps)
    if config is not None:
        return [config.first_bucket_bytes_cap, config.bucket_bytes_cap]
    if not getattr(model, "bucket_bytes_cap_default", True):  # a configured size also applies to the first bucket
        return [model.bucket_bytes_cap] * 2
    return [min(_FIRST_BUCKET_BYTES, model.bucket_bytes_cap), model.bucket_bytes_cap]


def bucket_ends(reported, parameters):
    """Return the indices of the parameters that complete a bucket, without the last bucket. `reported` is DDP's own
    data, which is empty until DDP has rebuilt its buckets."""
    order, buckets = reported.get(_ORDER), reported.get("rebuilt_per_bucket_param_indices")
    if not order or not buckets or reported.get("num_parameter_tensors") != parameters:
        return set()
    place = {int(index): place for place, index in enumerate(order.split(","))}
    return _ends([list(map(int, bucket.split())) for bucket in buckets.split(",")], place)


def _ends(buckets, place):
    """Return for each bucket the index with the highest place, except for the bucket with the highest place of all."""
    ends = {max(bucket, key=lambda index: place.get(index, -1)) for bucket in buckets}
    ends.discard(max(ends, key=lambda index: place.get(index, -1)))
    return ends
