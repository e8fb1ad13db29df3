"""Provides the stack of this process's main thread, for a job that hangs. The sidecar sends a real-time signal, and
faulthandler's handler, in C, writes the answer to a file that was opened in advance. The handler does not take the GIL,
and costs nothing until the signal arrives. It walks only the main thread, which handles the signal, because walking
other threads while they run is not safe (https://github.com/python/cpython/issues/116008).

The file's name identifies the process, the signal and the descriptor: `<process id>-<start time of
/proc/self/stat>-<signal>-<descriptor>`. Forked children answer into the same file. The sidecar does not signal a
process in which this descriptor is closed or refers to another file, because the process has become another program or
has closed its inherited descriptors.

PACELINE_STACKS is `off` or the number of the signal. A signal that is already handled or ignored is never used. If the
program takes our signal later, the file is closed, and no more signals are sent.
"""

import _signal
import functools
import os
import signal

FOLDER = "stacks"  # in the ring directory
_OFF, _ON = ("off", "0", "false", "no"), ("", "on", "1", "true", "yes")

_path = None  # of this process's file, or of the inherited one
_pid = None  # the process that owns the file
_file = -1
_taken = False  # the program has taken the signal


def watch():
    """Enable answers, once in a process. A forked child that is a rank itself gets its own file."""
    try:
        _watch()
    except Exception:  # then there are no stacks, and the sidecar reports that when it needs one
        pass


def _watch():
    global _path, _pid, _file
    import faulthandler

    from . import _ring

    directory = os.environ.get("PACELINE_RING_DIR")
    asked = os.environ.get("PACELINE_STACKS", "").strip().lower()
    # In a pod the sidecar is in another container and cannot send a signal.
    if _pid == os.getpid() or not directory or asked in _OFF or _taken or _ring.is_shared():
        return
    _pid = os.getpid()
    # An inherited registration already handles our signal.
    number = _free(asked) if _path is None else int(os.path.basename(_path).split("-")[2])
    if number is None:
        return
    folder = os.path.join(directory, FOLDER)
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        pass
    name = "%d-%s-%d" % (_pid, _start_time(), number)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    temporary = os.path.join(folder, "." + name)
    file = os.open(temporary, flags, 0o600)
    path = os.path.join(folder, "%s-%d" % (name, file))
    try:
        faulthandler.register(number, file=file, all_threads=False, chain=False)
        os.rename(temporary, path)  # from here on the sidecar may send the signal
    except BaseException:
        os.unlink(temporary)
        os.close(file)
        raise
    if _path is None:
        _yield_to_others(number)
    _path, _file = path, file


def _free(asked):
    """Return the number of a free signal, or None if there is none."""
    caught, ignored = _dispositions()
    last = int(signal.SIGRTMAX)
    numbers = range(last - 3, last - 11, -1) if asked in _ON else [int(asked)]
    for number in numbers:
        is_taken = (caught | ignored) >> (number - 1) & 1
        if signal.SIGRTMIN <= number <= last and not is_taken:
            return number
    return None


def _dispositions():
    """Return the caught and the ignored signals as bits, including those set outside Python."""
    with open("/proc/self/status") as status:
        fields = dict(line.split(":", 1) for line in status if line.startswith("Sig"))
    return int(fields["SigCgt"], 16), int(fields["SigIgn"], 16)


def _start_time():
    """Return the start time of this process, in clock ticks since boot. Together with the process id it is unique."""
    with open("/proc/self/stat") as stat:
        return stat.read().rpartition(")")[2].split()[19]


def _yield_to_others(number):
    """Stop when the program sets its own handler for our signal, in this process or a forked one, because the signal
    must not be sent again then."""
    handle = _signal.signal  # the function behind signal.signal, however that was imported

    @functools.wraps(handle)
    def wrapper(signalnum, handler):
        if signalnum == number:
            _forget()
        return handle(signalnum, handler)

    _signal.signal = wrapper


def _forget():
    """Stop answering, in this process and in processes forked from now on."""
    global _taken, _file
    if _taken:
        return
    _taken = True
    file, _file = _file, -1
    try:
        if _pid == os.getpid():
            os.unlink(_path)
        os.close(file)
    except OSError:
        pass
