#!/usr/bin/env python3
"""Tests deploy/autoscaling: its rules by promtool, with nodes that fluctuate, and the structure of its examples: they
query series that the rules record, in steps with enough time between two changes. With kubernetes-validate from PyPI,
the core kinds by Kubernetes' schemas.

    tests/prometheus/autoscaling.py     takes promtool and PyYAML
"""

import glob
import os
import re
import subprocess

import yaml

from world import HERE

HOME = os.path.join(HERE, "../../deploy/autoscaling")
RULES = os.path.join(HOME, "paceline.autoscaling.rules.yaml")
# The fields used by the example, from https://keda.sh/docs/latest/reference/scaledobject-spec.
SCALED = {"scaleTargetRef", "pollingInterval", "minReplicaCount", "maxReplicaCount", "fallback", "advanced", "triggers"}
TRIGGER = {"serverAddress", "query", "threshold", "ignoreNullValues"}


def documents():
    for path in glob.glob(f"{HOME}/*.yaml"):
        for document in yaml.safe_load_all(open(path)):
            if "kind" in document:
                yield document


def behaves(behavior):
    assert behavior["scaleDown"]["stabilizationWindowSeconds"] >= 600 and behavior["scaleUp"]["stabilizationWindowSeconds"] >= 600
    assert all(policy["value"] == 1 and policy["periodSeconds"] >= 600 for way in behavior.values() for policy in way["policies"])


def check(document, recorded):
    kind = document["kind"]
    if kind == "ConfigMap":
        rules = yaml.safe_load(document["data"]["config.yaml"])["externalRules"]
        asked = [name for rule in rules for name in re.findall(r"paceline:[a-z_:]+", rule["seriesQuery"] + rule["metricsQuery"])]
        assert len(asked) == 2 * len(rules) and set(asked) <= recorded, asked
        return {rule["name"]["as"] for rule in rules}
    if kind == "HorizontalPodAutoscaler":
        behaves(document["spec"]["behavior"])
        return {metric["external"]["metric"]["name"] for metric in document["spec"]["metrics"]}
    assert kind == "ScaledObject" and set(document["spec"]) == SCALED, document
    behaves(document["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"])
    for trigger in document["spec"]["triggers"]:
        assert trigger["type"] == "prometheus" and set(trigger["metadata"]) == TRIGGER, trigger
        assert all(isinstance(value, str) for value in trigger["metadata"].values()), "KEDA takes strings"
        assert set(re.findall(r"paceline:[a-z_:]+", trigger["metadata"]["query"])) <= recorded
    return set()


def main():
    subprocess.run(["promtool", "check", "rules", RULES], check=True)
    subprocess.run(["promtool", "test", "rules", os.path.join(HOME, "paceline.autoscaling.test.yaml")], check=True)
    recorded = {rule["record"] for group in yaml.safe_load(open(RULES))["groups"] for rule in group["rules"]}
    found = {}
    for document in documents():
        found.setdefault(document["kind"], set()).update(check(document, recorded))
    assert set(found) == {"ConfigMap", "HorizontalPodAutoscaler", "ScaledObject"}, found
    assert found["HorizontalPodAutoscaler"] <= found["ConfigMap"], found
    try:
        import kubernetes_validate
    except ImportError:
        print("LEFT OUT: Kubernetes' schemas: kubernetes-validate")
    else:
        for document in documents():
            if document["kind"] != "ScaledObject":
                kubernetes_validate.validate(document, "1.29", strict=True)
    print(f"{len(recorded)} recorded series, {len(found)} kinds of examples")


if __name__ == "__main__":
    main()
