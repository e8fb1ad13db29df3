"""Writes small files beside the rings. Each is complete when it appears."""

import json
import os
import time

from . import _ring

_left = 0


def leave(directory, folder, said):
    """Write `said` as JSON to a new file in `folder` of the ring directory; return its path. Raises OSError."""
    global _left
    folder = os.path.join(directory, folder)
    try:
        os.mkdir(folder, 0o700)  # no parents: a removed ring directory is not recreated
        if _ring.is_shared():
            os.chmod(folder, 0o777)
    except FileExistsError:
        pass
    _left += 1
    name = "%d-%d" % (os.getpid(), _left)
    if _ring.is_shared():  # containers of a pod have the same process ids
        name += "-%x" % time.monotonic_ns()
    temporary = os.path.join(folder, "." + name)
    with open(temporary, "w") as file:
        json.dump(said, file)
        if _ring.is_shared():
            os.fchmod(file.fileno(), 0o644)
    path = os.path.join(folder, name)
    os.rename(temporary, path)
    return path
