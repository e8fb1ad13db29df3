#!/usr/bin/env python3
"""From a fault to somebody's telephone, on real programs: a simulated job of 512 ranks, one of them slow, at a real aggregator; faults
of GPUs in the log of its kernel; Debian's Prometheus, which scrapes it and has the rules of deploy/prometheus; Debian's
Alertmanager, with the grouping of deploy/prometheus, which receives alerts from both; and a webhook that records
messages and their times. Prints the latency of a hard fault on both paths. Fails if an alert never arrives, if it does
not name rank and node, if a node whose GPUs fail together causes a message for each, if there is an alert about a
healthy rank or node, or if the end is not sent. TelemetryBlind alerts are allowed: they are true if this machine had no
time for a simulated node.

    tests/prometheus/delivery.py [--faults 5]      PACELINE: the binary
"""

import argparse
import http.server
import json
import signal
import time

from world import SCRAPE_S, played, until

# Steps per second, and the step at which a rank becomes slow.
SPEED, SLOW_FROM = 4, 32


class Telephone(http.server.BaseHTTPRequestHandler):
    """Records Alertmanager's messages with their times."""

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
    """All received alerts: time, message number, status, and labels."""
    for number, (when, message) in enumerate(list(Telephone.rang)):
        for alert in message["alerts"]:
            yield when, number, alert["status"], alert["labels"]


def pushed(labels):
    return "paceline_job" in labels


def first(finding, since, by_push):
    """When the first alert about this finding arrived after `since`."""
    told = [when for when, _, status, labels in alerts() if status == "firing" and when >= since
            and labels.get("finding") == finding and pushed(labels) == by_push]
    return min(told, default=None)


def says(finding, by_push, *words):
    """Whether an alert has all of these words, in its summary and in its description."""
    return any(all(word in alert["annotations"][text] for word in words for text in ("summary", "description"))
               for _, message in list(Telephone.rang) for alert in message["alerts"]
               if alert["labels"].get("finding") == finding and pushed(alert["labels"]) == by_push)


def links(finding):
    """Whether its alerts were pushed, and their links."""
    return {(pushed(alert["labels"]), alert["annotations"]["dashboard_url"], alert["annotations"]["runbook_url"])
            for _, message in list(Telephone.rang) for alert in message["alerts"] if alert["labels"].get("finding") == finding}


def only_the_faulty(faults):
    """Of 512 ranks one is slow, and GPUs of one node have faults: no other alerts, on either path."""
    # The job's loss of time is an alert too, once it has lasted long enough.
    accused = {name for *_, labels in alerts()
               if not (name := labels["alertname"]).startswith("PacelineGoodputBurns") and name != "PacelineTelemetryBlind"}
    assert accused == {"PacelineGpuFault", "PacelineStraggler"}, accused
    slow, ill = ({labels["subject"] for *_, labels in alerts() if labels.get("finding") == finding and pushed(labels)}
                 for finding in ("straggler", "gpu-fault"))
    assert len(slow) == 1 and "rank 7 " in min(slow) + " ", slow
    # Two GPUs cause an alert each; from the third on there is one for the node.
    assert ill == {"gpu 0000:01:00.0 on watch", "gpu 0000:02:00.0 on watch", "GPUs on watch"}, ill
    assert says("gpu-fault", True, f"{faults} GPUs on watch"), faults


def told_of(subject):
    """When alerts about a subject arrived."""
    return [when for when, _, status, labels in alerts() if status == "firing" and labels.get("subject") == subject]


def play(world, faults):
    world.receive(Telephone)
    began = time.monotonic()
    world.watch("--ranks", "512", "--speed", str(SPEED), "--fault", f"slow rank=7 factor=1.3 from={SLOW_FROM}")
    world.scrape()
    until("Prometheus has the page", lambda: world.query('up{job="paceline"} == 1'))
    by_push, by_scrape = [], []
    for gpu in (1, 2):
        at = world.fault(gpu)
        told = until(f"the push of GPU {gpu}", lambda: told_of(f"gpu 0000:{gpu:02x}:00.0 on watch"))
        by_push.append(min(told) - at)
        # Prometheus has the number of faults without subjects: only the first is a new alert.
        if gpu == 1:
            by_scrape.append(until("the alert of Prometheus", lambda: first("gpu-fault", at, False)) - at)
    at = [world.fault(gpu) for gpu in range(3, faults + 1)][0]
    together = min(until("the push of the node", lambda: told_of("GPUs on watch"))) - at
    slow = until("the slow rank", lambda: first("straggler", began, True))
    until("the slow rank by Prometheus", lambda: first("straggler", began, False))
    for by_push_too in (True, False):
        assert says("straggler", by_push_too, "rank 7 on "), f"the slow rank is not named, pushed: {by_push_too}"
    only_the_faulty(faults)
    there = ("/d/paceline-run?var-job=delivery", "https://github.com/paceline/paceline/blob/main/docs/findings.md#gpu-fault")
    assert links("gpu-fault") == {(by_push, *there) for by_push in (True, False)}, links("gpu-fault")
    messages = len({number for _, number, status, labels in alerts() if labels.get("finding") == "straggler" and pushed(labels)
                    and status == "firing"})
    world.run.send_signal(signal.SIGTERM)
    until("the end of the slow rank", lambda: any(
        status == "resolved" and labels.get("finding") == "straggler" and pushed(labels) for _, _, status, labels in alerts()))
    print(f"a hard fault, from the kernel's line to the telephone: pushed {by_push[0]:.2f} s, one of a second GPU of the node "
          f"{by_push[1]:.2f} s, {faults - 2} more at once {together:.2f} s; by Prometheus ({SCRAPE_S} s between scrapes and between "
          f"evaluations) {by_scrape[0]:.1f} s")
    print(f"a rank of 512 that is 1.3 times as slow from step {SLOW_FROM} on, with {SPEED} steps a second: told "
          f"{slow - began:.0f} s after all was started, in {messages} message(s), and once more when it was over")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--faults", type=int, default=5)
    args = parser.parse_args()
    try:
        played("delivery", lambda world: play(world, args.faults))
    except BaseException:
        print(f"told: {[alert[2:] for alert in alerts()]}")
        raise


if __name__ == "__main__":
    main()
