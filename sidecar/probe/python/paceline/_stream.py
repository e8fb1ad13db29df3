"""Writes the health of all ranks as one stream into the trackers that a program uses: W&B, MLflow, TensorBoard
(docs/trackers.md).

A daemon thread polls the job's aggregator and writes rows. It runs only on rank 0, and only if `paceline.track` or
PACELINE_TRACK requests it. It starts when the program has stepped and has a tracker. The trainer's thread only checks
which trackers are active, so anything slow, blocked or failing affects only the daemon thread.
"""

import atexit
import os
import threading
import time

from . import _sinks
from ._tracker import tracker

_EVERY = 15.0  # seconds between two rows
_LEAST = 1.0
_FIRST = 3.0  # seconds until the first row, because some data is available by then
_LOOK = 1_000_000_000  # ns between two checks for active trackers
_GOODBYE = 1.0  # seconds that the end of the program may wait for the last row
_LAST_ANSWER = 0.5  # of these, the seconds that may be spent on the aggregator's answer
_LOADING = 1.0  # seconds that a fork may wait for modules that are being imported
_MOST_FAILURES = 3  # in a row, before a tracker is disabled
_PATIENCE = 60.0  # seconds without an answer before a note
_NAMES = {"wandb": _sinks.Wandb, "mlflow": _sinks.Mlflow}


class Stream:
    """The requested trackers, and the thread that writes to them. Nothing here raises."""

    def __init__(self):
        self.sinks = {}
        self.every = _EVERY
        self._thread = None
        self._end = threading.Event()
        self._loaded = threading.Event()  # the thread has finished its imports
        self._look_at = 0
        self._troubles = []  # notes for the trainer's thread to write, as the ring's only writer
        self._failures = {}

    def ask(self, sinks, every):
        """Add these trackers. `every` is the number of seconds between rows."""
        if every is not None:
            self.every = max(float(every), _LEAST)
        # Replaces the dictionary, because the thread may be iterating over the old one.
        self.sinks = {**self.sinks, **{sink.name: sink for sink in sinks}}

    def look(self, now):
        """Check for active trackers, in the trainer's thread and at most several times a second. `now` is in ns."""
        if now < self._look_at:
            return
        self._look_at = now + _LOOK
        while self._troubles:
            tracker.note("trackers: " + self._troubles.pop(0))
        if not self.sinks:
            return
        if tracker.rank is None or tracker.rank.rank != 0:
            self.sinks = {}
            return
        is_any = False
        for sink in self.sinks.values():
            try:
                is_any = sink.notice() or is_any
            except Exception as error:
                self._failed(sink, error)
        if is_any and self._thread is None and not self._end.is_set():
            self._thread = threading.Thread(target=self._run, name="paceline-trackers", daemon=True)
            # The handler is registered after the trackers' own handlers, so it runs before them at exit.
            atexit.register(self.close)
            self._thread.start()

    def close(self):
        """Write a last row and stop. Waits at most a second for it."""
        self._end.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(_GOODBYE)

    def before_fork(self):
        """Wait until the thread has finished its imports. Otherwise a module that it is importing could never be
        imported in the child, where its lock would stay held."""
        thread = self._thread
        if thread is not None and thread.is_alive() and thread is not threading.current_thread():
            self._loaded.wait(_LOADING)

    def forked(self):
        """Reset in a forked child, because the thread and the rank belong to the parent. The thread may have held the
        lock of `_end`, which is never released in the child, so the child must not touch it, not even at exit."""
        atexit.unregister(self.close)
        self.__init__()

    def _run(self):
        try:
            try:
                # Imported here so that the trainer's thread does not wait until HTTP is loaded.
                import encodings.idna  # noqa: F401 - by the first look-up of an address

                from . import _live, _row
            finally:
                self._loaded.set()
            live, job = _live.Live(), _row.Job()
            answered = time.monotonic()
            pause, is_last = min(_FIRST, self.every), False
            while not is_last and not tracker.retired:
                is_last = self._end.wait(pause)
                try:
                    news = live.news(_LAST_ANSWER) if is_last else live.news()
                except _live.Unreached as why:
                    if time.monotonic() - answered > _PATIENCE:
                        answered = float("inf")  # reported once
                        self._troubles.append(str(why))
                    continue
                answered, pause = time.monotonic(), self.every
                if news is not None:
                    job.take(news)
                    self._write(job.row(), is_last)
        except Exception as error:  # an answer of an unknown form
            self._troubles.append("off: %s: %s" % (type(error).__name__, error))

    def _write(self, row, is_last):
        for sink in list(self.sinks.values()) if row is not None else ():
            try:
                sink.write(row, is_last)
                self._failures.pop(sink.name, None)
            except Exception as error:
                self._failed(sink, error)

    def _failed(self, sink, error):
        count = self._failures.get(sink.name, 0) + 1
        self._failures[sink.name] = count
        if count >= _MOST_FAILURES:
            self.sinks = {name: other for name, other in self.sinks.items() if other is not sink}
            # A note has at most 48 bytes.
            self._troubles.append("%s off: %s: %s" % (sink.name, type(error).__name__, error))


class Tracking:
    """Returned by `paceline.track`."""

    def __init__(self, stream):
        self._stream = stream

    def close(self):
        """Write a last row now and none after it, for example before `wandb.finish()`. Takes at most a second."""
        self._stream.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def track(wandb=None, mlflow=None, tensorboard=None, every=None):
    """See `paceline.track`."""
    global _stream
    if _is_off():
        return Tracking(Stream())
    if wandb is None and mlflow is None and tensorboard is None:
        wandb = mlflow = True
    sinks = []
    if wandb is not None and wandb is not False:
        sinks.append(_sinks.Wandb(None if wandb is True else wandb))
    if mlflow is not None and mlflow is not False:
        sinks.append(_sinks.Mlflow(None if mlflow is True else str(mlflow)))
    if tensorboard is not None and tensorboard is not False:
        sinks.append(_sinks.TensorBoard(tensorboard))
    try:
        if _stream._end.is_set():  # closed before
            _stream = Stream()
        _stream.ask(sinks, every)
    except Exception:  # not a number
        pass
    return Tracking(_stream)


def look(now):
    """See `Stream.look`."""
    try:
        _stream.look(now)
    except Exception:
        _stream.sinks = {}


def _is_off():
    return os.environ.get("PACELINE_TRACK") == "off"


def _from_environment():
    """Return a stream for the trackers in PACELINE_TRACK: `wandb`, `mlflow`, or both, separated by a comma."""
    stream = Stream()
    words = os.environ.get("PACELINE_TRACK", "").lower().split(",")
    try:
        every = os.environ.get("PACELINE_TRACK_EVERY") or None
        stream.ask([_NAMES[word.strip()]() for word in words if word.strip() in _NAMES], every)
    except ValueError:
        pass
    return stream


def _before_fork():
    _stream.before_fork()


def _forked():
    _stream.forked()


_stream = _from_environment()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_forked)
