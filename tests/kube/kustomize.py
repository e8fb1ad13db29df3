#!/usr/bin/env python3
"""Tests deploy/kustomize with the real kustomize (kubectl's): `kustomize.py PACELINE [VERSION ...]`. For a Job it gives
the same result as `paceline inject-manifest`, except where a patch has less information: the job's name comes from a
label of the pod, and the Secret has a fixed name. Needs kubernetes-validate from PyPI.
"""

import copy
import json
import os
import re
import subprocess
import sys
import tempfile

import kubernetes_validate
import yaml

from tools import ROOT, tools

COMPONENT = os.path.join(ROOT, "deploy", "kustomize", "job")
VERSIONS = [f"1.{minor}" for minor in range(29, 37)]
NAME = "metadata.labels['batch.kubernetes.io/job-name']"


def job(mode, **container):
    """Returns deploy/examples/job.yaml with a requested mode."""
    with open(os.path.join(ROOT, "deploy", "examples", "job.yaml")) as file:
        service, one = yaml.safe_load_all(file)
    one["metadata"]["labels"] = {"paceline.dev/inject": mode}
    del one["spec"]["template"]["metadata"]["labels"]
    one["spec"]["template"]["spec"]["containers"][0].update(container)
    return [service, one]


def kustomized(objects):
    """Returns the output of kustomize, or its error."""
    with tempfile.TemporaryDirectory() as folder:
        # Resolves links, because kustomize uses the real path.
        folder = os.path.realpath(folder)
        with open(os.path.join(folder, "objects.yaml"), "w") as file:
            yaml.safe_dump_all(objects, file)
        with open(os.path.join(folder, "kustomization.yaml"), "w") as file:
            yaml.safe_dump({"resources": ["objects.yaml"], "components": [os.path.relpath(COMPONENT, folder)]}, file)
        done = subprocess.run([tools()[1], "kustomize", folder], capture_output=True, text=True, check=False)
    if done.returncode:
        return None, done.stderr
    return list(yaml.safe_load_all(done.stdout)), ""


def injected(paceline, objects, mode):
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump_all(objects, file)
        file.flush()
        words = [paceline, "inject-manifest", "-f", file.name, "-o", "yaml", "--mode", mode]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def of_kind(objects, kind):
    (found,) = [one for one in objects if one["kind"] == kind]
    return found


def seen(objects):
    """Returns the Job's template as its pods see it: with expanded variables, lists by name, and any name of the
    Secret."""
    one = of_kind(objects, "Job")
    template, name = copy.deepcopy(one["spec"]["template"]), one["metadata"]["name"]
    template.get("metadata", {}).pop("labels", None)
    spec = template["spec"]
    for container in spec["containers"] + spec["initContainers"]:
        env = {}
        for entry in container.get("env", []):
            path = entry.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
            value = name if path == NAME else f"<{path}>" if path else entry["value"]
            env[entry["name"]] = re.sub(r"\$\(([A-Z_]+)\)", lambda match: env[match[1]], value)
        env.pop("PACELINE_JOB_NAME", None)
        container["env"] = env
        container["volumeMounts"] = {mount["mountPath"]: mount for mount in container.get("volumeMounts", [])}
    for kind in ("containers", "initContainers", "volumes"):
        spec[kind] = {entry["name"]: entry for entry in spec[kind]}
    assert spec["volumes"]["paceline-key"]["secret"].pop("secretName")
    return template


def check_refused(objects, words):
    made, problem = kustomized(objects)
    assert made is None and words in problem, f"{words!r} is not in {problem!r}"


def main():
    paceline, *versions = sys.argv[1:]
    for mode in ("sidecar", "wrap"):
        objects = job(mode)
        ours, problem = kustomized(objects)
        assert ours, problem
        for one in ours:
            for version in versions or VERSIONS:
                kubernetes_validate.validate(copy.deepcopy(one), version, strict=True)
        wanted, found = seen(injected(paceline, objects, mode)), seen(ours)
        assert found == wanted, f"{mode}: {json.dumps(found, indent=1)}\nis not what inject-manifest makes:\n{json.dumps(wanted, indent=1)}"
        inits = [one["name"] for one in of_kind(ours, "Job")["spec"]["template"]["spec"]["initContainers"]]
        assert inits[0] == "paceline-init", inits
    # A Job without a request, or with an opt-out, must stay unchanged.
    for word in ("false", "perhaps"):
        objects = job(word)
        ours, problem = kustomized(objects)
        assert of_kind(ours, "Job") == of_kind(objects, "Job"), problem
    # Existing parts must be kept: variables, volumes, init containers.
    objects = job("sidecar", env=[{"name": "A", "value": "b"}], volumeMounts=[{"name": "data", "mountPath": "/data"}])
    spec = objects[1]["spec"]["template"]["spec"]
    spec |= {"volumes": [{"name": "data", "emptyDir": {}}], "initContainers": [{"name": "first", "image": "first:1"}]}
    ours, _ = kustomized(objects)
    assert seen(ours) == seen(injected(paceline, objects, "sidecar"))
    # Impossible requests must be reported.
    for mode in ("sidecar", "wrap"):
        check_refused(job(mode, name="main"), "/spec/template/spec/containers/0/name")
    commandless = job("wrap")
    del commandless[1]["spec"]["template"]["spec"]["containers"][0]["command"]
    check_refused(commandless, "command")
    # For other kinds, inject-manifest must be able to read kustomize's output.
    with open(os.path.join(ROOT, "deploy", "examples", "jobset.yaml")) as file:
        ours, problem = kustomized(list(yaml.safe_load_all(file)))
    assert ours and len(injected(paceline, ours, "sidecar")) == 1, problem
    print("kustomize and inject-manifest make the same of a Job, as a sidecar and as wrap")


main()
