#!/usr/bin/env python3
"""An injected Job of two pods, run on this machine: `pods.py PACELINE [--torch VENV [--mode MODE]]`.

The output of `paceline inject-manifest` is used unchanged: every container's command, variables, user, volumes
(kubelet.py). The report of the first pod must have all four ranks, on both pods, and name the slow one, even if the
sidecar beside it was killed and restarted; a pod without the Secret must train nevertheless, monitored alone. With a
virtual environment that has PyTorch, it runs a real DDP job instead. Needs root, iproute2 and util-linux.
"""

import argparse
import json
import os
import secrets
import shutil
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

from kubelet import Network, Pod

HERE = os.path.dirname(os.path.abspath(__file__))
TRAINERS = {"/trainers": os.path.join(os.path.dirname(HERE), "trainers")}


def injected(paceline, mode, file, security):
    with open(os.path.join(HERE, file)) as manifest:
        text = manifest.read()
    if security:
        text = text.replace("      restartPolicy: Never\n", f"      restartPolicy: Never\n      securityContext: {json.dumps(security)}\n", 1)
    words = [paceline, "inject-manifest", "-f", "-", "-o", "json", "--mode", mode]
    out = subprocess.run(words, check=True, capture_output=True, text=True, input=text).stdout
    return json.JSONDecoder().raw_decode(out)[0]


def job(paceline, mode, has_key=True, file="job.yaml", trainer=TRAINERS, during=lambda pods: None, security=None):
    """Runs a job to its end. Returns exit codes, and the pods' reports and logs. `during` is an action on the running
    pods."""
    place = tempfile.mkdtemp(prefix="paceline-kube-")
    # Lets users other than root traverse the directory.
    os.chmod(place, 0o755)
    manifest = injected(paceline, mode, file, security)
    template = manifest["spec"]["template"]
    count = manifest["spec"]["completions"]
    network, pods = Network(f"pk{os.getpid()}"), []
    hosts = {f"10.77.0.{n + 2}": f"train-{n}.train train-{n}" for n in range(count)}
    given = {"paceline-train": {"key": secrets.token_hex(32)}} if has_key else {}
    image = {"/usr/bin/paceline": os.path.abspath(paceline)}
    try:
        for index in range(count):
            home = os.path.join(place, f"pod-{index}")
            os.makedirs(home)
            # Both pods run on one machine, but they must count as two nodes of the job.
            pods.append(Pod(template, "train", index, home, network, hosts, given, image, trainer, "node-a"))
        began = time.monotonic()
        # Starts the second pod first, which has to wait for the first one.
        for pod in reversed(pods):
            pod.begin()
        during(pods)
        # Finishes the pods in parallel, because each machine has its own kubelet.
        with ThreadPoolExecutor() as kubelets:
            codes = list(kubelets.map(Pod.finish, pods))
        print(f"{mode}: {count} pods in {time.monotonic() - began:.1f} s: {codes}")
        reports = []
        for pod in pods:
            try:
                reports.append((pod.report(), pod.attached()))
            except FileNotFoundError:
                reports.append(None)
        return codes, reports, [{name: pod.log(name) for name in pod.running} for pod in pods]
    finally:
        for pod in pods:
            pod.remove()
        network.remove()
        shutil.rmtree(place, ignore_errors=True)


def show(logs):
    return "\n".join(f"== pod {index} {name}\n{text[-3000:]}" for index, pod in enumerate(logs) for name, text in pod.items())


def check(paceline, mode, during=lambda pods: None, **how):
    seen = []
    codes, reports, logs = job(paceline, mode, during=lambda pods: (seen.extend(pods), during(pods)), **how)
    try:
        assert all(code == 0 for pod in codes for code in pod.values()), codes
        # This is the time that a kubelet leaves when the pod's grace period is used up.
        assert all(took < 2 for pod in seen for took in pod.took.values()), [pod.took for pod in seen]
        assert reports[0] is not None, "the first pod has no report"
        report, ranks = reports[0]
        assert ranks == {0: "node-a/train-0", 1: "node-a/train-0", 2: "node-a/train-1", 3: "node-a/train-1"}, ranks
        slow = [verdict["subject"] for verdict in report["verdicts"] if verdict["finding"] == "straggler"]
        assert [(who["rank"], who["node"]) for who in slow] == [(3, "node-a/train-1")], report["verdicts"]
        assert report["job"] == "default/train", report["job"]
        assert reports[1] is None or not reports[1][1], "the second pod had an aggregator of its own"
        said = logs[0]["paceline" if mode == "sidecar" else "trainer"]
        assert "rank 3" in said, "the verdict is not in the container's log"
        if mode == "sidecar":
            assert not [line for line in said.splitlines() if line.startswith("{")], "the log is for people"
            assert "paceline: watched; the job's aggregator is at " in said and " ranks, step " in said, said
    except (AssertionError, KeyError, TypeError) as problem:
        raise SystemExit(f"{mode}: {problem!r}\n{show(logs)}") from None


def check_without_a_key(paceline, mode):
    codes, reports, logs = job(paceline, mode, has_key=False)
    try:
        assert all(code == 0 for pod in codes for code in pod.values()), codes
        for index, (_, ranks) in enumerate(reports):
            assert sorted(ranks) == [2 * index, 2 * index + 1], ranks
    except (AssertionError, KeyError, TypeError) as problem:
        raise SystemExit(f"{mode} without a key: {problem!r}\n{show(logs)}") from None


def kill_second_sidecar(pods):
    """Kills the sidecar with SIGKILL when it is connected. The kubelet restarts it with the same volumes."""
    pod = pods[1]
    began = time.monotonic()
    while "paceline: watched" not in pod.log("paceline"):
        assert time.monotonic() - began < 60, "the second sidecar is never ready"
        time.sleep(0.05)
    pod.restart("paceline")


def main():
    if os.geteuid() != 0:
        raise SystemExit("this takes root")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paceline")
    parser.add_argument("--torch", help="a virtual environment with PyTorch: only a DDP job of it")
    parser.add_argument("--mode", action="append", help="only in this mode, of the DDP job")
    opt = parser.parse_args()
    if opt.torch:
        trainer = TRAINERS | {"/torch": os.path.abspath(opt.torch)}
        for mode in opt.mode or ("sidecar", "wrap"):
            check(opt.paceline, mode, file="ddp.yaml", trainer=trainer)
        return
    check(opt.paceline, "sidecar", during=kill_second_sidecar)
    check(opt.paceline, "wrap")
    # The key belongs to root, but any trainer must be able to read it: as the image's user, as the pod's, or as root
    # with the fsGroup that a kubelet adds.
    for security in ({"runAsUser": 1000, "runAsGroup": 1000}, {"runAsUser": 0, "fsGroup": 2000}):
        check(opt.paceline, "wrap", security=security)
    check_without_a_key(opt.paceline, "sidecar")
    print("both pods' ranks are in the report, and the slow one is named")


main()
