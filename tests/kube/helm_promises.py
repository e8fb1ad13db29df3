"""Checks the chart's promises about its objects, which must hold for any values."""

import functools
import json
import os
import re

import yaml

from tools import ROOT

CLUSTER = {"ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition", "MutatingWebhookConfiguration"}
CLOSED = {"kube-system", "kube-public", "kube-node-lease"}
# The allowed fields of the specs of kinds without a schema here, from their API references.
FIELDS = {
    "PodMonitor": {"namespaceSelector", "selector", "podMetricsEndpoints"},
    "PrometheusRule": {"groups"},
    "Issuer": {"selfSigned", "ca"},
    "Certificate": {"isCA", "commonName", "secretName", "duration", "renewBefore", "privateKey", "issuerRef", "usages", "dnsNames"},
}
# The changes that each part may make: resource and verbs. All other permissions must be get, list or watch.
CHANGES = {
    "injector": {
        ("leases", "create update"), ("secrets", "create update"), ("events", "create"), ("configmaps", "create patch"),
        ("mutatingwebhookconfigurations", "patch")},
    "remediator": {
        ("leases", "create update"), ("events", "create"),
        ("secrets", "create update"), ("configmaps", "create patch"), ("tokenreviews", "create"), ("nodehealths", "create"),
        ("nodehealths/status", "update")},
    "act": {("jobs", "create delete"), ("nodes", "patch"), ("nodes/status", "patch"), ("pods/eviction", "create")},
}


def of(objects, kind):
    return [one for one in objects if one["kind"] == kind]


def by_name(objects, kind):
    return {one["metadata"]["name"]: one for one in of(objects, kind)}


def promises(objects, values, namespace):
    """Raises if a promise does not hold."""
    names = [(one["kind"], one["metadata"].get("namespace"), one["metadata"]["name"]) for one in objects]
    assert len(names) == len(set(names)), "two objects have one name"
    boards = values.get("monitoring", {}).get("dashboards", {}).get("namespace") or namespace
    for one in objects:
        where = one["metadata"].get("namespace")
        is_board = "-board-" in one["metadata"]["name"]
        wanted = None if one["kind"] in CLUSTER else boards if is_board else namespace
        assert where == wanted, f"{one['kind']} {one['metadata']['name']} is in {where}"
        assert one["metadata"]["labels"]["app.kubernetes.io/instance"] == "paceline"
        if one["kind"] in FIELDS:
            assert set(one["spec"]) <= FIELDS[one["kind"]], f"{one['kind']} has {set(one['spec'])}"
    for part in ("injector", "remediator"):
        mine = [one for one in objects if one["metadata"]["labels"].get("app.kubernetes.io/component") == part]
        if values.get(part, {}).get("enabled", True):
            runs(mine, values.get(part, {}), values.get("certificates", {}).get("mode", "self"))
            rights(mine, part, values, namespace)
        else:
            assert not mine, f"{part} is off, and there are {[one['kind'] for one in mine]}"
    released(objects, values)
    network(objects, values)
    preflights(objects, values)
    webhook(objects, values, namespace)
    tells(objects, values, namespace)
    copies(objects, values)


