"""A file system that never answers reads, like a network file system with a dead server: FUSE, in a mount namespace of
the calling thread (Linux, root). The protocol: linux/include/uapi/linux/fuse.h."""

import ctypes
import os
import struct
import tempfile

LOOKUP, FORGET, GETATTR, OPEN, READ, RELEASE, FLUSH, INIT = 1, 2, 3, 14, 15, 18, 25, 26
ROOT, FILE, SIZE = 1, 2, 1 << 20
ENOSYS = 38
CLONE_NEWNS, MS_NOSUID, MS_NODEV, MS_REC, MS_PRIVATE = 0x20000, 2, 4, 0x4000, 1 << 18


def attributes(node):
    mode = 0o040755 if node == ROOT else 0o100644
    return struct.pack("<6Q10I", node, SIZE, SIZE // 512, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


def serve(device):
    """Answers all requests except reads."""
    while True:
        request = os.read(device, 1 << 20)
        _, operation, unique, node = struct.unpack_from("<IIQQ", request)
        if operation in (FORGET, READ):
            continue
        error, answer = 0, b""
        if operation == INIT:
            answer = struct.pack("<4I2H2I2H2I6I", 7, 31, 1 << 16, 0, 16, 12, 1 << 16, 1, 0, 0, 0, 0, *[0] * 6)
        elif operation == LOOKUP:
            answer = struct.pack("<4Q2I", FILE, 0, 60, 60, 0, 0) + attributes(FILE)
        elif operation == GETATTR:
            answer = struct.pack("<Q2I", 60, 0, 0) + attributes(node)
        elif operation == OPEN:
            answer = struct.pack("<Q2I", 1, 0, 0)
        elif operation not in (RELEASE, FLUSH):
            error = -ENOSYS
        os.write(device, struct.pack("<IiQ", 16 + len(answer), error, unique) + answer)


def mounted():
    """The path of a file whose reads never end."""
    libc = ctypes.CDLL(None, use_errno=True)

    def call(name, *arguments):
        if getattr(libc, name)(*arguments) != 0:
            raise OSError(ctypes.get_errno(), name)

    device = os.open("/dev/fuse", os.O_RDWR)
    place = tempfile.mkdtemp()
    call("unshare", CLONE_NEWNS)
    call("mount", b"none", b"/", None, MS_REC | MS_PRIVATE, None)
    options = b"fd=%d,rootmode=40000,user_id=0,group_id=0" % device
    call("mount", b"stalled", place.encode(), b"fuse", MS_NOSUID | MS_NODEV, options)
    if os.fork() == 0:
        try:
            serve(device)
        finally:
            os._exit(1)
    os.close(device)
    return os.path.join(place, "sample")
