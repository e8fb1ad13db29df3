#!/usr/bin/env python3
"""From a fault to somebody's telephone, on real programs: a simulated job of 512 ranks, one of them slow, at a real aggregator; faults
of GPUs in the log of its kernel; Debian's Prometheus, which scrapes it and has the rules of deploy/prometheus; Debian's Alertmanager,
with the grouping of deploy/prometheus, told by both; and a webhook that writes down what arrives when. Prints how long a hard fault
took by either way, and fails where one never arrives, where the alert does not name rank and node, where a node whose GPUs fail together
rings for each of them, where anybody else is accused, or where the end is not told. That a node cannot be seen accuses nobody: where
this machine had no time for a simulated node it is true.

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


def says(finding, by_push, *words):
    """Whether an alert names all of these, in its summary and in its description."""
    return any(all(word in alert["annotations"][text] for word in words for text in ("summary", "description"))
               for _, message in list(Telephone.rang) for alert in message["alerts"]
               if alert["labels"].get("finding") == finding and pushed(alert["labels"]) == by_push)


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
    # Two GPUs ring each; of three and more the node does, once.
    assert ill == {"gpu 0000:01:00.0 on watch", "gpu 0000:02:00.0 on watch", "GPUs on watch"}, ill
    assert says("gpu-fault", True, f"{faults} GPUs on watch"), faults


def told_of(subject):
    """When it was told that something holds of a subject."""
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
        # Prometheus knows how many faults there are, and not of whom: only the first is news to it.
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
