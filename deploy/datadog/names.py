#!/usr/bin/env python3
"""Datadog's names of our families, for the Agent's openmetrics check: conf.yaml (an Agent on hosts) and pod.yaml (annotations of a pod),
made of the table in docs/metrics.md. A counter loses `_total`, as the check wants it, and gets `.count` from the check; a histogram and
a summary get `.bucket`, `.quantile`, `.sum` and `.count` from it.

    deploy/datadog/names.py            writes them
    deploy/datadog/names.py --check    1 where they are not what it writes
"""

import json
import os
import re
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
CONTRACT = os.path.join(HERE, "../../docs/metrics.md")
# What no page of a job has: node_exporter's file, and a relay's own page.
ELSEWHERE = {"paceline_jobs_ended_total", "paceline_relay_links"}
# Names that tags have all over Datadog with another meaning.
RENAMED = {"node": "paceline_node", "job_id": "paceline_job", "version": "paceline_version"}


def families():
    """(family, type) of every row of the contract."""
    rows = re.findall(r"^\| `(paceline_[a-z0-9_]+)` \| (\w+) \|", open(CONTRACT).read(), re.M)
    assert len(rows) > 50, "docs/metrics.md has no table"
    return rows


def parted(name):
    """`gpu_power_watts` is `gpu.power_watts`, so that what belongs together stands together."""
    first, _, rest = name.partition("_")
    groups = ("build", "job", "step", "transport", "sidecar", "rank", "gpu", "fabric", "preflight", "finding", "nccl", "collective")
    return f"{first}.{rest}" if first in groups and rest else name


def names():
    """The check's name of each family, and Datadog's below the namespace."""
    found = {}
    for family, kind in families():
        if family not in ELSEWHERE:
            raw = family.removesuffix("_total") if kind == "counter" else family
            found[raw] = parted(raw.removeprefix("paceline_"))
    assert len(set(found.values())) == len(found), "two families have one name"
    return found


def instance(endpoint):
    return {"openmetrics_endpoint": endpoint, "namespace": "paceline", "metrics": [names()], "rename_labels": RENAMED,
            "histogram_buckets_as_distributions": True, "tag_by_endpoint": False}


def conf():
    lines = ["# Made by names.py. For an Agent on a host: conf.d/openmetrics.d/conf.yaml, an instance for each job's page (`--http`).",
             "init_config: {}", "instances:", "  - openmetrics_endpoint: http://localhost:9400/metrics"]
    # https is by the job's key; what the check has to be told then: docs/security.md.
    for key, value in list(instance("").items())[1:]:
        if key == "metrics":
            lines += ["    metrics:", *(f"      {'-' if at == 0 else ' '} {raw}: {name}" for at, (raw, name) in enumerate(value[0].items()))]
        elif isinstance(value, dict):
            lines += [f"    {key}:", *(f"      {old}: {new}" for old, new in value.items())]
        else:
            lines.append(f"    {key}: {json.dumps(value)}")
    return "\n".join(lines) + "\n"


def pod():
    check = {"openmetrics": {"init_config": {}, "instances": [instance("http://%%host%%:9400/metrics")]}}
    body = json.dumps(check, indent=2).replace("\n", "\n      ")
    return f"""# Made by names.py. For an Agent that finds pods by itself: annotations of the first pod of a job, which has the aggregator. `paceline`
# in ad.datadoghq.com/paceline.checks is the container that has it: our sidecar, or in mode wrap the one that trains.
apiVersion: v1
kind: Pod
metadata:
  name: example
  annotations:
    paceline.dev/inject: "true"
    paceline.dev/metrics: "9400"
    ad.datadoghq.com/paceline.checks: |
      {body}
spec:
  containers:
    - name: trainer
      image: example.org/trainer
"""


def main():
    stale = []
    for name, text in (("conf.yaml", conf()), ("pod.yaml", pod())):
        path = os.path.join(HERE, name)
        if sys.argv[1:] == ["--check"]:
            if not os.path.exists(path) or open(path).read() != text:
                stale.append(name)
        else:
            open(path, "w").write(text)
    if stale:
        sys.exit(f"deploy/datadog: not what names.py writes: {', '.join(stale)}")


if __name__ == "__main__":
    main()
