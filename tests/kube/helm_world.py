"""A cluster (tests/kube-api, over HTTPS, with permissions enforced) where the real helm installs the chart, and the
operator runs as in its Deployments: account, arguments, variables, files."""

import base64
import http.client
import json
import os
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

import yaml

from plain import serve
from tools import tools

SPACE = "watch-ns"
PATIENCE = 120  # s
KINDS = ["deployment", "service", "serviceaccount", "role", "rolebinding", "configmap", "secret", "poddisruptionbudget", "networkpolicy",
         "lease", "clusterrole", "clusterrolebinding", "mutatingwebhookconfiguration", "customresourcedefinition"]
HELM, KUBECTL = tools()


def until(what, ask):
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        found = ask()
        if found:
            return found
        time.sleep(0.1)
    raise AssertionError(f"in vain: {what}")


def key(one):
    return one["kind"], one["metadata"]["name"]


class Cluster:
    """A separate server, and its clients."""

    def __init__(self, program, folder):
        self.folder, self.config = folder, os.path.join(folder, "kubeconfig")
        self.process = subprocess.Popen([program, "--kubeconfig", self.config], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline().startswith("ready")
        with open(self.config) as file:
            self.access = yaml.safe_load(file)
        server = self.access["clusters"][0]["cluster"]
        authority = base64.b64decode(server["certificate-authority-data"]).decode()
        self.people = os.path.join(folder, "people.kubeconfig")
        plain = json.loads(json.dumps(self.access))
        plain["clusters"][0]["cluster"] = {
            "server": serve(server["server"].removeprefix("https://"), authority, self.access["users"][0]["user"]["token"])}
        with open(self.people, "w") as file:
            json.dump(plain, file)
        self.env = os.environ | {"KUBECONFIG": self.people, "HELM_CACHE_HOME": folder, "HELM_CONFIG_HOME": folder,
                                 "HELM_DATA_HOME": folder}

    def run(self, *words, values=None, fails=False):
        more = []
        if values is not None:
            with open(os.path.join(self.folder, "values.yaml"), "w") as file:
                yaml.safe_dump(values, file)
            more = ["--values", file.name]
        if os.environ.get("PACELINE_VERBOSE"):
            print(f"{time.monotonic():.1f}", *words, file=sys.stderr)
        done = subprocess.run([*words, *more], capture_output=True, text=True, env=self.env, timeout=PATIENCE, check=False)
        assert (done.returncode != 0) == fails, f"{words}: {done.returncode} {done.stdout} {done.stderr}"
        return done.stdout if not fails else done.stderr

    def begin(self, *words):
        """Starts a command that depends on another action."""
        return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=self.env)

    def helm(self, *words, **more):
        return self.run(HELM, *words, "--namespace", SPACE, **more)

    def kubectl(self, *words, **more):
        return self.run(KUBECTL, *words, **more)

    def get(self, kind, name=""):
        words = ["get", kind, *([name] if name else []), "--namespace", SPACE, "--output", "json", "--ignore-not-found"]
        said = self.kubectl(*words)
        return json.loads(said) if said.strip() else None

    def everything(self):
        """Returns all objects of the kinds that the chart or the operator creates, by (kind, name)."""
        words = ["get", ",".join(KINDS), "--namespace", SPACE, "--output", "json", "--ignore-not-found"]
        found = json.loads(self.kubectl(*words) or '{"items": []}')["items"]
        return {key(one): one for one in found if one["metadata"].get("labels", {}).get("owner") != "helm"}

    def ask(self, path, body=None, token=None, method=None):
        """Sends a request to the server: as the administrator, or with another token. A PATCH is a merge patch."""
        cluster = self.access["clusters"][0]["cluster"]
        context = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        headers = {"Authorization": f"Bearer {token or self.access['users'][0]['user']['token']}", "Content-Type": kind}
        data = None if body is None else json.dumps(body).encode()
        ask = urllib.request.Request(cluster["server"] + path, data, headers, method=method)
        with urllib.request.urlopen(ask, context=context, timeout=PATIENCE) as answer:
            return json.load(answer)

    def get_at(self, path):
        """Returns the object, or an empty one."""
        try:
            return self.ask(path)
        except urllib.error.HTTPError as problem:
            assert problem.code == 404, problem
            return {}

    def account(self, name):
        """Returns a token of a ServiceAccount."""
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        return self.ask(f"/api/v1/namespaces/{SPACE}/serviceaccounts/{name}/token", request)["status"]["token"]

    def config_of(self, token):
        access = json.loads(json.dumps(self.access))
        access["users"][0]["user"] = {"token": token}
        place = os.path.join(self.folder, f"{token[:8]}.kubeconfig")
        with open(place, "w") as file:
            json.dump(access, file)
        return place

    def end(self):
        self.process.terminate()
        self.process.wait()


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def serve_at(cluster, part, *places):
    """Sets the endpoints of a part's Service, which are addresses and ports."""
    name, subsets = f"paceline-{part}", [{"addresses": [{"ip": host}], "ports": [{"name": "https", "port": port, "protocol": "TCP"}]}
                                         for host, port in places]
    endpoints = {"apiVersion": "v1", "kind": "Endpoints", "metadata": {"name": name, "namespace": SPACE}, "subsets": subsets}
    path = f"/api/v1/namespaces/{SPACE}/endpoints"
    if cluster.get_at(f"{path}/{name}"):
        cluster.ask(f"{path}/{name}", {"subsets": subsets}, method="PATCH")
    else:
        cluster.ask(path, endpoints)


