"""Cases of remediator.py: permitted senders, leader election, and behavior without permissions or in other modes."""

import http.client
import json
import time

from remediator_world import HEALTHS, PATIENCE, QUICK, until


def who_may_speak(world):
    world.job(3)
    world.pod("alien", "n5", "other")
    leader = world.leader()
    body = {"version": 1, "notices": []}

    def code(body, token):
        answer = world.send(leader, body, token)
        print(answer) if answer[0] not in (400, 401, 403) else None
        return answer[0]

    assert code(body, None) == 401
    assert code(body, "no-token") == 401
    free = world.ask("POST", "/api/v1/namespaces/ml/serviceaccounts/remediator/token", {"spec": {}})["status"]["token"]
    assert code(body, free) == 403
    assert code(b"{}", world.pod_token("train-0")) == 400
    try:
        assert world.send(leader, b" " * (2 << 20), world.pod_token("train-0"))[0] == 413
    except OSError:
        pass  # The remediator closes the connection on an oversized body.
    for node, pod in (("n5", "alien"), ("n5", "train-1"), ("n1", "nobody"), ("n1/x", "train-1")):
        decision = world.say(leader, node, pod)
        assert decision.startswith("refused: no"), decision
    assert world.say(leader, "n5", "alien", "resolved") == "no-node", "it closes nothing that others raised"
    assert world.say(leader, "n1", "train-1", finding="bad-luck") == "refused: unknown-finding"
    assert world.say(leader, "n1", "train-1", provenance="sim").startswith("Suspect")
    codes = [world.send(leader, body, world.pod_token("train-2"))[0] for _ in range(80)]
    assert 429 in codes and 200 in codes, codes
    assert world.bears("n1") == (False, False) and world.health("n5") == {}


def two_of_them(world):
    world.job(3)
    first = world.leader()
    second = world.remediator()
    until("it is ready", lambda: "ok" in world.page(second, "/readyz"))
    code, _, headers = world.send(second, {"version": 1, "notices": []}, world.pod_token("train-0"))
    assert (code, headers["connection"]) == (503, "close"), (code, headers)
    world.say(first, "n1", "train-1")
    world.state("n1", "Draining", "Drained")
    world.kill(first)
    until("the other is in charge", lambda: "leader, responsible for" in open(second.log).read())
    world.say(second, "n1", "train-1", "resolved")
    world.preflight("n1", True)
    until("it is back", lambda: world.bears("n1") == (False, False))
    # A normal shutdown must release the Lease at once, with exit code 0.
    third = world.remediator()
    second.terminate()
    assert second.wait(PATIENCE) == 0
    until("the third is in charge", lambda: "leader, responsible for" in open(third.log).read())


def certificates_of_its_own(world):
    """The CA changes under constant requests. Clients that read the ConfigMap must always trust the served
    certificate."""
    world.job(1)
    place, own = "/api/v1/namespaces/paceline/configmaps/paceline-remediator-ca", "paceline-remediator-own"
    words = ["--self-signed", own, "--service", "remediator", "--authority", "paceline-remediator-ca", "--certificate-life", "20"]
    first, second = world.leader(certificate=words), world.remediator(certificate=words)
    before = until("whom to trust", lambda: world.call("GET", place)[0] == 200 and world.ask("GET", place)["data"]["ca.crt"])
    for process in (first, second):
        until("it has a certificate", lambda process=process: "ok" in world.page(process, "/readyz"))
    answers = []

    def has_changed():
        # Behaves like a client that read the ConfigMap a moment ago.
        authority = world.ask("GET", place)["data"]["ca.crt"]
        time.sleep(0.3)
        for process in (first, second):
            body, token = {"version": 1, "notices": []}, world.pod_token("train-0")
            answers.append(world.send(process, body, token, authority, "remediator.paceline.svc")[0])
        return 'renewed_total{what="authority"} 2' in world.page(first) and before.strip() not in authority

    until("another authority, and the first is forgotten", has_changed)
    assert set(answers) <= {200, 429, 503} and 200 in answers and 503 in answers, answers
    names = world.ask("GET", f"/api/v1/namespaces/paceline/secrets/{own}")["data"].keys()
    assert {"tls.crt", "tls.key", "ca.crt"} <= names


