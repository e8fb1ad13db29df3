#!/usr/bin/env python3
"""From a fault to somebody's telephone, on real programs: a simulated job of 512 ranks, one of them slow, at a real aggregator; faults
of GPUs in the log of its kernel; Debian's Prometheus, which scrapes it and has the rules of deploy/prometheus; Debian's Alertmanager,
with the grouping of deploy/prometheus, told by both; and a webhook that writes down what arrives when. Prints how long a hard fault
took by either way, and fails where one never arrives, where anybody else is accused, or where the end is not told. That a node cannot be
seen accuses nobody: where this machine had no time for a simulated node it is true.

    tests/prometheus/delivery.py [--faults 5]      PACELINE: the binary
"""

import argparse
import http.server
import json
import signal
import time

from world import SCRAPE_S, played, until

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


def pushed(labels):
    return "paceline_job" in labels


def first(finding, since, by_push):
    """When that was told first after `since`."""
    told = [when for when, _, status, labels in alerts() if status == "firing" and when >= since
            and labels.get("finding") == finding and pushed(labels) == by_push]
    return min(told, default=None)


def links(finding):
    """Whether its alerts were pushed, and what they link to."""
    return {(pushed(alert["labels"]), alert["annotations"]["dashboard_url"], alert["annotations"]["runbook_url"])
            for _, message in list(Telephone.rang) for alert in message["alerts"] if alert["labels"].get("finding") == finding}


def only_the_faulty(faults):
    """Of 512 ranks one is slow, and GPUs of one node are ill: nobody else is accused, by neither way."""
    # That the job loses time is told too, once that has gone on for long enough.
    accused = {name for *_, labels in alerts()
               if not (name := labels["alertname"]).startswith("PacelineGoodputBurns") and name != "PacelineTelemetryBlind"}
    assert accused == {"PacelineGpuFault", "PacelineStraggler"}, accused
    slow, ill = ({labels["subject"] for *_, labels in alerts() if labels.get("finding") == finding and pushed(labels)}
                 for finding in ("straggler", "gpu-fault"))
    assert len(slow) == 1 and "rank 7 " in min(slow) + " ", slow
    assert len(ill) == faults and all(any(f"0000:{gpu:02x}:00.0" in who for who in ill) for gpu in range(1, faults + 1)), ill


def play(world, faults):
    world.receive(Telephone)
    began = time.monotonic()
    world.watch("--ranks", "512", "--speed", str(SPEED), "--fault", f"slow rank=7 factor=1.3 from={SLOW_FROM}")
    world.scrape()
    until("Prometheus has the page", lambda: world.query('up{job="paceline"} == 1'))
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
    only_the_faulty(faults)
    there = ("/d/paceline-run?var-job=delivery", "https://github.com/paceline/paceline/blob/main/docs/findings.md#gpu-fault")
    assert links("gpu-fault") == {(by_push, *there) for by_push in (True, False)}, links("gpu-fault")
    messages = len({number for _, number, status, labels in alerts() if labels.get("finding") == "straggler" and pushed(labels)
                    and status == "firing"})
    world.run.send_signal(signal.SIGTERM)
    until("the end of the slow rank", lambda: any(
        status == "resolved" and labels.get("finding") == "straggler" and pushed(labels) for _, _, status, labels in alerts()))
    by_push.sort()
    print(f"a hard fault, from the kernel's line to the telephone: pushed {by_push[0]:.2f} to {by_push[-1]:.2f} s (of {faults}); by "
          f"Prometheus ({SCRAPE_S} s between scrapes and between evaluations) {by_scrape[0]:.1f} s")
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