class Mounts:
    """A container's files from Secrets and ConfigMaps, kept in sync with the server."""

    def __init__(self, cluster, name, pod):
        self.cluster, self.folder = cluster, os.path.join(cluster.folder, name)
        volumes = {volume["name"]: volume for volume in pod.get("volumes", [])}
        mounts = pod["containers"][0].get("volumeMounts", [])
        self.volumes = {mount["mountPath"]: volumes[mount["name"]] for mount in mounts}
        for place in self.volumes:
            os.makedirs(self.folder + place, exist_ok=True)
        self.has_begun = False
        self.follow()
        self.has_begun = True
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.keep, daemon=True)
        self.thread.start()

    def place(self, path):
        assert os.path.dirname(path) in self.volumes, f"nothing is mounted at {path}"
        return self.folder + path

    def keep(self):
        while not self.over.wait(0.5):
            self.follow()

    def follow(self):
        for place, volume in self.volumes.items():
            kind, source = next((kind, volume[kind]) for kind in ("secret", "configMap") if kind in volume)
            name = source.get("secretName") or source["name"]
            try:
                data = self.cluster.ask(f"/api/v1/namespaces/{SPACE}/{kind.lower()}s/{name}").get("data") or {}
            except urllib.error.HTTPError as problem:
                assert problem.code == 404 and (source.get("optional") or self.has_begun), f"the pod would wait for {name}"
                if self.has_begun:
                    continue  # A running pod keeps its files.
                data = {}
            chosen = source.get("items") or [{"key": key, "path": key} for key in data]
            for item in (item for item in chosen if item["key"] in data):
                text = data[item["key"]]
                one = os.path.join(self.folder + place, item["path"])
                with open(one + ".new", "wb") as file:
                    file.write(base64.b64decode(text) if kind == "secret" else text.encode())
                os.replace(one + ".new", one)

    def end(self):
        self.over.set()
        self.thread.join()


class Operator:
    """One part, run as in its Deployment, with local listen addresses. `number`: the replica."""

    def __init__(self, cluster, program, part, token, listen=None, number=0):
        name = f"paceline-{part}"
        pod = cluster.get("deployment", name)["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        self.place = host, self.port = listen or ("127.0.0.1", free_port())
        self.health, self.part = free_port(), part
        self.mounts = Mounts(cluster, f"{part}-{number}", pod)
        args = []
        for arg in container["args"]:
            flag, _, value = arg.partition("=")
            if flag == "--listen":
                value = f"{host}:{self.port}"
            elif flag == "--health":
                value = f"127.0.0.1:{self.health}"
            elif value.startswith("/"):
                value = self.mounts.place(value)
            args.append(f"{flag}={value}" if value else flag)
        env = {"PATH": os.environ["PATH"], "KUBECONFIG": cluster.config_of(token)}
        for entry in container["env"]:
            path = entry.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
            env[entry["name"]] = {"metadata.namespace": SPACE, "metadata.name": f"{name}-{number}", None: entry.get("value")}[path]
        self.log = os.path.join(cluster.folder, f"{part}-{number}.log")
        with open(self.log, "w") as log:
            self.process = subprocess.Popen([program, *args], env=env, stdout=log, stderr=log)
        if not number:
            serve_at(cluster, part, self.place)
        try:
            until(f"{part} is ready", self.is_ready)
        except AssertionError as problem:
            raise AssertionError(f"{problem}: {self.said()}") from None

    def leads(self):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.health}/metrics", timeout=5) as answer:
            return f"paceline_{self.part}_leader 1" in answer.read().decode().splitlines()

    def is_ready(self):
        assert self.process.poll() is None, f"{self.part} has ended: {self.said()}"
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.health}/readyz", timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False

    def tell(self, authority, bearer, parcel):
        """Sends a POST to /verdicts over HTTPS with the Service's name. Returns the status code."""
        context = ssl.create_default_context(cadata=authority)
        with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE) as link:
            with context.wrap_socket(link, server_hostname=f"paceline-{self.part}.{SPACE}.svc") as sealed:
                visit = http.client.HTTPConnection("service")
                visit.sock = sealed
                visit.request("POST", "/verdicts", json.dumps(parcel), {
                    "Authorization": f"Bearer {bearer}", "Content-Type": "application/json"})
                answer = visit.getresponse()
                self.last = answer.status, answer.read()
                return answer.status

    def said(self):
        with open(self.log) as file:
            return file.read()

    def end(self):
        self.mounts.end()
        self.process.terminate()
        assert self.process.wait(timeout=PATIENCE) == 0, self.said()


def put(cluster, one):
    place = os.path.join(cluster.folder, "object.json")
    with open(place, "w") as file:
        json.dump(one, file)
    cluster.kubectl("create", "--filename", place)
