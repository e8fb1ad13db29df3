"""All ranks' health as one stream into the trackers that a program uses: W&B, MLflow, TensorBoard (docs/trackers.md).

On rank 0 only, and only where somebody asked for it, by `paceline.track` or PACELINE_TRACK, a daemon thread asks the job's
aggregator now and then and writes a row. It starts when the program has stepped and has a tracker. The trainer's thread looks
at what is active and otherwise has nothing to do with it: whatever is slow, stuck or broken in there is so in that thread.
"""

import atexit
import os
import threading
import time

from . import _sinks
from ._tracker import tracker

_EVERY = 15.0  # seconds between two rows
_LEAST = 1.0
_FIRST = 3.0  # seconds until the first row: a little is known by then
_LOOK = 1_000_000_000  # ns between two looks at what is active
_GOODBYE = 1.0  # seconds that the end of the program may wait for the last row
_LAST_ANSWER = 0.5  # of these, for the aggregator
_LOADING = 1.0  # seconds that a fork may wait for modules that are being imported
_MOST_FAILURES = 3  # in a row, until a tracker is left alone
_PATIENCE = 60.0  # seconds without an answer until that is said
_NAMES = {"wandb": _sinks.Wandb, "mlflow": _sinks.Mlflow}


class Stream:
    """What was asked for, and the thread that does it. Nothing here raises."""

    def __init__(self):
        self.sinks = {}
        self.every = _EVERY
        self._thread = None
        self._end = threading.Event()
        self._loaded = threading.Event()  # the thread has imported what it needs
        self._look_at = 0
        self._troubles = []  # to be noted by the trainer's thread, the ring's only writer
        self._failures = {}

    def ask(self, sinks, every):
        """These too, from now on; rows so many seconds apart."""
        if every is not None:
            self.every = max(float(every), _LEAST)
        # A new dictionary: the thread may be at the old one.
        self.sinks = {**self.sinks, **{sink.name: sink for sink in sinks}}

    def look(self, now):
        """In the trainer's thread, several times a second at most. `now`: ns."""
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
            # After the trackers' own, which were there first: before them at the end.
            atexit.register(self.close)
            self._thread.start()

    def close(self):
        """A last row, and no more; waits a second for it at most."""
        self._end.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(_GOODBYE)

    def before_fork(self):
        """A module whose import the thread has begun could never be imported in the child: its lock would be held there."""
        thread = self._thread
        if thread is not None and thread.is_alive() and thread is not threading.current_thread():
            self._loaded.wait(_LOADING)

    def forked(self):
        """In a forked child: the thread is the parent's, and so is the rank. The thread may have held the lock of `_end`,
        which is never released here: the child must not touch it, not even at its end."""
        atexit.unregister(self.close)
        self.__init__()

    def _run(self):
        try:
            try:
                # Here and not above: the trainer's thread need not wait until HTTP is loaded.
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
                        answered = float("inf")  # it is said once
                        self._troubles.append(str(why))
                    continue
                answered, pause = time.monotonic(), self.every
                if news is not None:
                    job.take(news)
                    self._write(job.row(), is_last)
        except Exception as error:  # an answer of another form than is known
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
            # A note has 48 bytes.
            self._troubles.append("%s off: %s: %s" % (sink.name, type(error).__name__, error))


class Tracking:
    """What `paceline.track` gives."""

    def __init__(self, stream):
        self._stream = stream

    def close(self):
        """Write a last row now and no more after it, as before `wandb.finish()`. Takes a second at most."""
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
        if _stream._end.is_set():  # one that was closed
            _stream = Stream()
        _stream.ask(sinks, every)
    except Exception:  # what is no number
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
    """What PACELINE_TRACK asks for: `wandb`, `mlflow`, both with a comma between them."""
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
