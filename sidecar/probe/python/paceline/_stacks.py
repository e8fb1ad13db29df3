"""Stacks of all threads of this process, for a job that hangs: the sidecar asks by a real-time signal, and a handler of
faulthandler's in C answers into a file that was opened in advance. It takes no GIL, restarts system calls, and costs a process
that is not asked nothing.

The file's name says who answers, and to which signal: `<process id>-<start time, /proc/self/stat>-<signal>`. Children that are
forked answer into the same file; programs that they become do not, as exec takes handlers away.

PACELINE_STACKS: `off`, or the number of the signal. A signal that somebody handles or ignores is never taken; where somebody
takes ours later, the file goes, and nothing is asked any more.
"""

import faulthandler
import functools
import os
import signal

FOLDER = "stacks"  # in the ring directory
SIGNALS = range(signal.SIGRTMAX - 3, signal.SIGRTMAX - 11, -1)  # the first that is free

_path = None  # of this process's file
_pid = None  # whose it is
_file = -1


def watch():
    """Answer from now on. Once in a process; a forked child that is a rank of its own gets a file of its own."""
    try:
        _watch()
    except Exception:  # no stacks then, and the sidecar says so where one is wanted
        pass


def _watch():
    global _path, _pid, _file
    from . import _ring

    directory = os.environ.get("PACELINE_RING_DIR")
    asked = os.environ.get("PACELINE_STACKS", "").strip().lower()
    # In a pod the sidecar is in another container: it has no way to send a signal.
    if _pid == os.getpid() or not directory or asked in ("off", "0", "false", "no") or _ring.is_shared():
        return
    # One that was inherited by a fork answers to our signal already.
    number = int(_path.rpartition("-")[2]) if _path else _free(asked)
    _pid = os.getpid()
    if number is None:
        return
    folder = os.path.join(directory, FOLDER)
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        pass
    path = os.path.join(folder, "%d-%s-%d" % (_pid, _start_time(), number))
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    temporary = os.path.join(folder, "." + os.path.basename(path))
    file = os.open(temporary, flags, 0o600)
    try:
        faulthandler.register(number, file=file, all_threads=True, chain=False)
        os.rename(temporary, path)  # from here on we are asked
    except BaseException:
        os.unlink(temporary)
        os.close(file)
        raise
    if _path is None:
        _yield_to_others(number)
    _path, _file = path, file


def _free(asked):
    """The number of a signal that nobody has taken; None: there is none."""
    caught, ignored = _dispositions()
    numbers = [int(asked)] if asked.isdigit() else SIGNALS
    for number in numbers:
        is_taken = (caught | ignored) >> (number - 1) & 1
        if signal.SIGRTMIN <= number <= signal.SIGRTMAX and not is_taken:
            return number
    return None


def _dispositions():
    """Signals that are caught and ignored, whoever asked for it, as bits."""
    with open("/proc/self/status") as status:
        fields = dict(line.split(":", 1) for line in status if line.startswith("Sig"))
    return int(fields["SigCgt"], 16), int(fields["SigIgn"], 16)


def _start_time():
    """Of this process, clock ticks since the machine started: with the process id, this process and no later one."""
    with open("/proc/self/stat") as stat:
        return stat.read().rpartition(")")[2].split()[19]


def _yield_to_others(number):
    """The program may set a handler of its own for our signal: then it is never sent again."""
    handle = signal.signal

    @functools.wraps(handle)
    def wrapper(signalnum, handler):
        if signalnum == number:
            forget()
        return handle(signalnum, handler)

    signal.signal = wrapper


def forget():
    """Not asked any more."""
    path = _path
    if path is not None and _pid == os.getpid():
        try:
            os.unlink(path)
        except OSError:
            pass
