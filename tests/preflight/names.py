#!/usr/bin/env python3
"""A name server for a test:

    names.py ADDRESS NAME=IP,IP...

responds on port 53 like a cluster's DNS for a headless service: each name has an address per ready pod. One pod becomes
ready each second, and the order is random.
"""

import random
import socket
import sys
import time


def question(message):
    """The requested name, its type, and where the question ends."""
    at, labels = 12, []
    while message[at]:
        labels.append(message[at + 1 : at + 1 + message[at]].decode().lower())
        at += 1 + message[at]
    return ".".join(labels), int.from_bytes(message[at + 1 : at + 3], "big"), at + 5


def answer(message, zone, ready):
    name, kind, end = question(message)
    addresses = zone.get(name, [])[:ready] if kind == 1 else []
    random.shuffle(addresses)
    code = 0 if name in zone else 3
    head = message[:2] + bytes([0x81, 0x80 | code, 0, 1, 0, len(addresses), 0, 0, 0, 0])
    # A compressed name, type A, class IN, TTL 0.
    records = (b"\xc0\x0c\0\1\0\1\0\0\0\0\0\4" + socket.inet_aton(address) for address in addresses)
    return head + message[12:end] + b"".join(records)


def main():
    zone = {name: ips.split(",") for name, ips in (word.split("=") for word in sys.argv[2:])}
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind((sys.argv[1], 53))
    print("ready", flush=True)
    began = time.monotonic()
    while True:
        message, peer = server.recvfrom(512)
        try:
            server.sendto(answer(message, zone, 1 + int(time.monotonic() - began)), peer)
        except (IndexError, UnicodeDecodeError):
            pass  # A malformed request.


if __name__ == "__main__":
    main()
