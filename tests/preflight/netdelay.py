#!/usr/bin/env python3
"""Delays what passes between a node's link and the bridge, for kernels without sch_netem. Runs in the bridge's namespace:

    netdelay.py VETH BRIDGE MILLISECONDS

takes the link off the bridge and carries its frames through a tap, each so much later, in both directions, until it is
told to end (SIGTERM) or its parent is gone.
"""

import collections
import fcntl
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time

TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
PACKET_OUTGOING = 4


def ip(*words):
    subprocess.run(["ip", *words], check=True)


def main():
    veth, bridge, delay = sys.argv[1], sys.argv[2], float(sys.argv[3]) / 1e3
    stop = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    name = ("d" + veth)[:15]
    fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH", name.encode(), IFF_TAP | IFF_NO_PI))
    ip("link", "set", veth, "nomaster")
    ip("link", "set", name, "master", bridge)
    ip("link", "set", name, "up")
    ip("link", "set", veth, "promisc", "on")
    wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    wire.bind((veth, 0))
    wire.setblocking(False)
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
    parent = os.getppid()
    queue = collections.deque()
    print("up", flush=True)
    while not stop and os.getppid() == parent:
        wait = min(0.1, max(0.0, queue[0][0] - time.monotonic())) if queue else 0.1
        for ready in select.select([wire, tap], [], [], wait)[0]:
            for _ in range(64):
                try:
                    if ready is wire:
                        frame, address = wire.recvfrom(65600)
                        if address[2] == PACKET_OUTGOING:
                            continue
                    else:
                        frame = os.read(tap, 65600)
                except BlockingIOError:
                    break
                queue.append((time.monotonic() + delay, ready is wire, frame))
        while queue and queue[0][0] <= time.monotonic():
            _, outward, frame = queue.popleft()
            try:
                os.write(tap, frame) if outward else wire.send(frame)
            except OSError:
                pass  # A full queue drops, as a switch would.
    wire.close()
    os.close(tap)
    ip("link", "set", veth, "master", bridge)


if __name__ == "__main__":
    main()
