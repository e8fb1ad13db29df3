"""The stack of this process's main thread, for a job that hangs: the sidecar asks by a real-time signal, and a handler of
faulthandler's in C answers into a file that was opened in advance. It takes no GIL, and costs a process that is not asked
nothing. Only the thread that handles the signal is walked, the main one: to walk others while they run is not safe
(https://github.com/python/cpython/issues/116008).

The file's name says who answers, to which signal, and by which descriptor: `<process id>-<start time of
/proc/self/stat>-<signal>-<descriptor>`. Children that are forked answer into the same file. A process that has another file
there, or none, is never asked: it has become another program, or has closed what it inherited.

PACELINE_STACKS: `off`, or the number of the signal. A signal that is handled or ignored already is never taken; where the program
takes ours later, the file is closed, and nothing is asked any more.
"""

import _signal
import functools
import os
import signal

FOLDER = "stacks"  # in the ring directory
_OFF, _ON = ("off", "0", "false", "no"), ("", "on", "1", "true", "yes")

_path = None  # of this process's file, or of that of the process it was forked from
_pid = None  # whose it is
_file = -1
_taken = False  # by the program


def watch():
    """Answer from now on. Once in a process; a forked child that is a rank of its own gets a file of its own."""
    try:
        _watch()
    except Exception:  # no stacks then, and the sidecar says so where one is wanted
        pass


def _watch():
    global _path, _pid, _file
    import faulthandler

    from . import _ring

    directory = os.environ.get("PACELINE_RING_DIR")
    asked = os.environ.get("PACELINE_STACKS", "").strip().lower()
    # In a pod the sidecar is in another container: it has no way to send a signal.
    if _pid == os.getpid() or not directory or asked in _OFF or _taken or _ring.is_shared():
        return
    _pid = os.getpid()
    # One that was inherited by a fork answers to our signal already.
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
        os.rename(temporary, path)  # from here on we are asked
    except BaseException:
        os.unlink(temporary)
        os.close(file)
        raise
    if _path is None:
        _yield_to_others(number)
    _path, _file = path, file


def _free(asked):
    """The number of a free signal; None: there is none."""
    caught, ignored = _dispositions()
    last = int(signal.SIGRTMAX)
    numbers = range(last - 3, last - 11, -1) if asked in _ON else [int(asked)]
    for number in numbers:
        is_taken = (caught | ignored) >> (number - 1) & 1
        if signal.SIGRTMIN <= number <= last and not is_taken:
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
    """The program may set a handler of its own for our signal, in this process or a forked one: then it is never sent again."""
    handle = _signal.signal  # what signal.signal calls, however that was imported

    @functools.wraps(handle)
    def wrapper(signalnum, handler):
        if signalnum == number:
            _forget()
        return handle(signalnum, handler)

    _signal.signal = wrapper


def _forget():
    """Not asked any more, nor processes that are forked from now on."""
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
