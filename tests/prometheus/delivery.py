#!/usr/bin/env python3
"""From a fault to somebody's telephone, on real programs: a simulated job of 512 ranks, one of them slow, at a real aggregator; faults
of GPUs in the log of its kernel; Debian's Prometheus, which scrapes it and has the rules of deploy/prometheus; Debian's Alertmanager,
with the grouping of deploy/prometheus, told by both; and a webhook that writes down what arrives when. Prints how long a hard fault
took by either way, and fails where one never arrives, where more than the faulty is told of, or where the end is not told.

    tests/prometheus/delivery.py [--faults 5]      PACELINE: the binary
"""

import argparse
import http.server
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
DEPLOY = os.path.join(HERE, "../../deploy/prometheus")
PACELINE = os.path.abspath(os.environ.get("PACELINE", "target/debug/paceline-under-test"))
PATIENCE = 120
SCRAPE_S = 5
# Steps in a second, and from which on one rank is slow.
SPEED, SLOW_FROM = 4, 32


class Telephone(http.server.BaseHTTPRequestHandler):
    """Takes what Alertmanager sends, with the time."""

    rang = []

    def do_POST(self):
        now = time.monotonic()
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        Telephone.rang.append((now, message))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        pass


def alerts():
    """All that was told: when, in which message, whether it is over, and its labels."""
    for number, (when, message) in enumerate(list(Telephone.rang)):
        for alert in message["alerts"]:
            yield when, number, alert["status"], alert["labels"]


def port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def until(what, holds, patience=PATIENCE):
    give_up = time.monotonic() + patience
    while not (found := holds()):
        assert time.monotonic() < give_up, f"{what}: not in {patience} s; told: {[a[2:] for a in alerts()]}"
        time.sleep(0.05)
    return found


def answers(url):
    def ask():
        try:
            return urllib.request.urlopen(url, timeout=5).status == 200
        except OSError:
            return False
    return ask


