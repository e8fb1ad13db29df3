#!/usr/bin/env python3
"""Tests the chart with the real helm: `helm.py [--operator PACELINE-OPERATOR] [VERSION ...]`. Renders it with many sets
of values; every object must be valid by Kubernetes' schemas (strictly) and meet the chart's promises; invalid values
must be rejected with their location.

Needs kubernetes-validate from PyPI; helm is downloaded once (tools.py). Kinds without a schema here (Prometheus' and
cert-manager's) are checked by explicit lists of fields. helm_cluster.py tests the installation.
"""

import copy
import glob
import json
import os
import subprocess
import sys
import tempfile

import kubernetes_validate
import yaml

from helm_promises import promises
from tools import ROOT, tools

CHART = os.path.join(ROOT, "deploy", "helm", "paceline")
EXAMPLES = sorted(glob.glob(os.path.join(ROOT, "deploy", "helm", "examples", "*.yaml")))
VERSIONS = [f"1.{minor}" for minor in range(29, 37)]
# Not a real certificate. That does not matter, because the chart only passes it on.
CA = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
GIVEN = {"mode": "given", "given": {"injectorSecret": "mine", "remediatorSecret": "his", "caBundle": CA}}
EVERYTHING = {"enabled": True}

# Sets of values by name. Each set is rendered, validated and checked against the promises.
MATRIX = {
    "as it comes": {},
    "cert-manager": {"certificates": {"mode": "cert-manager"}},
    "cert-manager, issuer of one's own": {
        "certificates": {"mode": "cert-manager", "certManager": {"issuerRef": {"kind": "ClusterIssuer", "name": "internal"}}}},
    "certificates given": {"certificates": GIVEN},
    "the injector alone": {"remediator": {"enabled": False}},
    "the remediator alone": {"injector": {"enabled": False}},
    "neither": {"injector": {"enabled": False}, "remediator": {"enabled": False}},
    "remediator acts": {"remediator": {"mode": "act", "policy": "[limits]\nnodes = 2\n"}},
    "one finding would be acted on, and nothing is": {"remediator": {"policy": '[finding.gpu-lost]\nmode = "act"\n'}},
    "remediator, shadow": {"remediator": {"mode": "shadow"}},
    "pods tell nobody": {"injector": {"tellRemediator": False}},
    "no secrets of jobs": {"injector": {"jobSecrets": False}},
    "no secrets of jobs, certificates given": {"injector": {"jobSecrets": False}, "certificates": GIVEN},
    "one replica": {"injector": {"replicas": 1}, "remediator": {"replicas": 1}},
    "all namespaces, fail, asked about all": {"injector": {
        "exclude": ["istio-system"],
        "webhook": {"failurePolicy": "Fail", "timeoutSeconds": 2, "onlyAsked": False, "annotations": {"a": "b"},
                    "namespaceSelector": {"matchLabels": {"paceline.dev/inject": None}, "matchExpressions": [
                        {"key": "team", "operator": "Exists"}]}}}},
    "all namespaces": {"injector": {"webhook": {"namespaceSelector": {"matchLabels": None}}}},
    "nothing is taken off at the end": {"uninstall": {"release": False}},
    "all is given back at the end": {"uninstall": {"uncordon": True}, "injector": {"nodeSelector": {"pool": "cpu"}}},
    "network policies": {"networkPolicy": {"enabled": True}},
    "narrow network policies": {"networkPolicy": {
        "enabled": True, "verdictsFrom": [{"namespaceSelector": {}}, {"ipBlock": {"cidr": "10.1.0.0/16"}}],
        "apiServer": [{"ipBlock": {"cidr": "10.0.0.1/32"}}], "apiServerPorts": [6443],
        "metricsFrom": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]}},
    "monitoring": {"monitoring": {
        "podMonitor": EVERYTHING | {"labels": {"release": "p"}}, "prometheusRule": EVERYTHING | {"alertLabels": {"team": "ml"}, "grafanaUrl": "https://g.example.org/"},
        "dashboards": EVERYTHING | {"namespace": "grafana"}}},
    "another port, the host's network": {"injector": {"port": 10250, "healthPort": 10251, "hostNetwork": True}},
    "accounts of one's own": {part: {"serviceAccount": {"create": False, "name": "ours"}} for part in ("injector", "remediator")},
    "pods as a site wants them": {
        "image": {"repository": "registry.internal/paceline", "digest": "sha256:" + "0" * 64, "pullSecrets": [{"name": "pull"}]},
        "commonLabels": {"owner": "ml"}, "fullnameOverride": "watch", "crd": {"install": False},
        "remediator": {"preflight": {"runtimeClassName": "nvidia", "tolerations": [
            {"key": "team", "value": "\"ml\"", "effect": "NoSchedule"}]}},
        "injector": {"mode": "wrap", "priorityClassName": "system-cluster-critical", "podAnnotations": {"a": "b"},
                     "podLabels": {"c": "d"}, "nodeSelector": {"pool": "cpu"}, "extraArgs": ["--drain=10"],
                     "tolerations": [{"operator": "Exists"}], "podDisruptionBudget": False,
                     "resources": {"requests": {"cpu": 1}, "limits": {"memory": "1Gi"}}}},
}

