#!/usr/bin/env python3
"""Months of training: how often each alert of deploy/prometheus fires without a fault, and how long it takes with one.

Consecutive jobs of `paceline simulate`, analyzed by the real detector: slow first steps, undeclared checkpoints and
evaluations, planned restarts, occasional slow steps, lost frames, sidecars without contact for seconds, a job that
continues on one node less; and known faults. Each job's report (when each verdict was raised and cleared, what it lost)
gives the series that its page would have shown. This script alone adds: missing single scrapes, minutes and half hours,
sidecars' CPU, drops, refused connections, preflights. A real Prometheus has these series and the shipped rules.

    tests/prometheus/months.py [--months 1] [--days 30] [--seed 1] [--check]     PACELINE: the binary

For each alert: the number of firings per month (30 days) without a fault; for each fault and each alert that must
report it, the mean and the longest time to the first firing; for any verdict, for those that are not info, and for the
shipped rule. For rules over windows, the first two use only their shortest window. --check: fails if a shipped rule
fires falsely, a fault is not reported within its bound, or a required alert was not tested; without --days, a day and a
third with shorter faults.
"""

import argparse
import os
import random
import re
import shutil
import sys
import tempfile

from lives import DAY, SHORT_S, live
from past import Past, month_begins
from world import PACELINE

BARE = {
    "PacelineGoodputBurnsFast": "paceline:lost_gpu:ratio_rate5m > 14.4 * 0.05",
    "PacelineGoodputBurns": "paceline:lost_gpu:ratio_rate5m > 6 * 0.05",
    "PacelineGoodputDrains": "paceline:lost_gpu:ratio_rate5m > 3 * 0.05",
    "PacelineGoodputBudgetSpent": "paceline:lost_gpu:ratio_rate5m > 0.05",
    "PacelinePreflightRegression": "paceline:preflight_busbw:bytes_per_second / paceline:preflight_busbw:bytes_per_second offset 5d < 0.95",
    "PacelineTelemetryDropped": 'sum without (reason) (rate(paceline_transport_dropped_total{reason!="duplicate"}[1m])) > 1',
    "PacelineStrangersKnock": "sum without (reason) (rate(paceline_connections_refused_total[1m])) > 1",
    "PacelineSidecarCostly": "max without (node) (rate(paceline_sidecar_cpu_seconds_total[1m])) > 0.01",
    # Not shipped: the usual addition to the four.
    "(twice the budget for 15 min)": "avg_over_time(paceline:lost_gpu:ratio_rate5m[15m:1m]) > 2 * 0.05",
}
# How long a fault may last before its alert, in seconds; most of it is the time for a verdict.
BOUND_S = {"PacelineRankSilent": 300, "PacelineJobHang": 300, "PacelineTelemetryBlind": 150, "PacelineGoodputBurnsFast": 4500,
           "PacelineGoodputBurns": 5 * 3600, "PacelineGoodputDrains": DAY, "PacelineGoodputBudgetSpent": 3 * DAY,
           "PacelineTelemetryDropped": 1800, "PacelineStrangersKnock": 1800, "PacelineSidecarCostly": 3600,
           "PacelinePreflightRegression": 300}
BOUND_OTHERS_S = 600
# Alerts that a short check must test: all except budgets over more than an hour.
TRIED = {f"Paceline{name}" for name in (
    "Straggler", "StragglerNode", "SlowLink", "AllRanksSlow", "RankSilent", "JobHang", "TelemetryBlind", "GoodputBurnsFast",
    "PreflightRegression", "TelemetryDropped", "StrangersKnock", "SidecarCostly")}
WAYS = ("any verdict", "that counts", "as shipped")


def ways(rule):
    """The three variants of a rule: (expression, seconds to wait)."""
    name, query = rule["name"], rule["query"]
    if name in BARE:
        return [(BARE[name], 0), (BARE[name], 0), (query, rule["duration"])]
    return [(re.sub(r',\s*severity!="info"', "", query), 0), (query, 0), (query, rule["duration"])]


def score(name, firings, truths):
    """False firings, and for each fault of this alert the seconds to the first correct one (None: never)."""
    right = [truth for truth in truths if name in truth.alerts or name == truth.told_by]
    false = [firing for firing in firings
             if not any(firing[0] <= truth.until + truth.echo_s(name) and firing[1] >= truth.since for truth in right)]
    took = []
    for truth in truths:
        if name == truth.told_by or name in truth.owed:
            heard = [max(0, since - truth.since) for since, until in firings if until >= truth.since and since <= truth.until]
            took.append((truth.what, min(heard, default=None)))
    return false, took


