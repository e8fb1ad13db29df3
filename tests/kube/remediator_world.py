"""A cluster (tests/kube-api, over HTTPS, with the chart's permissions) with nodes, pods and remediator processes."""

import http.client
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import threading
import time

from rights import rights
from tools import ROOT, tools

PATIENCE = 120
READING, READ = threading.Lock(), []
HEALTHS = "/apis/paceline.dev/v1alpha1/nodehealths"
QUICK = """
mode = "act"
[guard]
debounce_s = 0
[drain]
retry_s = 1
[recovery]
checks = 2
check_every_s = 1
"""

def until(what, look, patience=PATIENCE):
    """Returns the result of `look` once it is truthy."""
    end = time.monotonic() + patience
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < end, f"never: {what}"
        time.sleep(0.05)


def listens(process):
    """Waits until an operator has logged its address. An incomplete line is ignored."""
    def said():
        return [line for line in open(process.log) if "serves https://" in line and line.endswith("\n")] or process.poll()

    lines = until("it says where it is", said)
    assert isinstance(lines, list), open(process.log).read()
    process.port = int(lines[0].split("https://127.0.0.1:")[1].split("/")[0])
    process.health = int(lines[0].split("http://127.0.0.1:")[1].strip())


def crd(access):
    """Returns the released CRD as kubectl parses it. In YAML 1.1 some keys are not strings, and this API server prunes
    by the CRD's schema."""
    with READING:
        if not READ:
            words = [tools()[1], "--kubeconfig", access, "create", "--dry-run=client", "--output", "json", "--filename"]
            done = subprocess.run([*words, os.path.join(ROOT, "deploy", "operator", "crd.yaml")], check=True, capture_output=True)
            READ.append(json.loads(done.stdout))
    return READ[0]


