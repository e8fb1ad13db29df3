#!/usr/bin/env python3
"""Validates every example, and the output of `paceline inject-manifest` for it in both modes, by Kubernetes' schemas:
`validate.py PACELINE [VERSION ...]`. Needs kubernetes-validate from PyPI.

Operators' objects have no schema there: their own fields are checked against the operators' newest API (operators.py),
and their pod templates are validated as pods. Every example's containers must also meet the "restricted" Pod Security
standard (the rules are below).
"""

import copy
import glob
import json
import os
import subprocess
import sys

import kubernetes_validate

import operators

HERE = os.path.dirname(os.path.abspath(__file__))
EXAMPLES = os.path.join(os.path.dirname(os.path.dirname(HERE)), "deploy", "examples")
VERSIONS = [f"1.{minor}" for minor in range(29, 37)]
OWN = {"v1", "batch/v1"}  # built into Kubernetes


def documents(text):
    decoder, at = json.JSONDecoder(), 0
    while text[at:].strip():
        at += len(text[at:]) - len(text[at:].lstrip())
        document, at = decoder.raw_decode(text, at)
        yield document


def pods(value):
    """Returns all pod templates in a document."""
    if isinstance(value, dict):
        if isinstance(value.get("spec"), dict) and "containers" in value["spec"]:
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", **value.get("metadata", {})}}
            yield pod | {"spec": value["spec"]}
        else:
            for inner in value.values():
                yield from pods(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from pods(inner)


def check_restricted(pod, where):
    """Checks https://kubernetes.io/docs/concepts/security/pod-security-standards/ for Paceline's containers, and for
    volumes."""
    for volume in pod["spec"].get("volumes", []):
        assert set(volume) - {"name"} <= {"emptyDir", "secret", "configMap", "persistentVolumeClaim", "projected"}, where
    ours = [one for one in pod["spec"].get("initContainers", []) if one["name"].startswith("paceline")]
    for container in ours:
        security = container["securityContext"]
        assert security["allowPrivilegeEscalation"] is False and security["privileged"] is False, where
        assert security["capabilities"] == {"drop": ["ALL"]} and security["runAsNonRoot"] is True, where
        assert security["seccompProfile"]["type"] == "RuntimeDefault" and security.get("runAsUser", 1) != 0, where
        assert container["resources"]["limits"] == container["resources"]["requests"], where
        assert not [probe for probe in container if probe.endswith("Probe")], where
    return len(ours)


def main():
    paceline, *versions = sys.argv[1:]
    count = ours = theirs = 0
    operators.refuses()
    for path in sorted(glob.glob(os.path.join(EXAMPLES, "*.yaml"))):
        name = os.path.basename(path)
        for mode in ("sidecar", "wrap"):
            words = [paceline, "inject-manifest", "-f", path, "-o", "json", "--mode", mode]
            done = subprocess.run(words, capture_output=True, text=True)
            assert done.returncode == 0, f"{name}: {done.stderr}"
            for document in documents(done.stdout):
                found = list(pods(document))
                whole = [document] if document["apiVersion"] in OWN else []
                is_theirs = operators.check(document)
                assert is_theirs != bool(whole), f"{name}: nobody knows what a {document['kind']} may have"
                theirs += is_theirs
                for pod in found:
                    ours += check_restricted(pod, name)
                for version in versions or VERSIONS:
                    for one in whole + found:
                        kubernetes_validate.validate(copy.deepcopy(one), version, strict=True)
                        count += 1
    assert ours > 0, "nothing was injected"
    print(f"{count} objects are valid, {ours} containers of ours among them; {theirs} times an operator takes its own")


main()