def a_dry_run(world):
    world.job(3)
    leader = world.leader(policy=None)
    assert world.say(leader, "n1", "train-1").startswith("Suspect: gpu-lost")
    world.write("shadow.toml", QUICK.replace('"act"', '"shadow"'))
    leader.terminate()
    leader.wait()
    leader = world.leader(policy="shadow.toml")
    world.say(leader, "n1", "train-1")
    until("it is said what would be done", lambda: "would" in world.words("n1"))
    assert world.health("n1")["shadow"] == "evict" and world.bears("n1") == (False, False)
    assert len(world.pods()) == 3


def a_word_in_a_dry_run(world):
    """An administrator marks a node as repaired. This must take effect once, even if the annotation cannot be
    removed."""
    world.job(3)
    leader = world.leader(policy=None)
    for name in ("n1", "n2"):
        world.patch(f"/api/v1/nodes/{name}", {"metadata": {"annotations": {"paceline.dev/repaired": "long ago"}}})
    world.say(leader, "n1", "train-1")
    time.sleep(2)
    assert world.state("n1", "Suspect") and "repaired" not in world.words("n1"), "that was said before"
    world.patch("/api/v1/nodes/n1", {"metadata": {"annotations": {"paceline.dev/repaired": "now"}}})
    world.state("n1", "Healthy")
    world.say(leader, "n1", "train-1")
    time.sleep(2)
    assert world.state("n1", "Suspect") and world.words("n1") == ["raised", "repaired", "raised"], world.words("n1")
    assert asked(world, "/nodes", "patch") == [], "nothing is written to a node"


def asked(world, resource, verb):
    """Returns the response codes of these requests of the remediator."""
    lines = json.loads(world.ask("GET", "/_test/audit"))
    ours = [line for line in lines if (line["resource"], line["verb"]) == (resource, verb) and "remediator" in line["user"]]
    return [line["code"] for line in ours for _ in range(line["count"])]


def narrow(world, change):
    """Changes each rule of the remediator's permissions. Returns a function that restores them."""
    roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles/remediator"
    rules = world.ask("GET", roles)["rules"]
    world.patch(roles, {"rules": [rule | change(rule) for rule in rules]})
    return lambda: world.patch(roles, {"rules": rules})


def no_right_to_a_condition(world):
    """The condition must be retried with growing pauses, and evictions must continue at their interval."""
    world.job(2)
    world.budget("quorum", 2)
    give_back = narrow(world, lambda rule: {"resources": [one for one in rule["resources"] if one != "nodes/status"]})
    leader = world.leader()
    world.say(leader, "n1", "train-1")
    until("it is refused", lambda: asked(world, "/nodes/status", "patch"))
    time.sleep(8)
    before = len(asked(world, "/pods/eviction", "create"))
    time.sleep(8)
    rounds = len(asked(world, "/pods/eviction", "create")) - before
    refused = asked(world, "/nodes/status", "patch")
    assert rounds >= 4, f"{rounds} rounds of one a second in 8 s"
    assert set(refused) == {403} and len(refused) <= 6, refused
    give_back()
    until("it has its condition", lambda: any(one["type"] == "PacelineFault" for one in world.see("n1")["status"]["conditions"]))


def no_right_to_tell(world):
    """Neither Events nor NodeHealths can be written. Each node's must be retried with growing pauses, and logged
    once."""
    world.job(10)
    body = {"version": 1, "unix_ms": 1, "notices": []}
    for index in range(10):
        body["notices"] += world.parcel(f"n{index}", f"train-{index}")["notices"]
    world.write("observe.toml", QUICK.replace('"act"', '"observe"'))
    leader = world.leader(policy="observe.toml")
    for kind, path, verb, done in (("events", "/events", "create", 200), ("nodehealths/status", "paceline.dev/nodehealths/status", "update", 503)):
        give_back = narrow(world, lambda rule, kind=kind: {"resources": [one for one in rule["resources"] if one != kind]})
        until("it is heard", lambda done=done: world.send(leader, body, world.pod_token("train-0"))[0] == done)
        until("it is refused", lambda path=path, verb=verb: 403 in asked(world, path, verb))
        time.sleep(8)
        refused = asked(world, path, verb).count(403)
        assert refused <= 60, f"{refused} of ten nodes in 8 s"
        lines = [line for line in open(leader.log) if ": 403" in line]
        assert len(lines) == (10 if kind == "events" else 20), lines
        give_back()
        until("all of it is told", lambda: world.send(leader, body, world.pod_token("train-0"))[0] == 200)
        body["notices"] = [notice | {"subject": "gpu GPU-b"} for notice in body["notices"]]
    events = world.ask("GET", "/api/v1/namespaces/default/events")["items"]
    assert sum(event["reason"] == "PacelineRaised" for event in events) >= 10


