#!/usr/bin/env python3
"""Tests deploy/datadog: the map has every family of docs/metrics.md, as written by names.py; and Datadog's own
OpenMetrics check (V2, as run by the Agent), with the instance of pod.yaml, collects every family of a simulated job's
page under its name.

    tests/prometheus/datadog.py     PACELINE: the binary. Needs datadog-checks-base[deps,http] and PyYAML of PyPI,
    except with --names
"""

import os
import re
import subprocess
import sys
import urllib.request

from world import HERE, played, until

DATADOG = os.path.join(HERE, "../../deploy/datadog")


def instance():
    """The instance in the pod's annotation, which is JSON, and in conf.yaml; both must be equal."""
    import json

    import yaml
    pod = yaml.safe_load(open(os.path.join(DATADOG, "pod.yaml")))
    check = json.loads(pod["metadata"]["annotations"]["ad.datadoghq.com/paceline.checks"])["openmetrics"]["instances"][0]
    conf = yaml.safe_load(open(os.path.join(DATADOG, "conf.yaml")))["instances"][0]
    assert {**conf, "openmetrics_endpoint": ""} == {**check, "openmetrics_endpoint": ""}
    return check


def play(world):
    from datadog_checks.base import OpenMetricsBaseCheckV2
    from datadog_checks.base.stubs import aggregator

    world.watch("--ranks", "16", "--speed", "8", "--fault", "slow rank=7 factor=1.3 from=32 cause=thermal")
    page = f"http://127.0.0.1:{world.page}/metrics"
    until("a slow rank on the page", lambda: b"paceline_rank_slowdown_ratio{" in urllib.request.urlopen(page).read())
    check = instance()
    check["openmetrics_endpoint"] = page
    check = OpenMetricsBaseCheckV2("openmetrics", {}, [check])
    # Counters need two runs.
    for _ in range(2):
        wrong = check.run()
        assert not wrong, wrong
    told = urllib.request.urlopen(page).read().decode()
    families = dict(re.findall(r"^# TYPE (\w+) (\w+)$", told, re.M))
    names = dict(check.instances[0]["metrics"][0])
    came = set(aggregator.metric_names)
    # Histograms become distributions, which the stub stores separately.
    spread = {f"paceline.{names[family]}" for family, kind in families.items() if kind == "histogram"}
    came |= {name for name in spread if aggregator.histogram_bucket(name)}
    for family, kind in families.items():
        raw = family.removesuffix("_total") if kind == "counter" else family
        ends = {"counter": [".count"], "gauge": [""], "summary": [".sum", ".count", ".quantile"], "histogram": [""]}[kind]
        for end in ends:
            assert f"paceline.{names[raw]}{end}" in came, (family, kind, end, sorted(came))
    others = {name for name in came if not name.startswith("paceline.")}
    assert not others, others
    slow = aggregator.metrics(f"paceline.{names['paceline_rank_slowdown_ratio']}")
    assert [tag for one in slow for tag in one.tags if tag == "rank:7"], slow
    print(f"Datadog's check brought {len(came)} metrics of {len(families)} families of a real page, each under its name")


def main():
    subprocess.run([sys.executable, os.path.join(DATADOG, "names.py"), "--check"], check=True)
    if sys.argv[1:] != ["--names"]:
        played("datadog", play)


if __name__ == "__main__":
    main()
