#!/usr/bin/env python3
"""From a fault of a GPU to a drained node: `drained.py KUBE-API PACELINE-OPERATOR PACELINE FAKE-NVML`.

The chart is installed by the real helm on the API server of tests/kube-api; both parts of the operator run as in their
Deployments; the webhook admits a job's two pods, whose containers run as admitted (kubelet.py), with the files of their
volumes: the Secret, a token for this pod from the API server, and the ConfigMap. On the second pod's machine a GPU
falls off the bus (tests/fake-nvml). The first pod's aggregator reports it to the remediator, with the pod's address, CA
and token, and the second machine is taken out of service. Needs root, iproute2, util-linux, helm (tools.py).
"""

import base64
import ctypes
import os
import shutil
import sys
import tempfile
import time

from helm import CHART
from helm_cluster import check_books, trusted
from helm_world import SPACE, Cluster, Operator, until
from kubelet import Network, Pod, run

HERE = os.path.dirname(os.path.abspath(__file__))
TRAINERS = {"/trainers": os.path.join(os.path.dirname(HERE), "trainers")}
LIBRARY = "/usr/lib/libnvidia-ml.so.1"
SCENARIO = 'gpus = 2\nprofile = "h100"\n'
HOME = "10.77.0.1"  # address of the Service; the pods' addresses follow
NAMES = [f"paceline-{part}.{SPACE}.svc" for part in ("injector", "remediator")]
POLICY = "[guard]\ndebounce_s = 1\n[drain]\nretry_s = 1\n"
CORE = "/api/v1/namespaces/team"


def enter(network):
    """Moves this process, and its future children, into the pods' network namespace."""
    run("ip", "-n", network.name, "address", "add", f"{HOME}/24", "dev", "br0")
    run("ip", "-n", network.name, "link", "set", "lo", "up")
    with open(f"/run/netns/{network.name}") as namespace:
        assert ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), 0x40000000) == 0, os.strerror(ctypes.get_errno())


def furnish(cluster):
    """Creates machines, and a namespace with a job without pods. Returns the job's reference."""
    for name in ("n0", "n1"):
        cluster.ask("/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": {}, "status": {
            "conditions": [{"type": "Ready", "status": "True"}], "nodeInfo": {"bootID": "b"},
            "capacity": {"nvidia.com/gpu": "2"}, "allocatable": {"nvidia.com/gpu": "2"}}})
    labels = {"paceline.dev/inject": "true", "kubernetes.io/metadata.name": "team"}
    cluster.ask("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team", "labels": labels}})
    cluster.ask(f"{CORE}/serviceaccounts", {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}})
    job = cluster.ask("/apis/batch/v1/namespaces/team/jobs", {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train"},
                                                              "spec": {}})
    return {"apiVersion": "batch/v1", "kind": "Job", "controller": True, "name": "train", "uid": job["metadata"]["uid"]}


def admitted(cluster, job, index):
    """Returns the pod as the webhook has changed it."""
    script = ("for local in 0 1; do RANK=$((JOB_COMPLETION_INDEX * 2 + local)) LOCAL_RANK=$local WORLD_SIZE=4 "
              "python3 /trainers/steps.py --steps 1000000 --sleep-ms 20 --until-term --say /tmp/said & all=\"$all $!\"; done; "
              "trap 'kill $all' TERM; wait; wait")
    container = {"name": "trainer", "image": "trainer", "command": ["sh", "-c", script], "resources": {"limits": {"nvidia.com/gpu": "2"}},
                 "env": [{"name": "JOB_COMPLETION_INDEX", "value": str(index)}]}
    labels = {"paceline.dev/inject": "true", "batch.kubernetes.io/job-name": "train", "batch.kubernetes.io/job-completion-index": str(index)}
    pod = cluster.ask(f"{CORE}/pods", {
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"train-{index}", "labels": labels, "ownerReferences": [job]},
        "spec": {"nodeName": f"n{index}", "subdomain": "train", "hostname": f"train-{index}", "restartPolicy": "Never",
                 "automountServiceAccountToken": False, "terminationGracePeriodSeconds": 30, "containers": [container]}})
    assert [one["name"] for one in pod["spec"].get("initContainers", [])] == ["paceline-init", "paceline"], pod
    return pod


def project(cluster):
    """Simulates a kubelet's requests for the sources of a projected volume."""
    def of(pod, source):
        if "configMap" in source:
            found = cluster.get_at(f"{CORE}/configmaps/{source['configMap']['name']}").get("data", {})
            assert found or source["configMap"]["optional"], "the pod would wait"
            return {item["path"]: found[item["key"]] for item in source["configMap"]["items"] if item["key"] in found}
        asked = source["serviceAccountToken"]
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {
            "audiences": [asked["audience"]], "expirationSeconds": asked["expirationSeconds"],
            "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": pod.name}}}
        return {asked["path"]: cluster.ask(f"{CORE}/serviceaccounts/default/token", request)["status"]["token"]}
    return of