def no_right_to_see(world):
    """Without read permission, the NodeHealth must show the reason, and the log must say that all reports are
    rejected."""
    def without(verbs, resource):
        def change(rule):
            return {"verbs": [verb for verb in rule["verbs"] if verb not in verbs]} if resource in rule["resources"] else {}
        return narrow(world, change)

    world.write("policy.toml", QUICK.replace("[drain]", "cluster_percent = 100\njob_percent = 100\n[drain]"))
    world.job(4)
    leader = world.leader()
    for resource in ("tokenreviews", "pods"):
        give_back = without(["create", "get", "list"], resource)
        for _ in range(3):
            code, says, _ = world.send(leader, world.parcel("n1", "train-1"), world.pod_token(f"train-{2 if resource == 'pods' else 3}"))
            assert (code, "403" in says) == (503, True), (code, says)
        lines = [line for line in open(leader.log) if "all reports are refused: " in line]
        assert len(lines) == (2 if resource == "pods" else 1) and resource in lines[-1], lines
        give_back()
    world.say(leader, "n1", "train-1", severity="info")
    give_back = without(["list"], "pods")
    # The sender's job is cached for twenty seconds, so its report is still accepted.
    assert world.say(leader, "n1", "train-1").startswith("Draining")
    until("it says what it cannot do", lambda: "its pods cannot be listed: 403" in world.health("n1").get("reason", ""))
    give_back()
    world.state("n1", "Drained")
    give_back = without(["get", "list", "watch"], "nodes")
    world.trouble(drop_watches=True)
    world.say(leader, "n2", "train-2")
    until("it says what it does not see", lambda: "nodes are not watched: 403" in world.health("n2").get("reason", ""))
    assert open(leader.log).read().count("nodes: 403") == 1
    give_back()
    until("it says so no more", lambda: "403" not in world.health("n2").get("reason", ""))


def what_is_refused(world):
    """Without permission, a request must be retried with growing pauses. With it, work must continue."""
    world.job(2)
    give_back = narrow(world, lambda rule: {"verbs": [verb for verb in rule["verbs"] if verb != "patch"]})
    leader = world.leader()
    world.say(leader, "n1", "train-1")
    until("it is refused", lambda: asked(world, "/nodes", "patch"))
    time.sleep(8)
    refused = asked(world, "/nodes", "patch")
    assert set(refused) == {403} and len(refused) <= 6, refused
    give_back()
    world.state("n1", "Drained")


def a_task_that_panics(world):
    """A leader whose task has panicked must exit, and the next replica must lead."""
    world.job(3)
    first = world.leader()
    world.say(first, "n1", "train-1", severity="info")
    world.state("n1", "Suspect")
    world.kill(first)
    # Writes a counter that overflows, which the program itself never writes.
    health = world.ask("GET", f"{HEALTHS}/n1")
    health["status"]["decisions"] = 2**64 - 1
    world.ask("PUT", f"{HEALTHS}/n1/status", health)
    first, second = world.leader(), world.remediator()
    try:
        world.send(first, world.parcel("n1", "train-1", gpu="GPU-b"), world.pod_token("train-0"))
    except (OSError, http.client.HTTPException):
        pass  # The remediator closes the connection.
    assert first.wait(PATIENCE) == 1, first.returncode
    assert "a task has ended, and this process with it" in open(first.log).read()
    until("the other is in charge", lambda: "paceline_remediator_leader 1" in world.page(second))
