#!/usr/bin/env python3
"""Delays, reorders and duplicates frames between a node's link and the bridge, for kernels without sch_netem. Runs in
the bridge's namespace:

    rough.py VETH BRIDGE MILLISECONDS JITTER_MILLISECONDS DOUBLED_PERCENT      (5 0 0: only later)

removes the link from the bridge and carries its frames through a tap, each MILLISECONDS plus a random part of JITTER
later, so that frames overtake each other, in both directions, until SIGTERM or until its parent is gone. Then the link
is attached to the bridge again.
"""

import fcntl
import heapq
import os
import random
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
    veth, bridge = sys.argv[1:3]
    delay, jitter, doubled = (float(word) for word in sys.argv[3:6])
    chance = random.Random(7)
    stop = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    name = ("r" + veth)[:15]
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
    queue, number = [], 0
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
                for _ in range(2 if chance.random() * 100 < doubled else 1):
                    number += 1
                    due = time.monotonic() + (delay + chance.random() * jitter) / 1e3
                    heapq.heappush(queue, (due, number, ready is wire, frame))
        while queue and queue[0][0] <= time.monotonic():
            _, _, inwards, frame = heapq.heappop(queue)
            try:
                os.write(tap, frame) if inwards else wire.send(frame)
            except OSError:
                pass  # The queue is full. The frame is dropped, as networks do.
    ip("link", "set", veth, "promisc", "off")
    ip("link", "set", veth, "master", bridge)


main()