class World:
    """A cluster, and its remediators."""

    def __init__(self, binaries, nodes=10, policy=QUICK):
        self.kube_api, self.operator = binaries
        self.dir = tempfile.mkdtemp(prefix="paceline-remediator-")
        self.processes, self.tokens, self.delivery, self.serving = [], {}, 0, []
        try:
            self.begin(nodes, policy)
        except BaseException:
            self.end()
            raise

    def begin(self, nodes, policy):
        self.admin = os.path.join(self.dir, "admin")
        server = self.start([self.kube_api, "--kubeconfig", self.admin, *self.serving], stdout=subprocess.PIPE)
        self.address = server.stdout.readline().decode().split("https://")[1].strip()
        config = json.load(open(self.admin))
        self.token = config["users"][0]["user"]["token"]
        self.write("policy.toml", policy)
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj",
             "/CN=remediator", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", f"{self.dir}/tls.key", "-out", f"{self.dir}/tls.crt"],
            check=True, capture_output=True)
        self.ask("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd(self.admin))
        for name in ("ml", "paceline"):
            self.ask("POST", "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
            account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "remediator"}}
            self.ask("POST", f"/api/v1/namespaces/{name}/serviceaccounts", account)
        self.rights = rights("remediator", "remediator.mode=act")
        self.grant("remediator", self.rights)
        own = self.ask("POST", "/api/v1/namespaces/paceline/serviceaccounts/remediator/token", {"spec": {}})["status"]["token"]
        config["users"][0]["user"]["token"] = own
        self.write("kubeconfig", json.dumps(config))
        for index in range(nodes):
            self.node(f"n{index}")

    def grant(self, account, given):
        """Grants an account the permissions of the chart's roles."""
        rbac, version = "/apis/rbac.authorization.k8s.io/v1", "rbac.authorization.k8s.io/v1"
        subject = [{"kind": "ServiceAccount", "name": account, "namespace": "paceline"}]
        for kind, place in (("ClusterRole", rbac), ("Role", f"{rbac}/namespaces/paceline")):
            meta = {"name": account}
            self.ask("POST", f"{place}/{kind.lower()}s", {"apiVersion": version, "kind": kind, "metadata": meta, "rules": given[kind]})
            role = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": account}
            self.ask("POST", f"{place}/{kind.lower()}bindings", {
                "apiVersion": version, "kind": kind + "Binding", "metadata": meta, "roleRef": role, "subjects": subject})

    def write(self, name, text):
        with open(os.path.join(self.dir, name), "w") as file:
            file.write(text)

    def start(self, words, **more):
        process = subprocess.Popen(words, **more)
        self.processes.append(process)
        return process

    def end(self):
        for process in self.processes:
            process.kill()
            process.wait()
        shutil.rmtree(self.dir, ignore_errors=True)

    def remediator(self, policy="policy.toml", lease=8, certificate=None, more=()):
        """Starts another remediator and waits until it listens."""
        number = len(self.processes)
        log = os.path.join(self.dir, f"log-{number}")
        environment = {"KUBECONFIG": f"{self.dir}/kubeconfig", "POD_NAMESPACE": "paceline", "POD_NAME": f"r-{number}", "PATH": ""}
        words = [self.operator, "remediate", "--listen", "127.0.0.1:0", "--health", "127.0.0.1:0", "--lease", str(lease)]
        words += ["--drain", "0", "--image", "paceline:test"]
        words += certificate or ["--cert", f"{self.dir}/tls.crt", "--key", f"{self.dir}/tls.key"]
        words += ["--policy", f"{self.dir}/{policy}"] if policy else []
        words += more
        process = self.start(words, env=environment, stderr=open(log, "wb"))
        process.log = log
        listens(process)
        return process

    def leader(self, **more):
        process = self.remediator(**more)
        until("it is in charge", lambda: "leader, responsible for" in open(process.log).read())
        return process

    def page(self, process, path="/metrics"):
        connection = http.client.HTTPConnection("127.0.0.1", process.health, timeout=30)
        connection.request("GET", path)
        return connection.getresponse().read().decode()

    def kill(self, process):
        process.send_signal(signal.SIGKILL)
        process.wait()

    def call(self, method, path, body=None, kind="application/json"):
        host, port = self.address.split(":")
        context = ssl._create_unverified_context()
        connection = http.client.HTTPSConnection(host, int(port), context=context, timeout=30)
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": kind}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        text = answer.read()
        return answer.status, json.loads(text) if text.strip().startswith(b"{") else text

    def ask(self, *words, **more):
        status, answer = self.call(*words, **more)
        assert status < 300, (words[:2], status, answer)
        return answer

    def patch(self, path, body, kind="application/merge-patch+json"):
        return self.ask("PATCH", path, body, kind=kind)

    def trouble(self, **what):
        try:
            self.ask("POST", "/_test/trouble", what)
        except (OSError, http.client.HTTPException):
            assert "away_ms" in what  # The server closes this connection, too.

    def node(self, name, **spec):
        self.ask("POST", "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": spec})
        status = {"conditions": [{"type": "Ready", "status": "True"}], "nodeInfo": {"bootID": "boot-1"},
                  "capacity": {"nvidia.com/gpu": "8"}, "allocatable": {"nvidia.com/gpu": "8"}}
        self.patch(f"/api/v1/nodes/{name}/status", {"status": status})

    def pod(self, name, node, job="train", gpus=("nvidia.com/gpu", "8"), **spec):
        container = {"name": "c", "image": "i", "resources": {"limits": dict([gpus] if gpus else [])}}
        labels = {"batch.kubernetes.io/job-name": job}
        self.ask("POST", "/api/v1/namespaces/ml/pods", {
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": labels},
            "spec": {"nodeName": node, "containers": [container], "terminationGracePeriodSeconds": 1} | spec})
        status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        self.patch(f"/api/v1/namespaces/ml/pods/{name}/status", {"status": status})

    def budget(self, name, least, job="train"):
        selector = {"matchLabels": {"batch.kubernetes.io/job-name": job}}
        self.ask("POST", "/apis/policy/v1/namespaces/ml/poddisruptionbudgets", {
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": name},
            "spec": {"minAvailable": least, "selector": selector}})

    def job(self, count, name="train"):
        for index in range(count):
            self.pod(f"{name}-{index}", f"n{index}", name)

    def pod_token(self, pod):
        if pod not in self.tokens:
            bound = {"spec": {"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": pod}}}
            answer = self.ask("POST", "/api/v1/namespaces/ml/serviceaccounts/remediator/token", bound)
            self.tokens[pod] = answer["status"]["token"]
        return self.tokens[pod]

    def send(self, process, body, token, authority=None, host=None):
        context = ssl.create_default_context(cadata=authority, cafile=None if authority else f"{self.dir}/tls.crt")
        connection = http.client.HTTPSConnection("127.0.0.1", process.port, context=context, timeout=30)
        if host:
            link = socket.create_connection(("127.0.0.1", process.port), timeout=30)
            connection.sock = context.wrap_socket(link, server_hostname=host)
        headers = {"Content-Type": "application/json"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        connection.request("POST", "/verdicts", body if isinstance(body, bytes) else json.dumps(body), headers)
        answer = connection.getresponse()
        text = answer.read()
        return answer.status, json.loads(text) if text.startswith(b"{") else text.decode(), answer.headers

    def say(self, process, node, pod, status="firing", sender="train-0", finding="gpu-lost", **more):
        """Sends one verdict and returns the decision."""
        body = self.parcel(node, pod, status, finding, **more)

        def once():
            answered = self.send(process, body, self.pod_token(sender))
            return answered if answered[0] not in (429, 503) else None

        code, answer, _ = until("an answer", once)
        assert code == 200, (code, answer)
        return answer["decisions"][0]["decision"]

    def parcel(self, node, pod, status="firing", finding="gpu-lost", **more):
        """Returns an aggregator's notification about one verdict."""
        gpu = more.pop("gpu", "GPU-a")
        notice = {"key": "k", "status": status, "severity": "critical", "worst": "critical", "was": None, "job": "ml/train",
                  "finding": finding, "subject": f"gpu {gpu} on {node}/{pod}", "node": f"{node}/{pod}", "title": "t", "cause": "unknown",
                  "action": "a", "provenance": "live", "incident": 1, "times": 1, "raised_ms": 1, "unix_ms": 1, "unwatched": True} | more
        return {"version": 1, "unix_ms": 1, "notices": [notice]}

    def health(self, node):
        status, answer = self.call("GET", f"{HEALTHS}/{node}")
        return answer.get("status", {}) if status == 200 else {}

    def state(self, node, *states):
        return until(f"{node} is {states}: {self.health(node)}", lambda: self.health(node).get("state") in states and self.health(node))

    def see(self, node):
        return self.ask("GET", f"/api/v1/nodes/{node}")

    def is_cordoned(self, node):
        return self.see(node)["spec"].get("unschedulable") is True

    def bears(self, node):
        taints = [taint["key"] for taint in self.see(node)["spec"].get("taints") or []]
        return self.is_cordoned(node), "paceline.dev/unhealthy" in taints

    def words(self, node):
        return [entry["what"] for entry in self.health(node).get("history", [])]

    def pods(self):
        return sorted(pod["metadata"]["name"] for pod in self.ask("GET", "/api/v1/namespaces/ml/pods")["items"])

    def preflight(self, node, passes, ended=None):
        """Waits for the Job and ends it. `ended` is the termination state of a failed container; without it no
        container ran."""
        jobs = "/apis/batch/v1/namespaces/paceline/jobs"

        def running():
            return [job for job in self.ask("GET", jobs)["items"]
                    if job["metadata"]["annotations"]["paceline.dev/node"] == node and not job.get("status")]

        job = until("a preflight", running)[0]
        name = job["metadata"]["name"]
        if ended:
            pods = "/api/v1/namespaces/paceline/pods"
            self.ask("POST", pods, {"apiVersion": "v1", "kind": "Pod", "metadata": {
                "name": name, "labels": {"batch.kubernetes.io/job-name": name}}, "spec": job["spec"]["template"]["spec"]})
            state = {"name": "preflight", "state": {"terminated": ended}}
            self.patch(f"{pods}/{name}/status", {"status": {"phase": "Failed", "containerStatuses": [state]}})
        condition = {"type": "Complete" if passes else "Failed", "status": "True", "message": "as the test says"}
        self.patch(f"{jobs}/{name}/status", {"status": {"conditions": [condition]}})
        return job
