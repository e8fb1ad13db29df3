"""Unauthorized peers: their traffic to a job's aggregator, and endpoints with a token. Cases of faults.py, and programs
for them in a separate namespace:

    strangers.py proxy PORT HOST:PORT FILE      forwards connections, and records the data of the first
    strangers.py throw HOST:PORT FILE COUNT     COUNT connections with garbage; replayed, truncated and forged records
"""

import asyncio
import os
import random
import re
import signal
import socket
import stat
import subprocess
import sys
import time

GARBAGE = 10_000


def address(text):
    host, port = text.rsplit(":", 1)
    return host, int(port)


def proxy(port, target, path):
    recording = []

    async def carry(reader, writer, file=None):
        try:
            while data := await reader.read(65536):
                if file:
                    file.write(data)
                    file.flush()
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        writer.close()

    async def come(reader, writer):
        there, back = await asyncio.open_connection(*address(target))
        file = None if recording else open(path, "wb")
        recording.append(1)
        await asyncio.gather(carry(reader, back, file), carry(there, writer))

    async def serve():
        async with await asyncio.start_server(come, "0.0.0.0", int(port)) as server:
            print("up", flush=True)
            await server.serve_forever()

    asyncio.run(serve())


def say(target, words, patience=5):
    """Sends bytes, and reads until the other end closes."""
    heard = b""
    with socket.create_connection(target, timeout=patience) as stream:
        try:
            stream.sendall(words)
            stream.shutdown(socket.SHUT_WR)
            while data := stream.recv(4096):
                heard += data
        except OSError:
            pass
    return heard


def throw(target, path, count):
    target, chance = address(target), random.Random(7)
    for number in range(int(count)):
        with socket.create_connection(target, timeout=10) as stream:
            try:
                stream.sendall(chance.randbytes(chance.choice((0, 1, 55, 56, 57, 64, 300))))
            except OSError:
                pass
    said = open(path, "rb").read()
    first = said[:56]
    assert first[:6] == b"PCSEAL" and len(said) > 200, said[:64]
    answers = []
    for again in (said, said[:-1], said[:150], said + said, first + b"\xff\xff" + b"x" * 65535, first + said[56:][::-1]):
        answers.append(say(target, again))
    for _ in range(200):
        at = chance.randrange(len(said))
        forged = bytearray(said)
        forged[at] ^= 1 << chance.randrange(8)
        answers.append(say(target, bytes(forged)))
    # No response may be longer than the answer to a greeting.
    longest = max(map(len, answers))
    assert longest <= 56, longest


def rss(pid):
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("VmRSS"))


def page(net, node):
    """Returns the metrics page of a node's aggregator."""
    at = open(f"{node.run_dir}/metrics.addr").read().strip()
    at = at if at.startswith("http") else f"http://{at}/metrics"
    return net.inside(net.space(node.i), "curl", "-s", "--max-time", "20", at)


def refused(net, node):
    lines = [line for line in page(net, node).splitlines() if line.startswith("paceline_connections_refused_total{")]
    return {line.split('"')[1]: int(float(line.split()[-1])) for line in lines}


def strangers(net):
    """Connects ten thousand times with garbage, replayed, truncated and forged records, and once as a peer with another
    key. None may be accepted, each must be counted under its reason, memory must not grow, and the job's nodes must be
    served all the time."""
    from job import HERE, PACELINE, Journal, Node, run, until
    from faults import arrived, ended, faults_of, started

    # The third node is a proxy between the second and the aggregator, and records the traffic.
    tape = f"{net.work}/tape"
    here = ["ip", "netns", "exec", net.space(3), sys.executable, f"{HERE}/strangers.py"]
    between = subprocess.Popen([*here, "proxy", "4711", "10.77.0.1:4711", tape], stdout=subprocess.PIPE)
    try:
        assert between.stdout.readline() == b"up\n"
        nodes = [Node(net, 1, "strangers", ["0:2:0"], "n1:4711"), Node(net, 2, "strangers", ["1:2:0"], "n3:4711")]
        journal = Journal(nodes[0].run_dir)
        started(journal, nodes)
        aggregator = nodes[0].sidecar()
        before, found = rss(aggregator), faults_of(nodes, 0x71)
        began = time.monotonic()
        run(*here, "throw", "10.77.0.1:4711", tape, str(GARBAGE), timeout=120)
        took = time.monotonic() - began
        home = f"{net.work}/other"
        os.makedirs(home)
        other = subprocess.Popen(
            ["ip", "netns", "exec", net.space(3), PACELINE, "sidecar", "--job", "strangers", "--node", "n3", "--run-dir",
             f"{home}/run", "--aggregator", "n1:4711"],
            env={**os.environ, "HOME": home, "TMPDIR": net.work}, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until("another key", lambda: refused(net, nodes[0])["key"] > 0)
        other.kill()
        other.wait()
        arrived("among strangers", journal, nodes, found)
        counts, grown = refused(net, nodes[0]), rss(aggregator) - before
        assert sum(counts.values()) >= GARBAGE and counts["damaged"] >= 3 and counts["foreign"] > 1000, counts
        assert grown < 48 << 20, f"{grown >> 20} MiB more"
        print(f"     strangers: {GARBAGE} connections in {took:.1f} s, {grown >> 20} MiB more memory, {counts}", flush=True)
        ended(journal, nodes)
    finally:
        between.kill()
        between.wait()


class Sidecar:
    """An aggregator, or a node that connects to it."""

    def __init__(self, net, i, name, *more, home=None, aggregator="n1:4711"):
        from job import PACELINE

        self.dir, self.net, self.i = f"{net.work}/{name}", net, i
        os.makedirs(self.dir, exist_ok=True)
        self.run_dir = f"{self.dir}/run"
        words = ["ip", "netns", "exec", net.space(i), PACELINE, "sidecar", "--job", "doors", "--node", name, "--run-dir",
                 self.run_dir, "--aggregator", aggregator, *more]
        self.log = open(f"{self.dir}/log", "a+")
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True,
                                        env={**os.environ, "HOME": home or net.work, "TMPDIR": net.work})

    def ready(self):
        for line in self.process.stdout:
            if "ready" in line:
                return line
        return ""

    def said(self):
        self.log.seek(0)
        return self.log.read()

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.communicate(timeout=60)


