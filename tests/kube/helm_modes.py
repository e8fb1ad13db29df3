"""`helm upgrade` changes the source of certificates, and `helm rollback` changes it back, while pods are created all
the time: the old replica holds the Lease and ends only when the next one is ready (maxUnavailable 0), the API server
trusts every serving replica, and the caBundle is never empty."""

import base64
import os
import subprocess
import tempfile
import threading
import time
import urllib.error

from helm import CHART
from helm_world import SPACE, Cluster, Operator, put, serve_at, until

HOOK = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/paceline-injector"
PARTS = ("injector", "remediator")
ANY = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def openssl(folder, *words):
    subprocess.run(["openssl", *words], check=True, capture_output=True, cwd=folder)


def read(folder, name):
    with open(os.path.join(folder, name)) as file:
        return file.read()


def certificates(folder):
    """The site's CA, and a certificate for each part: Secrets as created by users, or by cert-manager."""
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    openssl(folder, "req", "-x509", *curve, "-days", "2", "-subj", "/CN=the site's", "-addext", "basicConstraints=critical,CA:TRUE",
            "-addext", "keyUsage=keyCertSign", "-keyout", "ca.key", "-out", "ca.crt")
    made = {}
    for part in PARTS:
        host = f"paceline-{part}.{SPACE}.svc"
        openssl(folder, "req", *curve, "-subj", f"/CN={host}", "-keyout", f"{part}.key", "-out", f"{part}.csr")
        with open(os.path.join(folder, "more"), "w") as file:
            file.write(f"subjectAltName=DNS:{host}\nextendedKeyUsage=serverAuth\n")
        openssl(folder, "x509", "-req", "-in", f"{part}.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2",
                "-extfile", "more", "-out", f"{part}.crt")
        texts = {"tls.crt": f"{part}.crt", "tls.key": f"{part}.key", "ca.crt": "ca.crt"}
        made[part] = {name: base64.b64encode(read(folder, file).encode()).decode() for name, file in texts.items()}
    return read(folder, "ca.crt"), made


def blocks(text):
    """Returns the certificates of a PEM text."""
    return {"".join(one.split("-----END")[0].split()) for one in text.split("BEGIN CERTIFICATE-----")[1:]}


def trusted(cluster):
    coded = cluster.ask(HOOK)["webhooks"][0]["clientConfig"].get("caBundle") or ""
    return blocks(base64.b64decode(coded).decode())


def told(cluster):
    return blocks((cluster.ask(f"/api/v1/namespaces/{SPACE}/configmaps/paceline-remediator-ca").get("data") or {}).get("ca.crt", ""))


class Pods:
    """Creates pods all the time; failurePolicy is Fail, so a pod that is not injected is not created."""

    def __init__(self, cluster):
        self.cluster, self.over, self.made, self.problems = cluster, threading.Event(), 0, []
        self.thread = threading.Thread(target=self.make, daemon=True)
        self.thread.start()

    def make(self):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "labels": {"paceline.dev/inject": "true"}},
               "spec": {"containers": [{"name": "t", "image": "t:1", "command": ["train"]}]}}
        while not self.over.is_set():
            try:
                made = self.cluster.ask("/api/v1/namespaces/team/pods?dryRun=All", pod)
                assert "initContainers" in made["spec"], "it is not injected"
                assert trusted(self.cluster), "the caBundle is gone"
                self.made += 1
            except urllib.error.HTTPError as problem:
                self.problems.append(problem.read().decode())
            except AssertionError as problem:
                self.problems.append(str(problem))
            time.sleep(0.05)

    def end(self):
        self.over.set()
        self.thread.join()
        assert self.made > 20 and not self.problems, (self.made, len(self.problems), self.problems[:2])


def follow(cluster, program, tokens, before, number, started):
    """Follows a rollout of both parts. The next replica must become ready while the old one leads, and then lead
    itself."""
    after = {}
    for part in PARTS:
        until(f"the {part} of before leads", before[part].leads)
        after[part] = Operator(cluster, program, part, tokens[part], number=number)
        started.append(after[part])
        lead = before[part].leads(), after[part].leads()
        assert lead == (True, False), f"the {part} of before still leads: {lead} {after[part].said()}"
        # Serves with both replicas for a while, and then only with the new one.
        for places in ([before[part].place, after[part].place], [after[part].place]):
            serve_at(cluster, part, *places)
            time.sleep(1)
        before[part].end()
        until(f"the new {part} leads", after[part].leads)
    return after


def check(kube_api, program, folder, mode):
    """Switches from this mode to `self`, and back."""
    cluster = Cluster(kube_api, folder)
    running, started, pods = {}, [], None
    try:
        ca, secrets = certificates(folder)
        given = {"injectorSecret": "site-injector", "remediatorSecret": "site-remediator", "caBundle": ca}
        names = {"given": "site-{}", "cert-manager": "paceline-{}-tls"}[mode]
        for plural, kind in (("issuers", "Issuer"), ("certificates", "Certificate")) if mode == "cert-manager" else ():
            schema = {"type": "object", "properties": {"spec": ANY, "status": ANY}}
            put(cluster, {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
                          "metadata": {"name": f"{plural}.cert-manager.io"}, "spec": {
                              "group": "cert-manager.io", "scope": "Namespaced", "names": {"kind": kind, "plural": plural},
                              "versions": [{"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}]}})
        values = {"injector": {"webhook": {"failurePolicy": "Fail"}}}
        cluster.helm("install", "paceline", CHART, "--create-namespace", values=values | {"certificates": {"mode": mode, "given": given}})
        for part in PARTS:
            put(cluster, {"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls", "data": secrets[part],
                          "metadata": {"name": names.format(part), "namespace": SPACE}})
        put(cluster, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team", "labels": {
            "paceline.dev/inject": "true", "kubernetes.io/metadata.name": "team"}}})
        tokens = {part: cluster.account(f"paceline-{part}") for part in PARTS}
        for part in PARTS:
            running[part] = Operator(cluster, program, part, tokens[part])
            started.append(running[part])
        site = blocks(ca)
        until("the site's authority is trusted", lambda: trusted(cluster) == site and told(cluster) == site)
        pods = Pods(cluster)
        cluster.helm("upgrade", "paceline", CHART, values=values | {"certificates": {"mode": "self"}})
        running = follow(cluster, program, tokens, running, 1, started)
        for all in (trusted(cluster), told(cluster)):
            assert all > site and len(all) == 2, "that of before stays trusted for a while"
        cluster.helm("rollback", "paceline", "1")
        running = follow(cluster, program, tokens, running, 2, started)
        assert trusted(cluster) >= site and told(cluster) >= site
        pods.end()
        print(f"{mode} to self and back: {pods.made} pods were made meanwhile, each was injected")
    finally:
        if pods:
            pods.over.set()
        for one in started:
            one.mounts.end()
            one.process.kill()
        cluster.end()


def check_modes(kube_api, program):
    for mode in ("given", "cert-manager"):
        with tempfile.TemporaryDirectory() as folder:
            check(kube_api, program, folder, mode)