def runs(objects, values, certificates):
    """Checks one part: its pods must be restricted, and all selectors must match them."""
    (deployment,) = of(objects, "Deployment")
    template = deployment["spec"]["template"]
    pod, labels = template["spec"], template["metadata"]["labels"]
    (container,) = pod["containers"]
    assert container["command"] == ["/paceline-operator"]
    assert pod["securityContext"]["runAsNonRoot"] is True and pod["securityContext"]["runAsUser"] == 65532
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "privileged": False,
        "readOnlyRootFilesystem": True}
    for volume in pod.get("volumes", []):
        assert set(volume) - {"name"} <= {"secret", "configMap"}, volume
    mounted = {mount["name"] for mount in container.get("volumeMounts", [])}
    assert mounted == {volume["name"] for volume in pod.get("volumes", [])}
    has_files = any(arg.startswith("--cert=") for arg in container["args"])
    is_self = any(arg.startswith("--self-signed=") for arg in container["args"])
    renews = certificates == "self"
    assert (has_files, is_self) == (not renews, renews)
    assert any(arg.startswith("--ca=") for arg in container["args"]) == has_files, "who is not trusted is not asked"
    for chooser in ([deployment["spec"]["selector"]["matchLabels"]]
                    + [one["spec"]["selector"] for one in of(objects, "Service")]
                    + [one["spec"]["selector"]["matchLabels"] for one in of(objects, "PodDisruptionBudget")]
                    + [one["spec"]["podSelector"]["matchLabels"] for one in of(objects, "NetworkPolicy")]):
        assert chooser.items() <= labels.items(), f"{chooser} does not find {labels}"
        # The selector may have only labels that neither a new version nor a user changes.
        assert set(chooser) == {f"app.kubernetes.io/{word}" for word in ("name", "instance", "component")}
    (service,) = of(objects, "Service")
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert all(port["targetPort"] in ports for port in service["spec"]["ports"])
    listen = {arg.split("=")[0]: int(arg.rsplit(":", 1)[1]) for arg in container["args"] if arg.startswith(("--listen", "--health"))}
    assert listen == {"--listen": ports["https"], "--health": ports["health"]}
    budgets = of(objects, "PodDisruptionBudget")
    replicas = deployment["spec"]["replicas"]
    assert bool(budgets) == (replicas > 1 and values.get("podDisruptionBudget", True)), "a budget that lets nobody go, or none"
    for policy in of(objects, "NetworkPolicy"):
        reached = {rule["ports"][0]["port"] for rule in policy["spec"]["ingress"]}
        assert reached == set(ports.values()), reached


def rights(objects, part, values, namespace):
    """Checks one part: it may only have permissions that it needs, by name if possible, and bound only to its
    account."""
    (deployment,) = of(objects, "Deployment")
    account = deployment["spec"]["template"]["spec"]["serviceAccountName"]
    made = [one["metadata"]["name"] for one in of(objects, "ServiceAccount")]
    assert made == ([account] if values.get(part, {}).get("serviceAccount", {}).get("create", True) else [])
    roles = {(one["kind"], one["metadata"]["name"]) for one in objects if one["kind"] in ("Role", "ClusterRole")}
    bound = set()
    for binding in of(objects, "RoleBinding") + of(objects, "ClusterRoleBinding"):
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account, "namespace": namespace}]
        bound.add((binding["roleRef"]["kind"], binding["roleRef"]["name"]))
    assert bound == roles, f"bound are {bound}, made {roles}"
    asked = values.get(part, {})
    acts = part == "remediator" and asked.get("mode") == "act"
    allowed = {}
    for resource, verbs in CHANGES[part] | (CHANGES["act"] if acts else set()):
        allowed[resource] = set(verbs.split())
    for role in of(objects, "Role") + of(objects, "ClusterRole"):
        for rule in role["rules"]:
            words = rule["apiGroups"] + rule["resources"] + rule["verbs"]
            assert "*" not in words and not {"escalate", "bind", "impersonate", "deletecollection"} & set(words), rule
            for resource in rule["resources"]:
                changes = set(rule["verbs"]) - {"get", "list", "watch"}
                assert changes <= allowed.get(resource, set()), f"{part} may {changes} {resource}"
                is_read = set(rule["verbs"]) & {"get", "list", "watch"}
                if resource in ("secrets", "configmaps", "leases", "mutatingwebhookconfigurations"):
                    # Reading and changing must be limited to named objects. No cluster-wide permission may allow to
                    # read Secrets.
                    assert rule.get("resourceNames") or set(rule["verbs"]) == {"create"}, rule
                    assert not (is_read and resource == "secrets" and role["kind"] == "ClusterRole"), rule
    changed = {(verb, resource) for role in of(objects, "ClusterRole") for rule in role["rules"]
               for verb in rule["verbs"] for resource in rule["resources"]}
    assert part != "remediator" or (("patch", "nodes") in changed) == acts, "who may act may patch nodes, and nobody else"
    is_quiet = part == "injector" and not values.get(part, {}).get("jobSecrets", True)
    if is_quiet:
        reach = [rule["resources"] for role in of(objects, "ClusterRole") for rule in role["rules"]]
        assert all(resources == ["mutatingwebhookconfigurations"] for resources in reach), reach


