"""The aggregator's messages over plain TCP, and over libzmq (a ROUTER and DEALERs; pyzmq, skipped if not installed):
one thread that responds to each message with a few bytes, without encryption, parsing or storage. This is the cost of
the system itself, and so the minimum for any aggregator.

Both ends are Python: the server's CPU is reported, the clients' is not.
"""

import multiprocessing
import os
import resource
import selectors
import socket
import time

try:
    import zmq
except ImportError:
    zmq = None

ANSWER = b"\0" * 32


def has_libzmq():
    return zmq is not None


def all_descriptors():
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def told(cpu_s, span_s, took):
    took.sort()
    return {"cpu": cpu_s / span_s, "p50_ms": took[len(took) // 2] * 1e3, "p99_ms": took[int(len(took) * 0.99)] * 1e3}


def pace(nodes, seconds, wait, send):
    """Each node sends once per second, evenly spread like sidecars: calls `wait` until the next send, then `send`."""
    began = time.monotonic()
    for turn in range(nodes * seconds):
        due = began + turn / nodes
        while True:
            wait(max(0, due - time.monotonic()))
            if time.monotonic() >= due:
                break
        send(turn % nodes)
    span = time.monotonic() - began
    wait(0.5)
    return span


def serve_tcp(listener, pipe, nodes, size):
    selector = selectors.DefaultSelector()
    waiting = {}
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


def tcp(nodes, size, seconds):
    all_descriptors()
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    here, there = multiprocessing.Pipe()
    server = multiprocessing.Process(target=serve_tcp, args=(listener, there, nodes, size))
    server.start()
    connections = [socket.create_connection(listener.getsockname()) for _ in range(nodes)]
    here.recv()
    message = os.urandom(size)
    took, selector, sent = [], selectors.DefaultSelector(), {}
    for connection in connections:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        selector.register(connection, selectors.EVENT_READ)

    def wait(seconds):
        for key, _ in selector.select(seconds):
            key.fileobj.recv(4096)
            if key.fileobj in sent:
                took.append(time.monotonic() - sent.pop(key.fileobj))

    def send(node):
        sent[connections[node]] = time.monotonic()
        connections[node].send(message)

    span = pace(nodes, seconds, wait, send)
    for connection in connections:
        connection.close()
    cpu = here.recv()
    server.join()
    return told(cpu, span, took)


def serve_zmq(pipe):
    context = zmq.Context()
    context.max_sockets = 16
    router = context.socket(zmq.ROUTER)
    router.set(zmq.BACKLOG, 4096)
    router.set(zmq.SNDHWM, 0)
    pipe.send(router.bind_to_random_port("tcp://127.0.0.1"))
    began = time.process_time()
    while True:
        peer, body = router.recv_multipart()
        if body == b"end":
            break
        if body == b"begin":
            began = time.process_time()
        router.send_multipart([peer, ANSWER])
    pipe.send(time.process_time() - began)


def libzmq(nodes, size, seconds):
    """Returns `None` without pyzmq. The server's CPU is that of its thread and libzmq's own."""
    if zmq is None:
        return None
    all_descriptors()
    here, there = multiprocessing.Pipe()
    server = multiprocessing.Process(target=serve_zmq, args=(there,))
    server.start()
    port = here.recv()
    context = zmq.Context()
    context.max_sockets = nodes + 16
    dealers = []
    took, sent = [], {}
    for number in range(nodes):
        dealer = context.socket(zmq.DEALER)
        dealer.linger = 0
        dealer.connect(f"tcp://127.0.0.1:{port}")
        dealer.send(b"begin")
        dealers.append(dealer)
    for dealer in dealers:
        dealer.recv()
    selector = selectors.DefaultSelector()
    for number, dealer in enumerate(dealers):
        selector.register(dealer.fileno(), selectors.EVENT_READ, number)
    message = os.urandom(size)

    def drain(number):
        # The descriptor signals a change only once, so the socket is drained completely, also after sending.
        while dealers[number].getsockopt(zmq.EVENTS) & zmq.POLLIN:
            dealers[number].recv()
            if number in sent:
                took.append(time.monotonic() - sent.pop(number))

    def wait(seconds):
        for key, _ in selector.select(seconds):
            drain(key.data)

    def send(number):
        sent[number] = time.monotonic()
        dealers[number].send(message)
        drain(number)

    span = pace(nodes, seconds, wait, send)
    dealers[0].send(b"end")
    cpu = here.recv()
    server.join()
    context.destroy(linger=0)
    return told(cpu, span, took)


if __name__ == "__main__":
    print("plain TCP", tcp(256, 450, 5))
    print("libzmq", libzmq(256, 450, 5) if zmq else "left out: pyzmq is not installed")
