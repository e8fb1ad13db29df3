#!/usr/bin/env python3
"""Tests the notifications of deploy/prometheus's example: Debian's Alertmanager with its routes and inhibition gets
alerts like those of an aggregator and of a Prometheus by its API, and a webhook replaces each receiver.

First every finding at once, critical and warning, in two jobs and on two nodes: nothing critical may be silenced, and
of the warnings only those in the table below. Then eight throttled GPUs and their slow node: its page must arrive
within seconds. The previous rules, which silenced that page, must fail this test: otherwise it proves nothing.

    tests/prometheus/inhibition.py     takes Debian's prometheus-alertmanager
"""

import datetime
import http.server
import json
import os
import re
import tempfile
import time
import urllib.request

from world import DEPLOY, World, until

HARD = ("gpu-lost", "gpu-fault", "ecc-uncorrectable")
# Warnings that are silenced by critical findings; True: only on the same node.
SILENT = {
    **{target: {(source, True) for source in HARD} for target in ("slow-link", "pcie-degraded", "nvlink-errors")},
    **{target: {(source, True) for source in (*HARD, "telemetry-blind")} for target in ("straggler", "straggler-node")},
    "rank-silent": {("telemetry-blind", True)},
    "gpu-throttled": {("straggler-node", True), ("all-ranks-slow", False)},
}
# Findings without a node.
OF_JOB = ("all-ranks-slow", "job-hang", "expert-imbalance", "data-loading")
TICKETS = ("expert-imbalance", "data-loading")
FINDINGS = sorted({*SILENT, *HARD, *OF_JOB, "telemetry-blind", "results-suspect", "network-port"})
PAGED_WITHIN_S = 6
# The team's notifications wait for ten seconds.
TOLD_AFTER_S = 12

# The example's previous rules.
BEFORE = """
  - source_matchers: [finding=~"gpu-lost|gpu-fault|ecc-uncorrectable|gpu-throttled|pcie-degraded|nvlink-errors", node!=""]
    target_matchers: [finding=~"straggler|straggler-node|slow-link"]
    equal: [paceline_job, instance, node]
  - source_matchers: [finding="telemetry-blind", node!=""]
    target_matchers: [finding=~"straggler|straggler-node|rank-silent"]
    equal: [paceline_job, instance, node]
"""


class Alertmanager:
    """An Alertmanager with these inhibition rules (`None`: the example's own), and what its receivers got."""

    def __init__(self, folder, rules=None):
        os.mkdir(folder)
        self.world, self.got = World(folder), []
        got = self.got

        class Receiver(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                got.extend((time.monotonic(), message["receiver"], alert["labels"]) for alert in message["alerts"]
                           if alert["status"] == "firing")
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_):
                pass

        def changed(text):
            return text if rules is None else re.sub(r"(?<=\ninhibit_rules:\n).*(?=\nreceivers:)", lambda _: rules, text, flags=re.S)

        self.world.receive(Receiver, changed)

    def ask(self, path, body=None):
        request = urllib.request.Request(f"http://127.0.0.1:{self.world.alertmanager}/api/v2/{path}",
                                         body and json.dumps(body).encode(), {"Content-Type": "application/json"})
        answer = urllib.request.urlopen(request, timeout=10).read()
        return json.loads(answer) if answer else None

    def told(self, *labels):
        """Sends alerts that hold now, like an aggregator or a Prometheus."""
        ends = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(minutes=5)
        self.ask("alerts", [{"labels": alert, "annotations": {"summary": "s"}, "endsAt": ends.isoformat()} for alert in labels])

    def first(self, receiver, since, **labels):
        """Seconds until a receiver got an alert with these labels."""
        times = [at - since for at, whose, got in list(self.got) if whose == receiver and labels.items() <= got.items()]
        return min(times, default=None)


def alert(finding, severity, way, job, node="n1", subject=""):
    name = "Paceline" + finding.title().replace("-", "")
    labels = {"alertname": name, "finding": finding, "severity": severity, "urgency": "ticket" if finding in TICKETS else "page",
              "job": "paceline"}
    if way == "scraped":
        return {**labels, "instance": job}
    labels |= {"paceline_job": job, "subject": subject or finding}
    return labels if finding in OF_JOB else {**labels, "node": node}


