"""The same messages over plain TCP: one thread with epoll that gives back a few bytes for each message, neither sealed nor
understood nor kept. What the system itself costs, and so the least that any aggregator could.

Both ends are Python: the server's CPU is told, the clients' is not.
"""

import multiprocessing
import os
import resource
import selectors
import socket
import time

ANSWER = b"\0" * 32


def serve(listener, pipe, nodes, size):
    selector = selectors.DefaultSelector()
    waiting = {}
    listener.setblocking(True)
    for _ in range(nodes):
        connection, _ = listener.accept()
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        selector.register(connection, selectors.EVENT_READ)
        waiting[connection] = 0
    pipe.send("ready")
    began = time.process_time()
    alive = nodes
    while alive:
        for key, _ in selector.select():
            connection = key.fileobj
            try:
                data = connection.recv(65536)
            except ConnectionResetError:
                data = b""
            if not data:
                selector.unregister(connection)
                connection.close()
                alive -= 1
                continue
            waiting[connection] += len(data)
            while waiting[connection] >= size:
                waiting[connection] -= size
                connection.send(ANSWER)
    pipe.send(time.process_time() - began)


def measure(nodes, size, seconds):
    """Each node sends `size` bytes once a second, spread over it as sidecars are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    here, there = multiprocessing.Pipe()
    server = multiprocessing.Process(target=serve, args=(listener, there, nodes, size))
    server.start()
    connections = [socket.create_connection(listener.getsockname()) for _ in range(nodes)]
    here.recv()
    message = os.urandom(size)
    took, selector, sent = [], selectors.DefaultSelector(), {}
    for connection in connections:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        selector.register(connection, selectors.EVENT_READ)
    began = time.monotonic()
    for turn in range(nodes * seconds):
        due = began + turn / nodes
        while True:
            for key, _ in selector.select(max(0, due - time.monotonic())):
                key.fileobj.recv(4096)
                took.append(time.monotonic() - sent.pop(key.fileobj, time.monotonic()))
            if time.monotonic() >= due:
                break
        connection = connections[turn % nodes]
        sent[connection] = time.monotonic()
        connection.send(message)
    span = time.monotonic() - began
    for connection in connections:
        connection.close()
    cpu = here.recv()
    server.join()
    took.sort()
    return {"cpu": cpu / span, "p50_ms": took[len(took) // 2] * 1e3, "p99_ms": took[int(len(took) * 0.99)] * 1e3}


if __name__ == "__main__":
    print(measure(256, 700, 5))
