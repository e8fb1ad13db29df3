#!/usr/bin/env python3
"""The chart installed by the real helm on the API server of tests/kube-api: `helm_cluster.py KUBE-API PACELINE-OPERATOR`.

Install, upgrade, rollback and uninstall; and the operator itself, with the chart's account, arguments and variables:
none of its requests may be denied. The server counts requests in an audit.
"""

import base64
import json
import subprocess
import sys
import tempfile

from helm import CA, CHART, VERSIONS, rendered, valid
from helm_modes import check_modes
from helm_world import HELM, PATIENCE, SPACE, Cluster, Operator, key, put, until

# Permissions that are not used here. The Lease, the ConfigMap and the Secret exist already, and would be created only
# if they were deleted. `get` for listed or watched objects is used only after conflicts.
UNUSED = {"injector": {("create", "coordination.k8s.io/leases")}, "remediator": {
    ("create", "coordination.k8s.io/leases"), ("create", "/configmaps"), ("create", "/secrets"), ("get", "/nodes"),
    ("get", "paceline.dev/nodehealths")}}
WRITTEN = "secrets,configmaps,events,leases.coordination.k8s.io,jobs.batch,pods,nodes"
HOOK = ("MutatingWebhookConfiguration", "paceline-injector")


def check_there(cluster, values):
    """Checks that the rendered objects exist, with their rendered permissions."""
    live = cluster.everything()
    for one in rendered(values, "--no-hooks"):
        assert key(one) in live, f"{key(one)} is not there"
        for field in ("rules", "roleRef"):
            assert live[key(one)].get(field) == one.get(field), f"{key(one)} has another {field}"
    return live


def trusted(live):
    return live[HOOK]["webhooks"][0]["clientConfig"].get("caBundle")


def uninstalled(cluster, program):
    """Runs `helm uninstall` and the Job that it waits for, since this API server does not run Jobs."""
    helm = cluster.begin(HELM, "uninstall", "paceline", "--namespace", SPACE)
    name, place = "paceline-release", f"/apis/batch/v1/namespaces/{SPACE}/jobs/paceline-release"
    job = until("the Job", lambda: helm.poll() is None and cluster.get_at(place))
    (container,) = job["spec"]["template"]["spec"]["containers"]
    env = {"PATH": "", "KUBECONFIG": cluster.config_of(cluster.account(name)), "POD_NAMESPACE": SPACE}
    words = [program, *container["args"]]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    conditions = [{"type": kind, "status": "True"} for kind in ("SuccessCriteriaMet", "Complete")]
    cluster.ask(f"{place}/status", {"status": {"succeeded": 1, "conditions": conditions}}, method="PATCH")
    said, _ = helm.communicate(timeout=PATIENCE)
    assert helm.returncode == 0, said
    refused = [line for line in cluster.ask("/_test/audit") if line["user"].endswith(f":{name}") and line["code"] == 403]
    assert not refused, refused
    assert not cluster.get_at(place) and not cluster.get_at(f"/api/v1/namespaces/{SPACE}/serviceaccounts/{name}")
    return done.stderr


def check_end(cluster, program):
    """Checks the uninstallation. The parts' changes to the cluster must be removed while the parts run, and nodes out
    of service must stay cordoned."""
    node = json.loads(cluster.kubectl("get", "node", "n1", "-o", "json"))
    assert node["spec"]["unschedulable"] and node["spec"]["taints"], node["spec"]
    said = uninstalled(cluster, program)
    node = json.loads(cluster.kubectl("get", "node", "n1", "-o", "json"))
    assert node["spec"].get("unschedulable") and not node["spec"].get("taints"), node["spec"]
    ours = [word for field in ("labels", "annotations") for word in node["metadata"].get(field, {}) if "paceline.dev" in word]
    assert not ours and "PacelineFault" not in [one["type"] for one in node["status"]["conditions"]], node
    assert "n1 has no marks of paceline any more; it stays cordoned" in said, said
    assert not cluster.get_at("/api/v1/namespaces/team/configmaps/paceline-remediator-ca")
    assert not cluster.kubectl("get", "jobs", "-n", SPACE, "-o", "name").strip()
    assert set(cluster.everything()) == {("CustomResourceDefinition", "nodehealths.paceline.dev")}
    # The reason why the node is out of service must stay available.
    assert "n1" in cluster.kubectl("get", "nodehealths", "-o", "name")