def is_silent(of, others):
    """Whether a warning is silenced by other alerts, according to the table."""
    for source, is_by_node in SILENT.get(of["finding"], ()):
        for other in others:
            same_job = all(of.get(label) == other.get(label) for label in ("paceline_job", "instance"))
            # Alerts from Prometheus have no node.
            same_node = not is_by_node or (of.get("node") is not None and of.get("node") == other.get("node"))
            if other["finding"] == source and other["severity"] == "critical" and same_job and same_node:
                return of["severity"] == "warning"
    return False


def all_at_once(manager):
    """Every finding on both paths; in job b and on node n2 there are only warnings."""
    said = []
    for way in ("pushed", "scraped"):
        for finding in FINDINGS:
            said += [alert(finding, severity, way, "a") for severity in ("warning", "critical")]
            said.append(alert(finding, "warning", way, "b"))
            if way == "pushed":
                said.append(alert(finding, "warning", way, "a", node="n2", subject="another"))
    manager.told(*said)

    def ours():
        return [one for one in manager.ask("alerts") if {"a", "b"} & {one["labels"].get("paceline_job"), one["labels"].get("instance")}]

    known = until("all alerts", lambda: len(found := ours()) == len(said) and found, 20)
    silent = 0
    for one in known:
        labels, by = one["labels"], one["status"]["inhibitedBy"]
        assert not (by and labels["severity"] == "critical"), f"a page is silenced: {labels}"
        assert bool(by) == is_silent(labels, said), f"{'silent' if by else 'not silent'}: {labels}"
        silent += bool(by)
    # Each entry of the table, plus gpu-throttled on n2 and from Prometheus.
    assert silent == len(SILENT) + 2, silent
    return len(said), silent


def node_and_its_gpus(manager, job):
    """Eight warnings, then the page: returns its latency, or None if it is late."""
    manager.told(*(alert("gpu-throttled", "warning", "pushed", job, subject=f"gpu {gpu} on n1") for gpu in range(8)),
                 alert("gpu-throttled", "warning", "pushed", job, node="n9"))
    time.sleep(1)
    since = time.monotonic()
    manager.told(alert("straggler-node", "critical", "pushed", job))
    try:
        until("the page", lambda: manager.first("on-call", since, finding="straggler-node", paceline_job=job), PAGED_WITHIN_S)
    except AssertionError:
        return None
    return manager.first("on-call", since, finding="straggler-node", paceline_job=job)


def main():
    with tempfile.TemporaryDirectory(prefix="paceline-inhibition-") as folder:
        made = [Alertmanager(os.path.join(folder, "now")), Alertmanager(os.path.join(folder, "before"), BEFORE)]
        now, before = made
        try:
            assert node_and_its_gpus(before, "c") is None, "the rules of before do not silence the page: this test proves nothing"
            since = time.monotonic()
            paged = node_and_its_gpus(now, "c")
            assert paged is not None, f"the page about the node did not arrive in {PAGED_WITHIN_S} s"
            counted, silent = all_at_once(now)
            until("what the team is told", lambda: now.first("team", since, finding="gpu-throttled", node="n9"), TOLD_AFTER_S + 10)
            until("a ticket", lambda: now.first("tickets", since, finding="expert-imbalance", paceline_job="b"))
            time.sleep(max(0, since + TOLD_AFTER_S - time.monotonic()))
            assert now.first("team", since, finding="gpu-throttled", node="n1", paceline_job="c") is None, "symptoms are told beside their cause"
            # Not even where another version is critical.
            tickets = {whose for _, whose, labels in now.got if labels["urgency"] == "ticket"}
            assert tickets == {"tickets"}, tickets
            pages = {labels["severity"] for _, whose, labels in now.got if whose == "on-call"}
            assert pages == {"critical"}, pages
        finally:
            for manager in made:
                manager.world.end()
    print(f"a node and its eight hot GPUs: paged after {paged:.1f} s, and nothing of the GPUs; with the rules of before, never. Of {counted} "
          f"alerts of {len(FINDINGS)} findings {silent} are silent, none of them critical; tickets page nobody")


if __name__ == "__main__":
    main()