LINTED = ("as it comes", "remediator acts", "monitoring")

# Invalid values, and texts that the error must contain, which are the location and the problem.
WRONG = [
    ({"injector": {"webhook": {"failurePolicy": "Perhaps"}}}, "/injector/webhook/failurePolicy", "'Ignore', 'Fail'"),
    ({"injector": {"webhook": {"timeoutSeconds": 30}}}, "/injector/webhook/timeoutSeconds", "5"),
    # Null removes a default. Helm itself would only report a nil pointer.
    ({"injector": {"webhook": {"namespaceSelector": None}}}, "/injector/webhook", "missing property 'namespaceSelector'"),
    ({"injector": {"exclude": None}}, "/injector", "missing property 'exclude'"),
    ({"remediator": {"port": None}}, "/remediator", "missing property 'port'"),
    ({"certificates": None}, "missing property 'certificates'"),
    ({"injector": {"port": 443}}, "/injector/port", "1,024"),
    ({"injector": {"port": 9444}}, "injector.port and injector.healthPort are both 9444"),
    ({"remediator": {"port": 10250, "healthPort": 10250}}, "remediator.port and remediator.healthPort are both 10250"),
    ({"injector": {"replicas": 0}}, "/injector/replicas", "minimum"),
    ({"injector": {"mode": "magic"}}, "/injector/mode", "'sidecar', 'wrap'"),
    ({"injector": {"pods": {"memory": "256m"}}}, "/injector/pods/memory", "pattern"),
    ({"injector": {"pods": {"memory": 256}}}, "/injector/pods/memory", "minimum"),
    ({"injector": {"pods": {"cpu": "500Mi"}}}, "/injector/pods/cpu", "pattern"),
    ({"injector": {"exclude": "kube-system"}}, "/injector/exclude", "array"),
    ({"injecter": {"enabled": False}}, "injecter", "not allowed"),
    ({"remediator": {"mode": "enforce"}}, "/remediator/mode", "'observe', 'shadow', 'act'"),
    ({"remediator": {"preflight": {"command": ["sh"]}}}, "/remediator/preflight", "command"),
    ({"remediator": {"policy": 'mode = "act"\n'}}, "/remediator/policy", "not"),
    ({"remediator": {"serviceAccount": {"create": False}}}, "remediator.serviceAccount.name", "whose rights"),
    ({"certificates": {"mode": "none"}}, "/certificates/mode", "'self', 'cert-manager', 'given'"),
    ({"certificates": {"mode": "given", "given": {"caBundle": CA, "remediatorSecret": "b"}}},
     "certificates.given.injectorSecret", "Secret"),
    ({"certificates": {"mode": "given", "given": {"injectorSecret": "a", "remediatorSecret": "b"}}},
     "certificates.given.caBundle", "PEM"),
    ({"certificates": {"given": {"caBundle": "MIIB"}}}, "/certificates/given/caBundle", "pattern"),
    ({"image": {"digest": "latest"}}, "/image/digest", "pattern"),
    ({"monitoring": {"podMonitor": {"interval": 15}}}, "/monitoring/podMonitor/interval", "string"),
]