def network(objects, values):
    """Checks that all required clients can reach a part. These are the API server, and senders of verdicts from node
    addresses, unless restricted."""
    asked = values.get("networkPolicy", {})
    for one in of(objects, "NetworkPolicy"):
        visits, reads = one["spec"]["ingress"]
        is_remediator = one["metadata"]["labels"]["app.kubernetes.io/component"] == "remediator"
        assert visits.get("from", []) == (asked.get("verdictsFrom", []) if is_remediator else []), visits
        assert reads.get("from", []) == asked.get("metricsFrom", []), reads


def preflights(objects, values):
    """Checks that the site's settings for preflight pods are passed to the remediator, and only if there are any."""
    for one in of(objects, "Deployment"):
        pod = one["spec"]["template"]["spec"]
        told = [arg.partition("=")[2] for arg in pod["containers"][0]["args"] if arg.startswith("--preflight-pod=")]
        wanted = dict(values.get("remediator", {}).get("preflight", {}))
        if pod.get("imagePullSecrets"):
            wanted["imagePullSecrets"] = pod["imagePullSecrets"]
        is_meant = one["metadata"]["labels"]["app.kubernetes.io/component"] == "remediator" and wanted
        assert [json.loads(text) for text in told] == ([wanted] if is_meant else []), told


def tells(objects, values, namespace):
    """Checks that pods get the remediator's address, if there is one, with the name in its certificate, and its CA."""
    found = {one["metadata"]["labels"]["app.kubernetes.io/component"]: one for one in of(objects, "Deployment")}
    if "injector" not in found:
        return
    injector = values.get("injector", {})
    pod = found["injector"]["spec"]["template"]["spec"]
    args = dict(arg.partition("=")[::2] for arg in pod["containers"][0]["args"])
    is_told = "remediator" in found and injector.get("tellRemediator", True)
    assert ("--remediator" in args) == is_told, args
    assert ("--remediator-ca" in args) == (is_told and injector.get("jobSecrets", True)), args
    if is_told:
        service = found["remediator"]["metadata"]["name"]
        assert service in by_name(objects, "Service")
        assert args["--remediator"] == f"https://{service}.{namespace}.svc/verdicts"
    volumes = {volume["name"]: volume for volume in pod.get("volumes", [])}
    assert ("remediator" in volumes) == ("--remediator-ca" in args)
    for source in [volumes["remediator"]] if "remediator" in volumes else []:
        source = source["configMap"]
        assert source["optional"] is True and [item["key"] for item in source["items"]] == ["ca.crt"], source
    roles = [role for role in of(objects, "ClusterRole") if role["metadata"]["labels"]["app.kubernetes.io/component"] == "injector"]
    named = [rule for role in roles for rule in role["rules"] if rule.get("resourceNames") == ["paceline-remediator-ca"]]
    assert bool(named) == ("--remediator-ca" in args), "rights that nobody needs, or too few"