class Alert:
    """The results of an alert by variant: false firings (month, since, until), and (fault, seconds or None)."""

    def __init__(self, name):
        self.name = name
        self.false, self.took = ([], [], []), ([], [], [])

    def is_known(self):
        return any(self.false) or any(self.took)

    def add(self, month, way, scored):
        false, took = scored
        self.false[way].extend((month, *firing) for firing in false)
        self.took[way].extend(took)

    def wrong(self):
        """The failures for --check."""
        if self.false[2] and not self.name.startswith("("):
            yield f"{self.name}: told falsely " + ", ".join(
                f"month {month + 1} {hours(since)} to {hours(until)}" for month, since, until in self.false[2])
        bound = BOUND_S.get(self.name, BOUND_OTHERS_S)
        for what, seconds in self.took[2]:
            if seconds is None or seconds > bound:
                yield f"{self.name}: {what}: told after {seconds} s (bound {bound} s)"


def tables(alerts, months):
    yield f"| alert | false a month: {WAYS[0]} | {WAYS[1]} | {WAYS[2]} |"
    yield "|---|---|---|---|"
    for alert in alerts:
        yield f"| `{alert.name}` | " + " | ".join(f"{len(false) / months:.1f}" for false in alert.false) + " |"
    yield f"\n| fault | alert | times | found after: {WAYS[0]} | {WAYS[1]} | {WAYS[2]} |"
    yield "|---|---|---|---|---|---|"
    rows = {}
    for alert in alerts:
        for way, took in enumerate(alert.took):
            for what, seconds in took:
                rows.setdefault((what, alert.name), ([], [], []))[way].append(seconds)
    for (what, name), columns in sorted(rows.items()):
        yield f"| {what} | `{name}` | {len(columns[2])} | " + " | ".join(map(spoken_of, columns)) + " |"


def spoken_of(took):
    """The mean, and the longest."""
    heard = [one for one in took if one is not None]
    words = [f"{spoken(sum(heard) / len(heard))} ({spoken(max(heard))})"] if heard else []
    return ", ".join(words + ([f"{len(took) - len(heard)} never"] if len(heard) < len(took) else []))


def spoken(seconds):
    return f"{seconds:.0f} s" if seconds < 600 else f"{seconds / 60:.0f} min" if seconds < 3 * 3600 else f"{seconds / 3600:.1f} h"


def hours(at):
    """Hours since the start of the month."""
    return f"{(at - month_begins()) / 3600:.2f} h"


def play(alerts, month, paceline, seconds, seed, is_short):
    """Simulates one month; adds the results of each alert. Returns for how long jobs ran."""
    with tempfile.TemporaryDirectory(prefix="paceline-months-") as folder:
        past = Past(folder)
        truths, ran = live(past, paceline, random.Random(f"{seed}/{month}"), month_begins(), seconds, is_short)
        past.start()
        try:
            past.record()
            asked = [rule for rule in past.rules()[0] if rule["name"] != "PacelineWatchdog"]
            asked += [{"name": name, "query": query, "duration": 0} for name, query in BARE.items() if name.startswith("(")]
            for rule in asked:
                alert = alerts.setdefault(rule["name"], Alert(rule["name"]))
                for way, (query, wait_s) in enumerate(ways(rule)):
                    alert.add(month, way, score(rule["name"], past.told(query, wait_s), truths))
        finally:
            past.stop()
    print(f"month {month + 1}: {ran / DAY:.1f} days; " + ", ".join(
        f"{truth.what} {hours(truth.since)} to {hours(truth.until)}" for truth in truths), file=sys.stderr, flush=True)
    return ran


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--months", type=int, default=1)
    options.add_argument("--days", type=float)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--check", action="store_true")
    options = options.parse_args()
    is_short = options.check and options.days is None
    seconds = SHORT_S if is_short else (options.days or 30) * DAY
    alerts, ran = {}, 0
    with tempfile.TemporaryDirectory(prefix="paceline-months-") as folder:
        # A copy: a build may replace the binary in the meantime, and an incomplete program fails without an error.
        paceline = shutil.copy(PACELINE, os.path.join(folder, "paceline"))
        for month in range(options.months):
            ran += play(alerts, month, paceline, seconds, options.seed, is_short)
    shown = [alert for alert in alerts.values() if alert.is_known()]
    print("\n".join(tables(shown, ran / (30 * DAY))))
    print(f"\n{len(alerts) - len(shown)} other alerts: never told, in any way, and no fault of theirs")
    wrong = [line for alert in alerts.values() for line in alert.wrong()]
    if is_short:
        untried = TRIED - {alert.name for alert in shown if alert.took[2]}
        wrong += [f"{name}: not tried" for name in sorted(untried)]
    print("\n".join(wrong), file=sys.stderr)
    if options.check and wrong:
        sys.exit(1)


if __name__ == "__main__":
    main()
