"""Measures how long garbage collection blocked the trainer, by the interpreter's own callbacks."""

import gc
import time
from threading import get_ident

_clock = time.monotonic_ns
_tracker = None
_began = 0


def watch(tracker):
    """Charge collections in the tracker's thread to `tracker`, whatever triggered them."""
    global _tracker
    _tracker = tracker
    # Adds it only once, because a forked child inherits the callback.
    if on_collection not in gc.callbacks:
        gc.callbacks.append(on_collection)


def on_collection(what, _):
    """Handle the beginning or the end of a collection. Collections do not nest."""
    global _began
    tracker = _tracker
    if not tracker.on or get_ident() != tracker.thread:
        return
    if what == "start":
        _began = _clock()
    elif _began:
        spent, _began = _clock() - _began, 0
        if tracker.work is None:
            tracker.work = [0, 0, spent]
        else:
            tracker.work[2] += spent