def released(objects, values):
    """Checks that the cleanup objects exist only while the release is uninstalled, and are complete."""
    mine = [one for one in objects if one["metadata"]["labels"].get("app.kubernetes.io/component") == "release"]
    is_any = any(values.get(part, {}).get("enabled", True) for part in ("injector", "remediator"))
    asked = values.get("uninstall", {})
    if not is_any or not asked.get("release", True):
        assert not mine, [one["kind"] for one in mine]
        return
    assert sorted(one["kind"] for one in mine) == ["ClusterRole", "ClusterRoleBinding", "Job", "Role", "RoleBinding", "ServiceAccount"]
    hooks = [one for one in objects if "helm.sh/hook" in one["metadata"].get("annotations", {})]
    assert hooks == mine and {one["metadata"]["annotations"]["helm.sh/hook"] for one in mine} == {"pre-delete"}
    (job,) = of(mine, "Job")
    weights = {one["kind"]: int(one["metadata"]["annotations"]["helm.sh/hook-weight"]) for one in mine}
    assert max(weights, key=weights.get) == "Job", "its rights come before it"
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["args"] == ["release", *(["--uncordon"] if asked.get("uncordon") else [])]
    assert pod["securityContext"]["runAsNonRoot"] is True and container["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def webhook(objects, values, namespace):
    found = of(objects, "MutatingWebhookConfiguration")
    injector = values.get("injector", {})
    assert len(found) == (1 if injector.get("enabled", True) else 0)
    for one in found:
        (hook,) = one["webhooks"]
        asked = injector.get("webhook", {})
        assert hook["sideEffects"] == "None" and hook["admissionReviewVersions"] == ["v1"]
        assert hook["reinvocationPolicy"] == "IfNeeded" and hook["timeoutSeconds"] <= 5
        assert hook["failurePolicy"] == asked.get("failurePolicy", "Ignore")
        (rule,) = hook["rules"]
        assert (rule["operations"], rule["resources"], rule["scope"]) == (["CREATE"], ["pods"], "Namespaced")
        closed = {name for expression in hook["namespaceSelector"]["matchExpressions"]
                  if expression["key"] == "kubernetes.io/metadata.name" and expression["operator"] == "NotIn"
                  for name in expression["values"]}
        assert CLOSED | {namespace} | set(injector.get("exclude", [])) == closed, closed
        no = hook["objectSelector"]["matchExpressions"][0]
        assert no["key"] == "paceline.dev/inject" and no["operator"] == "NotIn" and "false" in no["values"]
        assert bool(hook.get("matchConditions")) == asked.get("onlyAsked", True)
        for condition in hook.get("matchConditions", []):
            asks(condition["expression"])
        annotations = one["metadata"].get("annotations", {})
        assert "caBundle" not in hook["clientConfig"] and not [word for word in annotations if "inject-ca" in word], "the injector writes it"
        service = hook["clientConfig"]["service"]
        assert service["namespace"] == namespace and service["name"] in by_name(objects, "Service")


def asks(expression):
    """Checks that the CEL condition matches pods that request injection, by label or annotation, and no others. Reading
    a missing field is an error, as in Kubernetes, where the webhook is then not called."""
    python = expression.replace("&&", " and ").replace("||", " or ")
    python = re.sub(r"has\(object\.([\w.]+)\)", r"has('\1')", python)
    python = " ".join(re.sub(r"\bobject\.([\w.]+)", r"at('\1')", python).split())
    wish, other = {"paceline.dev/inject": "true"}, {"app": "web"}
    for metadata, wanted in [({}, False), ({"labels": other}, False), ({"annotations": other}, False), ({"labels": wish}, True),
                             ({"annotations": wish}, True), ({"labels": other, "annotations": wish}, True),
                             ({"labels": wish, "annotations": other}, True), ({"labels": other, "annotations": other}, False)]:
        def at(path, metadata=metadata):
            return functools.reduce(lambda here, word: here[word], path.split("."), {"metadata": metadata})

        def has(path):
            head, _, last = path.rpartition(".")
            return last in at(head)

        assert eval(python, {"__builtins__": {}, "at": at, "has": has}) is wanted, (expression, metadata)


def copies(objects, values):
    """Checks that alerts and boards are those of deploy/prometheus and deploy/grafana, without loss."""
    monitoring = values.get("monitoring", {})
    for rule in of(objects, "PrometheusRule"):
        with open(os.path.join(ROOT, "deploy", "prometheus", "paceline.rules.yaml")) as file:
            groups = yaml.safe_load(file)["groups"]
        more = monitoring["prometheusRule"].get("alertLabels", {})
        for one in (one for group in groups for one in group["rules"] if "alert" in one):
            one["labels"] = more | one.get("labels", {})
            address = monitoring["prometheusRule"].get("grafanaUrl", "").rstrip("/")
            one["annotations"] = one["annotations"] | {"dashboard_url": address + one["annotations"]["dashboard_url"]}
        assert rule["spec"]["groups"] == groups
    boards = {name.split("-board-")[1]: one for name, one in by_name(objects, "ConfigMap").items() if "-board-" in name}
    is_on = monitoring.get("dashboards", {}).get("enabled", False)
    assert set(boards) == ({"run", "fleet", "executive"} if is_on else set())
    for name, one in boards.items():
        with open(os.path.join(ROOT, "deploy", "grafana", f"{name}.json")) as file:
            assert json.loads(one["data"][f"paceline-{name}.json"]) == json.load(file)
    for kind, switch in (("PodMonitor", "podMonitor"), ("PrometheusRule", "prometheusRule")):
        assert bool(of(objects, kind)) == monitoring.get(switch, {}).get("enabled", False)
    crds = of(objects, "CustomResourceDefinition")
    assert len(crds) == (1 if values.get("crd", {}).get("install", True) else 0)
    for crd in crds:
        assert crd["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