def check_life(cluster, program):
    """Tests install, upgrade, rollback and uninstall."""
    cluster.helm("install", "paceline", CHART, "--create-namespace", values={})
    check_there(cluster, {})
    patch = [{"op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": base64.b64encode(CA.encode()).decode()}]
    cluster.kubectl("patch", *HOOK, "--type=json", f"--patch={json.dumps(patch)}")

    ours = trusted(cluster.everything())
    assert ours
    acts = {"remediator": {"mode": "act"}, "injector": {"replicas": 3, "webhook": {"timeoutSeconds": 2}}}
    cluster.helm("upgrade", "paceline", CHART, values=acts)
    live = check_there(cluster, acts)
    assert live["Deployment", "paceline-injector"]["spec"]["replicas"] == 3
    assert live[HOOK]["webhooks"][0]["timeoutSeconds"] == 2
    assert trusted(live) == ours, "an upgrade took away what the operator had written"
    assert "act" in live["ConfigMap", "paceline-remediator-policy"]["data"]["policy.toml"]
    wrong = cluster.helm("upgrade", "paceline", CHART, values={"remediator": {"mode": "enforce"}}, fails=True)
    assert "/remediator/mode" in wrong, wrong
    cluster.helm("rollback", "paceline", "1")
    assert trusted(check_there(cluster, {})) == ours, "a rollback took away what the operator had written"
    cluster.helm("upgrade", "paceline", CHART, values={"remediator": {"enabled": False}})
    left = {name for _, name in check_there(cluster, {"remediator": {"enabled": False}})}
    assert not [name for name in left if "remediator" in name], left
    uninstalled(cluster, program)
    left = set(cluster.everything())
    assert left == {("CustomResourceDefinition", "nodehealths.paceline.dev")}, left
    # Installs it again, which reuses the remaining CRD.
    cluster.helm("install", "paceline", CHART, values={})
    check_there(cluster, {})


def check_rights(cluster):
    """Checks the most important permissions on the server."""
    injector, remediator = cluster.account("paceline-injector"), cluster.account("paceline-remediator")

    def may(token, verb, group, resource, namespace="", name=""):
        resource, _, sub = resource.partition("/")
        asked = {"verb": verb, "group": group, "resource": resource, "subresource": sub, "namespace": namespace, "name": name}
        review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": {"resourceAttributes": asked}}
        return cluster.ask("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review, token)["status"]["allowed"]

    hooks = ("admissionregistration.k8s.io", "mutatingwebhookconfigurations", "")
    yes = [(injector, "create", "", "secrets", "elsewhere"), (injector, "get", "", "secrets", SPACE, "paceline-injector-own"),
           (injector, "patch", *hooks, "paceline-injector"), (remediator, "create", "authentication.k8s.io", "tokenreviews"),
           (remediator, "list", "", "nodes"), (remediator, "update", "paceline.dev", "nodehealths/status", "", "n1")]
    no = [(injector, "get", "", "secrets", "elsewhere", "paceline-train"), (injector, "list", "", "secrets", SPACE),
          (injector, "get", "", "secrets", SPACE, "paceline-remediator-own"), (injector, "patch", *hooks, "somebody-elses"),
          (injector, "delete", "", "pods", "elsewhere", "p"), (injector, "get", "", "nodes", "", "n1"),
          (remediator, "get", "", "secrets", "elsewhere", "s"), (remediator, "get", "", "secrets", SPACE, "paceline-injector-own"),
          (remediator, "list", "", "secrets", SPACE), (remediator, "delete", "", "pods", "elsewhere", "p"),
          (remediator, "delete", "", "nodes", "", "n1")]
    acting = [(remediator, "patch", "", "nodes", "", "n1"), (remediator, "patch", "", "nodes/status", "", "n1"),
              (remediator, "create", "", "pods/eviction", "elsewhere", "p"), (remediator, "create", "batch", "jobs", SPACE)]
    for mode, granted, refused in (("act", yes + acting, no), ("observe", yes, no + acting)):
        cluster.helm("upgrade", "paceline", CHART, values={"remediator": {"mode": mode}})
        for wanted, asked in ((True, granted), (False, refused)):
            for token, *words in asked:
                assert may(token, *words) == wanted, f"with mode {mode} {words} is not {wanted}"
    return injector, remediator


def pod(name, namespace, job):
    return {"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": namespace, "labels": {
                "paceline.dev/inject": "true", "batch.kubernetes.io/job-name": job["metadata"]["name"]},
                "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "controller": True, **job["metadata"]}]},
            "spec": {"nodeName": "n1", "restartPolicy": "Never", "containers": [{"name": "t", "image": "t:1", "command": ["train"]}]}}


def check_injector(cluster, program, token):
    """A pod must be injected through the API server, its job must get a key, and the owner of a missed pod must get an
    Event."""
    operator = Operator(cluster, program, "injector", token)
    until("the API server is told whom to trust", lambda: trusted(cluster.everything()))
    for name, labels in (("team", {"paceline.dev/inject": "true"}), ("other", {})):
        put(cluster, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels | {
            "kubernetes.io/metadata.name": name}}})
        put(cluster, {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train", "namespace": name}, "spec": {}})
        said = json.loads(cluster.kubectl("get", "job", "train", "-n", name, "-o", "json"))
        job = {"metadata": {word: said["metadata"][word] for word in ("name", "uid")}}
        put(cluster, pod("train-0", name, job))
    found = json.loads(cluster.kubectl("get", "pod", "train-0", "-n", "team", "-o", "json"))
    assert [one["name"] for one in found["spec"].get("initContainers", [])] == ["paceline-init", "paceline"], operator.said()
    image = cluster.get("deployment", "paceline-injector")["spec"]["template"]["spec"]["containers"][0]["image"]
    assert all(one["image"] == image for one in found["spec"]["initContainers"])
    left = json.loads(cluster.kubectl("get", "pod", "train-0", "-n", "other", "-o", "json"))
    assert "initContainers" not in left["spec"], "its namespace has not opted in"
    until("the job has a key",
          lambda: "paceline-train" in cluster.kubectl("get", "secrets", "-n", "team", "-o", "name"))
    until("the pod that was missed is reported", lambda: cluster.kubectl("get", "events", "-n", "other", "-o", "name").strip())
    return operator


def check_remediator(cluster, program, token):
    """An aggregator in a pod reports that its node has lost a GPU. The node must be taken out of service with the
    permissions of mode act, and a preflight must check it when the GPU is back."""
    policy = "[guard]\ndebounce_s = 1\n[recovery]\nchecks = 1\ncheck_every_s = 1\n"
    cluster.helm("upgrade", "paceline", CHART, values={"remediator": {"mode": "act", "policy": policy}})
    operator = Operator(cluster, program, "remediator", token)
    for name in ("n1", "n2", "n3", "n4"):
        put(cluster, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": {}, "status": {
            "conditions": [{"type": "Ready", "status": "True"}], "capacity": {"nvidia.com/gpu": "8"}}})
    put(cluster, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": "team"}})
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {
        "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": "train-0"}}}
    bearer = cluster.ask("/api/v1/namespaces/team/serviceaccounts/default/token", request)["status"]["token"]
    # The CA is passed in a ConfigMap, as for the injector's pods.
    place = "/api/v1/namespaces/team/configmaps/paceline-remediator-ca"
    authority = until("the namespace is told whom to trust", lambda: cluster.get_at(place).get("data", {}).get("ca.crt"))
    notice = {"key": "k1", "status": "firing", "severity": "critical", "finding": "gpu-lost", "subject": "gpu GPU-1",
              "node": "n1/train-0", "provenance": "live"}

    def is_out():
        # Repeats the report while it holds, as aggregators do. Here that is until there is a leader.
        operator.tell(authority, bearer, {"version": 1, "notices": [notice]})
        return json.loads(cluster.kubectl("get", "node", "n1", "-o", "json"))["spec"].get("unschedulable")

    until(f"the node is cordoned: {operator.said()}", is_out)
    assert "n1" in cluster.kubectl("get", "nodehealths", "-o", "name")
    notice["status"] = "resolved"

    def is_checked():
        operator.tell(authority, bearer, {"version": 1, "notices": [notice]})
        return cluster.kubectl("get", "jobs", "-n", SPACE, "-o", "name").strip()

    until("a preflight", is_checked)
    return operator


