#!/usr/bin/env python3
"""An API server that is away, for both parts at once: `outage.py KUBE-API PACELINE-OPERATOR [--seconds 60] [stopped] [killed]`.

Two injectors and two remediators run in one cluster, a node is being drained and pods wait for injection. Then the
server's process is stopped (connections hang) or killed (they are refused), and resumes, or restarts with its state.
Meanwhile the injectors serve another API server of the same cluster; afterwards one replica of each part leads,
unfinished work is finished, and nothing was done twice.
"""

import argparse
import base64
import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time

from remediator_world import PATIENCE, QUICK, World, listens, until
from rights import rights

NAME = "paceline-injector"
PODS = "/api/v1/namespaces/ml/pods"
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
# Limits above which a process wastes CPU or requests on an API server that is not available.
MOST_CPU = 0.10
MOST_ASKED = 10.0


class Cluster(World):
    """Both parts, and a server with persistent state."""

    def begin(self, nodes, policy):
        self.serving = ["--keep", os.path.join(self.dir, "keep")]
        super().begin(nodes, policy)
        self.server = self.processes[0]
        self.ask("POST", "/api/v1/namespaces/paceline/serviceaccounts", {"metadata": {"name": "injector"}})
        self.grant("injector", rights("injector"))
        config = json.load(open(self.admin))
        path = "/api/v1/namespaces/paceline/serviceaccounts/injector/token"
        config["users"][0]["user"]["token"] = self.ask("POST", path, {"spec": {}})["status"]["token"]
        self.write("injector", json.dumps(config))
        service = {"name": NAME, "namespace": "paceline", "path": "/inject", "port": 443}
        never = {"key": "paceline.dev/inject", "operator": "NotIn", "values": ["false"]}
        self.ask("POST", WEBHOOKS, {"metadata": {"name": NAME}, "webhooks": [{
            "name": "inject.paceline.dev", "admissionReviewVersions": ["v1"], "sideEffects": "None", "timeoutSeconds": 5,
            "failurePolicy": "Fail", "reinvocationPolicy": "IfNeeded", "clientConfig": {"service": service},
            "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}],
            "objectSelector": {"matchExpressions": [never]}}]})

    def injector(self, lease):
        number = len(self.processes)
        log = os.path.join(self.dir, f"log-{number}")
        environment = {"KUBECONFIG": f"{self.dir}/injector", "POD_NAME": f"i-{number}", "PATH": ""}
        words = [self.operator, "inject", "--listen", "127.0.0.1:0", "--health", "127.0.0.1:0", "--drain", "0", "--secrets",
                 "--self-signed", f"{NAME}-own", "--service", NAME, "--webhook", NAME, "--lease", str(lease)]
        process = self.start(words, env=environment, stderr=open(log, "wb"))
        process.log = log
        listens(process)
        until("it has a certificate", lambda: self.page(process, "/readyz") == "ok\n")
        return process

    def injected(self, name):
        """Creates a pod, and waits for its job's Secret."""
        pod = self.ask("POST", PODS, new_pod(name))
        assert "paceline.dev/injected" in pod["metadata"]["annotations"], pod
        path = f"/api/v1/namespaces/ml/secrets/paceline-{name}"
        return until(f"the Secret of {name}", lambda: self.call("GET", path)[0] == 200 and self.ask("GET", path))

    def audit(self):
        return json.loads(self.ask("GET", "/_test/audit"))


def new_pod(name):
    return {"metadata": {"name": name, "labels": {"paceline.dev/inject": "true"}},
            "spec": {"containers": [{"name": "t", "image": "i", "command": ["train"]}]}}


def admit(port, authority):
    """Sends a request as another API server of the cluster would. Returns the duration in seconds."""
    request = {"uid": "u", "operation": "CREATE", "namespace": "ml", "resource": {"group": "", "version": "v1", "resource": "pods"},
               "object": new_pod("elsewhere")}
    body = json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request})
    began = time.monotonic()
    context = ssl.create_default_context(cadata=authority)
    raw = socket.create_connection(("127.0.0.1", port), timeout=30)
    connection = http.client.HTTPConnection("127.0.0.1")
    connection.sock = context.wrap_socket(raw, server_hostname=f"{NAME}.paceline.svc")
    connection.request("POST", "/inject", body, {"Content-Type": "application/json"})
    answer = json.load(connection.getresponse())["response"]
    connection.close()
    assert answer["allowed"] and answer["patch"], answer
    return time.monotonic() - began