def fetch(net, i, url, *more):
    """Returns the status code that curl gets on a node, or 000 without a response."""
    words = ["ip", "netns", "exec", net.space(i), "curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "--max-time", "20", *more, url]
    return subprocess.run(words, capture_output=True, text=True).stdout


def doors(net):
    """The page must be served only on a named interface, over TLS and with the token. Files that others can read must
    be rejected. A new key applies to the next job and not to the running one. Sockets must belong to their owner."""
    from job import run, until

    cert, key, token = (f"{net.work}/{name}" for name in ("cert", "tls", "token"))
    run("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", key, "-out",
        cert, "-days", "2", "-subj", "/CN=n1", "-addext", "subjectAltName=DNS:n1")
    with open(token, "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
        file.write("0123456789abcdef" * 4 + "\n")
    door = ("--http-cert", cert, "--http-key", key, "--http-token-file", token)
    os.chmod(token, 0o644)
    open_token = Sidecar(net, 1, "open", "--http", "eth0:9810", *door)
    assert open_token.process.wait(60) != 0 and "token" in open_token.said(), open_token.said()
    os.chmod(token, 0o600)
    first = Sidecar(net, 1, "first", "--http", "eth0:9810", *door)
    assert "4711" in first.ready()
    says = "Authorization: Bearer " + "0123456789abcdef" * 4
    url, trust = "https://n1:9810/metrics", ("--cacert", cert)
    assert fetch(net, 2, url, *trust, "-H", says) == "200"
    assert fetch(net, 2, url, *trust) == "401"
    assert fetch(net, 2, url, *trust, "-H", says[:-1] + "e") == "401"
    assert fetch(net, 2, "http://n1:9810/metrics", "-H", says) == "000"
    assert fetch(net, 1, "https://localhost:9810/metrics", "-k", "-H", says) == "000", "another interface"
    mode = os.stat(f"{first.run_dir}/control.sock").st_mode
    assert stat.S_IMODE(mode) == 0o600, oct(mode)
    everywhere = Sidecar(net, 2, "everywhere", "--http", "0.0.0.0:9811", aggregator="n2:4712")
    everywhere.ready()
    assert fetch(net, 1, "http://n2:9811/metrics") == "000" and fetch(net, 2, "http://localhost:9811/metrics") == "200"
    everywhere.end()
    # The key is replaced while the job runs.
    keys = f"{net.work}/.config/paceline"
    old = f"{net.work}/old"
    os.rename(f"{keys}/key", old)
    with open(f"{keys}/key", "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
        file.write("f" * 64)
    holder = Sidecar(net, 2, "holder", "--key-file", old)
    assert "10.77.0.1:4711" in holder.ready(), "the running job keeps its key"
    newer = Sidecar(net, 2, "newer")
    is_refused = 'refused_total{reason="key"} [1-9]'
    until("the new key refused", lambda: re.search(is_refused, net.inside(net.space(2), "curl", "-s", *trust, "-H", says, url)))
    for sidecar in (newer, holder, first):
        sidecar.end()
    second = Sidecar(net, 1, "second", "--http", "127.0.0.1:9812")
    assert "4711" in second.ready()
    joins, late = Sidecar(net, 2, "joins"), Sidecar(net, 2, "late", "--key-file", old)
    assert "10.77.0.1:4711" in joins.ready(), "the new key serves"
    page = ("curl", "-s", "http://127.0.0.1:9812/metrics")
    until("the old key refused", lambda: re.search(is_refused, net.inside(net.space(1), *page)))
    for sidecar in (late, joins, second):
        sidecar.end()


if __name__ == "__main__":
    {"proxy": proxy, "throw": throw}[sys.argv[1]](*sys.argv[2:])