def check_schemas(cluster):
    """Validates the operator's objects by Kubernetes' schemas, which this API server does not have."""
    found = json.loads(cluster.kubectl("get", WRITTEN, "--all-namespaces", "--output", "json"))["items"]
    # Skips the test's own owners of pods, which have only names.
    bodies = [one for one in found if one.get("spec") != {}]
    kinds = {one["kind"] for one in bodies}
    assert kinds == {"Secret", "ConfigMap", "Event", "Lease", "Job", "Pod", "Node"}, kinds
    print(f"{valid(bodies, VERSIONS, set())} objects are valid by the schemas of {VERSIONS[0]} to {VERSIONS[-1]}")


def check_books(cluster, part):
    """Checks that no request of the part was denied. Returns its requests, and its unused permissions."""
    user = f"system:serviceaccount:{SPACE}:paceline-{part}"
    mine = [line for line in cluster.ask("/_test/audit") if line["user"] == user]
    refused = [line for line in mine if line["code"] == 403]
    assert not refused, f"{part} was refused: {refused}"
    # Skips reviews of the part's own permissions, which are always allowed.
    used = {(line["verb"], line["resource"]) for line in mine if not line["resource"].startswith("selfsubject")}
    granted = set()
    for one in rendered({}):
        if one["kind"] in ("Role", "ClusterRole") and one["metadata"]["name"] == f"paceline-{part}":
            granted |= {(verb, f"{group}/{resource}") for rule in one["rules"] for group in rule["apiGroups"]
                        for verb in rule["verbs"] for resource in rule["resources"]}
    return used, granted - used


def main():
    kube_api, program = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        cluster, running = Cluster(kube_api, folder), []
        try:
            check_life(cluster, program)
            injector, remediator = check_rights(cluster)
            running.append(check_injector(cluster, program, injector))
            running.append(check_remediator(cluster, program, remediator))
            check_schemas(cluster)
            for part in ("injector", "remediator"):
                used, unused = check_books(cluster, part)
                print(f"{part}: asked for {len(used)} kinds of things and was refused none; not asked for here: "
                      + ", ".join(sorted(" ".join(pair) for pair in unused)))
                assert unused <= UNUSED[part], f"rights that nobody needs: {unused - UNUSED[part]}"
            check_end(cluster, program)
            while running:
                running.pop().end()
        finally:
            for one in running:
                one.mounts.end()
                one.process.kill()
            cluster.end()
    check_modes(kube_api, program)
    print("install, upgrade, rollback, uninstall; rights; the operator with the chart's arguments")


if __name__ == "__main__":
    main()