class Refusing:
    """Replaces a dead server. It closes all connections and counts them."""

    def __init__(self, port):
        self.count = 0
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        until("the port is free", lambda: self.bound(port))
        self.socket.listen(128)
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def bound(self, port):
        try:
            self.socket.bind(("127.0.0.1", port))
            return True
        except OSError:
            return False

    def run(self):
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            self.count += 1
            # Sends a reset, as a closed port does. A FIN would keep the port in use for a while.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            connection.close()

    def end(self):
        self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
        self.thread.join()


def cpu(process):
    """Returns the CPU seconds of all threads of the process."""
    total = 0
    for task in os.listdir(f"/proc/{process.pid}/task"):
        total += int(open(f"/proc/{process.pid}/task/{task}/schedstat").read().split()[0])
    return total / 1e9


def leaders(world, processes, part):
    """Returns the number of leaders. Replicas are asked one after the other, so a change in between is checked
    again."""
    counts = []
    while not counts or (counts[-1] > 1 and len(counts) < 3):
        lines = [line for process in processes for line in world.page(process).splitlines()]
        counts.append(sum(line == f"paceline_{part}_leader 1" for line in lines))
    return min(counts)


def away(world, way, seconds, injectors, remediators):
    """Runs the outage itself. Checks admissions, and the number of connections while the server is dead."""
    authority = world.ask("GET", f"{WEBHOOKS}/{NAME}")["webhooks"][0]["clientConfig"]["caBundle"]
    authority = base64.b64decode(authority).decode()
    everybody = injectors + remediators
    took = {process: cpu(process) for process in everybody}
    refusing = None
    if way == "stopped":
        world.server.send_signal(signal.SIGSTOP)
    else:
        world.kill(world.server)
        refusing = Refusing(int(world.address.split(":")[1]))
    began, times, most, heard = time.monotonic(), [], {"injector": 0, "remediator": 0}, []
    token = world.tokens["train-0"]

    def tell():
        # A verdict in the meantime cannot be recorded, so no replica may confirm it.
        for process in remediators:
            code, answer, _ = world.send(process, world.parcel("n2", "train-2"), token)
            heard.append((code, answer, time.monotonic()))

    telling = threading.Thread(target=tell)
    telling.start()
    while time.monotonic() - began < seconds:
        for process in injectors:
            assert world.page(process, "/readyz") == "ok\n"
            times.append(admit(process.port, authority))
        for part, processes in (("injector", injectors), ("remediator", remediators)):
            most[part] = max(most[part], leaders(world, processes, part))
        time.sleep(0.2)
    lasted = time.monotonic() - began
    shares = [(cpu(process) - took[process]) / lasted for process in everybody]
    asked, back = refusing.count if refusing else None, time.monotonic()
    if way == "stopped":
        world.server.send_signal(signal.SIGCONT)
    else:
        refusing.end()
        words = [world.kube_api, "--kubeconfig", world.admin, "--listen", world.address, *world.serving]
        world.server = world.start(words, stdout=subprocess.PIPE)
        assert b"ready" in world.server.stdout.readline()
    telling.join(PATIENCE)
    assert all(process.poll() is None for process in everybody)
    assert max(most.values()) <= 1, most
    # A write that hung may finish when the server returns.
    assert len(heard) == 2 and all(code == 503 or (code == 200 and at > back) for code, _, at in heard), (heard, back)
    # Allows CPU for the admissions above, which take about 2 ms each with a handshake, and many times that in a debug
    # build.
    assert max(shares[2:]) < MOST_CPU, shares
    if asked is not None:
        assert asked / lasted < MOST_ASKED * len(everybody), (asked, lasted)
    times.sort()
    print(f"{way} for {lasted:.0f} s: {len(times)} admissions, the slowest {1e3 * times[-1]:.0f} ms; CPU "
          + ", ".join(f"{100 * share:.1f} %" for share in shares)
          + (f"; {asked} connections tried" if asked is not None else "") + "")
    return lasted