def begin(cluster, network, folder, job, paceline, library):
    """Starts both pods."""
    specs = [admitted(cluster, job, index) for index in range(2)]
    keys = until("the job has a key", lambda: cluster.get_at(f"{CORE}/secrets/paceline-train").get("data"))
    secrets = {"paceline-train": {name: base64.b64decode(text).decode() for name, text in keys.items()}}
    hosts = {HOME: " ".join(NAMES)} | {f"10.77.0.{n + 2}": f"train-{n}.train train-{n}" for n in range(2)}
    pods = []
    for index, spec in enumerate(specs):
        home = os.path.join(folder, f"pod-{index}")
        os.makedirs(home)
        shutil.copy(library, os.path.join(home, "library"))
        with open(os.path.join(home, "scenario"), "w") as file:
            file.write(SCENARIO)
        image = {"/usr/bin/paceline": os.path.abspath(paceline), LIBRARY: os.path.join(home, "library"),
                 f"{LIBRARY}.toml": os.path.join(home, "scenario")}
        pods.append(Pod(spec, "train", index, home, network, hosts, secrets, image, TRAINERS, f"n{index}", project(cluster)))
    for pod in reversed(pods):
        pod.begin()
    for pod in pods:
        status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        cluster.ask(f"{CORE}/pods/{pod.name}/status", {"status": status}, method="PATCH")
    return pods


def watched(pod):
    try:
        return pod.attached()
    except ValueError:
        return {}  # The line is incomplete.


def check_drained(cluster, pods):
    """Checks the state of both machines, of which only the faulty one may be drained."""
    health = "/apis/paceline.dev/v1alpha1/nodehealths/n1"

    def drained():
        for pod in pods:
            pod.refresh()
        return cluster.get_at(health).get("status", {}).get("state") == "Drained"

    until("the node is drained", drained)
    status = cluster.get_at(health)["status"]
    (incident,) = [one for one in status["incidents"].values() if one["finding"] == "gpu-lost"]
    assert (incident["job"], incident["provenance"]) == ("team/train", "live"), incident
    node = cluster.get_at("/api/v1/nodes/n1")
    assert [taint["key"] for taint in node["spec"]["taints"]] == ["paceline.dev/unhealthy"], node
    assert node["spec"]["unschedulable"] is True and "paceline.dev/cordoned-by" in node["metadata"]["annotations"], node
    (condition,) = [one for one in node["status"]["conditions"] if one["type"] == "PacelineFault"]
    assert (condition["status"], condition["reason"]) == ("True", "GpuLost"), condition
    assert not cluster.get_at(f"{CORE}/pods/train-1"), "it was evicted, and has gone"
    assert cluster.get_at(f"{CORE}/pods/train-0"), "the other one runs on"
    assert "unschedulable" not in cluster.get_at("/api/v1/nodes/n0")["spec"]


def check(cluster, network, folder, programs, running):
    kube_operator, paceline, library = programs
    cluster.helm("install", "paceline", CHART, "--create-namespace", values={"remediator": {"mode": "act", "policy": POLICY}})
    running.append(Operator(cluster, kube_operator, "injector", cluster.account("paceline-injector")))
    until("the API server is told whom to trust", lambda: trusted(cluster.everything()))
    pods = begin(cluster, network, folder, furnish(cluster), paceline, library)
    try:
        # The pods start before the remediator.
        running.append(Operator(cluster, kube_operator, "remediator", cluster.account("paceline-remediator"), (HOME, 443)))
        until("all ranks are watched", lambda: watched(pods[0]) == {0: "n0/train-0", 1: "n0/train-0", 2: "n1/train-1", 3: "n1/train-1"})
        with open(os.path.join(folder, "pod-1", "scenario"), "a") as file:
            file.write("[[event]]\ngpu = 1\nxid = 79\n")
        check_drained(cluster, pods)
        codes = [pod.stop() for pod in reversed(pods)]
        assert all(code["paceline"] == 0 for code in codes), codes
        said = [line for line in pods[0].log("paceline").splitlines() if "cannot be reached" in line]
        assert len(said) <= 1, said
        check_books(cluster, "remediator")
        check_books(cluster, "injector")
    except BaseException:
        for pod in pods:
            for name in pod.running:
                print(f"== {pod.name} {name}\n{pod.log(name)[-3000:]}")
        raise
    finally:
        for pod in pods:
            pod.remove()


def main():
    if os.geteuid() != 0:
        raise SystemExit("this takes root")
    kube_api, *programs = map(os.path.abspath, sys.argv[1:])
    began, network, running = time.monotonic(), Network(f"kd{os.getpid()}"), []
    with tempfile.TemporaryDirectory(prefix="paceline-drained-") as folder:
        os.chmod(folder, 0o755)  # Other users than root must be able to traverse it.
        try:
            enter(network)
            cluster = Cluster(kube_api, folder)
            try:
                check(cluster, network, folder, programs, running)
                while running:
                    running.pop().end()
            except BaseException:
                for one in running:
                    print(f"== {one.part}\n{one.said()[-3000:]}")
                raise
            finally:
                for one in running:
                    one.mounts.end()
                    one.process.kill()
                cluster.end()
        finally:
            network.remove()
    print(f"a GPU falls off the bus, and its machine is drained: {time.monotonic() - began:.1f} s in all")


if __name__ == "__main__":
    main()