def helm(*words, values=None):
    with tempfile.TemporaryDirectory() as folder:
        more = []
        if values is not None:
            place = os.path.join(folder, "values.yaml")
            with open(place, "w") as file:
                yaml.safe_dump(values, file)
            more = ["--values", place]
        env = os.environ | {"HELM_CACHE_HOME": folder, "HELM_CONFIG_HOME": folder, "HELM_DATA_HOME": folder,
                            "KUBECONFIG": os.devnull}
        return subprocess.run([tools()[0], *words, *more], capture_output=True, text=True, env=env, check=False)


def rendered(values, *words):
    done = helm("template", "paceline", CHART, "--namespace", "watch-ns", *words, values=values)
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def valid(objects, versions, seen):
    """Validates by Kubernetes' schemas, each distinct object once. Returns the number of validations."""
    count = 0
    for one in objects:
        text = json.dumps(one, sort_keys=True)
        if text in seen or one["apiVersion"].split("/")[0] in ("cert-manager.io", "monitoring.coreos.com"):
            continue
        seen.add(text)
        for version in versions:
            kubernetes_validate.validate(copy.deepcopy(one), version, strict=True)
            count += 1
    return count


def check_arguments(operator, everything):
    """Checks that the operator has the arguments that the chart uses."""
    for part, command in (("injector", "inject"), ("remediator", "remediate"), ("release", "release")):
        help = subprocess.run([operator, command, "--help"], capture_output=True, text=True, check=True).stdout
        known = {word.strip(",<>[]") for word in help.split() if word.startswith("--")}
        for objects in everything:
            for one in objects:
                if one["kind"] not in ("Deployment", "Job") or not one["metadata"]["name"].endswith(part):
                    continue
                first, *args = one["spec"]["template"]["spec"]["containers"][0]["args"]
                assert first == command, first
                unknown = {arg.split("=")[0] for arg in args} - known
                assert not unknown, f"{operator} {command} knows no {unknown}"


def check_notes(values, *wanted):
    done = helm("install", "paceline", CHART, "--namespace", "watch-ns", "--dry-run=client", values=values)
    assert done.returncode == 0, done.stderr
    notes = done.stdout.partition("NOTES:")[2]
    for words in wanted:
        assert words in notes, f"{words!r} is not in the notes: {notes}"


def main():
    words = sys.argv[1:]
    operator = words.pop(words.index("--operator") + 1) if "--operator" in words else None
    versions = [word for word in words if word != "--operator"] or VERSIONS
    subprocess.run([sys.executable, os.path.join(ROOT, "deploy", "helm", "files.py"), "--check"], check=True)
    cases = MATRIX | {os.path.basename(path): yaml.safe_load(open(path)) for path in EXAMPLES}
    seen, count, everything = set(), 0, []
    for name, values in cases.items():
        if name in LINTED:
            done = helm("lint", "--strict", CHART, values=values)
            assert done.returncode == 0, f"{name}: {done.stdout}{done.stderr}"
        objects = rendered(values)
        try:
            count += valid(objects, versions, seen)
            promises(objects, values, "watch-ns")
        except Exception as problem:
            raise AssertionError(f"with the values of {name!r}: {problem}") from problem
        everything.append(objects)
    for values, *wanted in WRONG:
        done = helm("template", "paceline", CHART, values=values)
        missing = [words for words in wanted if words not in done.stderr]
        assert done.returncode != 0 and not missing, f"{values}: {missing} is not in: {done.stderr}"
    old = helm("template", "paceline", CHART, "--kube-version", "1.28.0")
    assert old.returncode != 0 and "1.28" in old.stderr, "Kubernetes 1.28 has no native sidecars"
    check_notes({}, "paceline.dev/inject=true", "only observes", "get nodehealths")
    check_notes({"remediator": {"mode": "act"}, "injector": {"webhook": {"failurePolicy": "Fail"}, "jobSecrets": False}},
                "drain nodes", "failurePolicy is Fail", "create secret generic")
    if operator:
        check_arguments(operator, everything)
    print(f"{len(cases)} sets of values: {len(seen)} different objects, {count} times valid; {len(WRONG)} wrong values refused"
          + ("; the operator knows its arguments" if operator else ""))


if __name__ == "__main__":
    main()