def nothing_twice(world, before):
    """Checks that each object was written only once by both parts."""
    events = world.ask("GET", "/api/v1/events")["items"]
    told = [(event["involvedObject"]["kind"], event["involvedObject"]["name"], event["reason"], event["message"]) for event in events]
    assert len(told) == len(set(told)), sorted(told)
    words = world.words("n1")
    assert len(words) == len(set(words)) and {"raised", "evict", "drained"} <= set(words), words
    secret = world.ask("GET", "/api/v1/namespaces/ml/secrets/paceline-before")
    assert (secret["metadata"]["uid"], secret["data"]) == (before["metadata"]["uid"], before["data"]), "the key is the same"
    names = [one["metadata"]["name"] for one in world.ask("GET", "/api/v1/namespaces/ml/secrets")["items"]]
    assert sorted(names) == ["paceline-after", "paceline-before"], names
    evictions = [line for line in world.audit() if line["resource"] == "/pods/eviction" and line["code"] == 201]
    assert [(line["name"], line["count"]) for line in evictions] == [("train-1", 1)], evictions


def outage(world, way, seconds):
    lease = max(2, min(15, int(seconds / 3)))
    injectors = [world.injector(lease), world.injector(lease)]
    subsets = [{"addresses": [{"ip": "127.0.0.1"}], "ports": [{"port": process.port}]} for process in injectors]
    world.ask("POST", "/api/v1/namespaces/paceline/endpoints", {"metadata": {"name": NAME}, "subsets": subsets})
    world.job(4)
    world.budget("quorum", 4)
    remediators = [world.leader(lease=lease), world.remediator(lease=lease)]
    before = world.injected("before")
    world.say(remediators[0], "n1", "train-1")
    world.state("n1", "Draining")
    until("it is cordoned", lambda: world.bears("n1") == (True, True))
    until("the budget forbids it", lambda: "quorum" in world.health("n1").get("reason", ""))
    away(world, way, seconds, injectors, remediators)
    back = time.monotonic()
    asked = sum(line["count"] for line in world.audit() if "serviceaccount" in line["user"])
    for part, processes in (("injector", injectors), ("remediator", remediators)):
        until(f"one {part} is in charge", lambda: leaders(world, processes, part) == 1)
        print(f"  {part} in charge after {time.monotonic() - back:.1f} s")
    until("it goes on", lambda: "quorum" in world.health("n1").get("reason", "") and world.health("n1")["state"] == "Draining")
    world.injected("after")
    leader = next(process for process in remediators if leaders(world, [process], "remediator"))
    assert world.say(leader, "n2", "train-2").startswith("Flagged"), "what nobody took is told again: a node of four is out already"
    world.ask("DELETE", "/apis/policy/v1/namespaces/ml/poddisruptionbudgets/quorum")
    world.state("n1", "Drained")
    # Waits for longer than a lease, within which a second leader would appear.
    end = time.monotonic() + lease + 1
    while time.monotonic() < end:
        assert leaders(world, injectors, "injector") <= 1 and leaders(world, remediators, "remediator") <= 1
        time.sleep(0.1)
    after = time.monotonic() - back
    rate = (sum(line["count"] for line in world.audit() if "serviceaccount" in line["user"]) - asked) / after
    assert rate < MOST_ASKED * 4, f"{rate} questions a second"
    nothing_twice(world, before)
    print(f"  {rate:.1f} questions a second of all four in the {after:.0f} s after that")


def main():
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("binaries", nargs=2, metavar="BINARY", help="kube-api, paceline-operator")
    options.add_argument("--seconds", type=float, default=5)
    options.add_argument("ways", nargs="*", metavar="WAY", help="stopped, killed; both when none is named")
    options = options.parse_args()
    failed = []
    for way in options.ways or ["stopped", "killed"]:
        world = Cluster(options.binaries, nodes=4, policy=QUICK)
        try:
            outage(world, way, options.seconds)
        except BaseException as error:
            failed.append(way)
            print(f"{way}: FAILED: {error!r}")
            for process in world.processes:
                if hasattr(process, "log"):
                    print(process.log, open(process.log).read()[-2000:])
            if not isinstance(error, Exception):
                raise
        finally:
            world.end()
    sys.exit(f"failed: {failed}" if failed else 0)


if __name__ == "__main__":
    main()