class World:
    """The programs, each with its configuration in a folder of its own."""

    def __init__(self, folder):
        self.folder, self.children = folder, []
        self.page, self.alertmanager, self.prometheus = port(), port(), port()

    def path(self, name):
        return os.path.join(self.folder, name)

    def start(self, *words, **more):
        log = open(self.path(f"log-{len(self.children)}"), "w")
        child = subprocess.Popen(words, stdout=log, stderr=log, cwd=self.folder, **more)
        self.children.append(child)
        return child

    def receive(self):
        """Alertmanager as in the example, but that both receivers are our telephone."""
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Telephone)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        text = open(f"{DEPLOY}/alertmanager.yaml").read()
        hook = f"\n    webhook_configs: [{{url: 'http://127.0.0.1:{server.server_port}/', send_resolved: true}}]"
        text = re.sub(r"(- name: (team|on-call))", r"\1" + hook, text)
        # What is over is to be told within the patience of a test, to the team as well.
        text = text.replace("group_interval: 1m", "group_interval: 5s")
        open(self.path("alertmanager.yaml"), "w").write(text)
        self.start("prometheus-alertmanager", f"--config.file={self.path('alertmanager.yaml')}", f"--storage.path={self.path('am')}",
                   f"--web.listen-address=127.0.0.1:{self.alertmanager}", "--cluster.listen-address=")
        until("Alertmanager", answers(f"http://127.0.0.1:{self.alertmanager}/-/ready"))

    def scrape(self):
        config = {
            "global": {"scrape_interval": f"{SCRAPE_S}s", "evaluation_interval": f"{SCRAPE_S}s"},
            "rule_files": [os.path.abspath(f"{DEPLOY}/paceline.rules.yaml")],
            "alerting": {"alertmanagers": [{"static_configs": [{"targets": [f"127.0.0.1:{self.alertmanager}"]}]}]},
            "scrape_configs": [{"job_name": "paceline", "static_configs": [{"targets": [f"127.0.0.1:{self.page}"]}]}],
        }
        json.dump(config, open(self.path("prometheus.yaml"), "w"))
        self.start("prometheus", f"--config.file={self.path('prometheus.yaml')}", f"--storage.tsdb.path={self.path('tsdb')}",
                   f"--web.listen-address=127.0.0.1:{self.prometheus}")
        until("Prometheus", answers(f"http://127.0.0.1:{self.prometheus}/-/ready"))

    def query(self, words):
        url = f"http://127.0.0.1:{self.prometheus}/api/v1/query?" + urllib.parse.urlencode({"query": words})
        return json.load(urllib.request.urlopen(url, timeout=10))["data"]["result"]

    def watch(self):
        """A node without ranks, whose sidecar is the aggregator; its kernel's log is a file."""
        open(self.path("kmsg"), "w").close()
        with open(self.path("key"), "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as key:
            key.write(os.urandom(32).hex())
        at = f"127.0.0.1:{port()}"
        self.run = self.start(
            PACELINE, "run", "--job", "delivery", "--node", "watch", "--run-dir", self.path("run"), "--aggregator", at,
            "--key-file", self.path("key"), "--http", f"127.0.0.1:{self.page}", "--kmsg", self.path("kmsg"), "--ras", "off",
            "--notify", f"alertmanager=http://127.0.0.1:{self.alertmanager}", "--", "sleep", "100000")
        until("the aggregator", answers(f"http://127.0.0.1:{self.page}/metrics"))
        self.start(PACELINE, "simulate", "--connect", at, "--job", "delivery", "--key-file", self.path("key"), "--ranks", "512",
                   "--steps", "100000", "--speed", str(SPEED), "--fault", f"slow rank=7 factor=1.3 from={SLOW_FROM}")

    def fault(self, gpu):
        line = f"4,{gpu},77000000,-;NVRM: Xid (PCI:0000:{gpu:02x}:00): 119, pid=7, name=a, Timeout of GSP\n"
        with open(self.path("kmsg"), "a") as log:
            log.write(line)
        return time.monotonic()

    def end(self):
        for child in reversed(self.children):
            if child.poll() is None:
                child.send_signal(signal.SIGTERM)
        for child in self.children:
            try:
                child.wait(timeout=20)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def pushed(labels):
    return "paceline_job" in labels


def first(finding, since, by_push):
    """When that was told first after `since`."""
    told = [when for when, _, status, labels in alerts() if status == "firing" and when >= since
            and labels.get("finding") == finding and pushed(labels) == by_push]
    return min(told, default=None)


def play(world, faults):
    world.receive()
    world.watch()
    world.scrape()
    until("Prometheus has the page", lambda: world.query('up{job="paceline"} == 1'))
    began = time.monotonic()
    by_push, by_scrape = [], []
    for gpu in range(1, faults + 1):
        at = world.fault(gpu)
        subject = f"0000:{gpu:02x}:00.0"
        told = until(f"the push of {subject}", lambda: [
            when for when, _, status, labels in alerts() if status == "firing" and subject in labels.get("subject", "")])
        by_push.append(min(told) - at)
        # Prometheus knows how many faults there are, and not of whom: only the first is news to it.
        if gpu == 1:
            by_scrape.append(until("the alert of Prometheus", lambda: first("gpu-fault", at, False)) - at)
    slow = until("the slow rank", lambda: first("straggler", began, True))
    until("the slow rank by Prometheus", lambda: first("straggler", began, False))
    # That the job loses time is told too, once that has gone on for long enough.
    names = {name for *_, labels in alerts() if not (name := labels["alertname"]).startswith("PacelineGoodputBurns")}
    assert names == {"PacelineGpuFault", "PacelineStraggler"}, f"of 512 ranks one is slow, and GPUs of one node are ill: {names}"
    who = {labels["subject"] for *_, labels in alerts() if labels.get("finding") == "straggler" and pushed(labels)}
    assert len(who) == 1 and "rank 7 " in who.pop() + " ", who
    messages = len({number for _, number, status, labels in alerts() if labels.get("finding") == "straggler" and pushed(labels)
                    and status == "firing"})
    world.run.send_signal(signal.SIGTERM)
    until("the end of the slow rank", lambda: any(
        status == "resolved" and labels.get("finding") == "straggler" and pushed(labels) for _, _, status, labels in alerts()))
    by_push.sort()
    print(f"a hard fault, from the kernel's line to the telephone: pushed {by_push[0]:.2f} to {by_push[-1]:.2f} s (of {faults}); by "
          f"Prometheus ({SCRAPE_S} s between scrapes and between evaluations) {by_scrape[0]:.1f} s")
    print(f"a rank of 512 that is 1.3 times as slow from step {SLOW_FROM} on, with {SPEED} steps a second: told "
          f"{slow - began:.0f} s after the job began, in {messages} message(s), and once more when it was over")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--faults", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="paceline-delivery-") as folder:
        world = World(folder)
        try:
            play(world, args.faults)
        except BaseException:
            for number in range(len(world.children)):
                print(f"--- {world.children[number].args[0]}\n{open(world.path(f'log-{number}')).read()[-1500:]}", file=sys.stderr)
            raise
        finally:
            world.end()


if __name__ == "__main__":
    main()
