"""Cases of remediator.py: actions of administrators, and of jobs on the node, during a remedy."""

import time

from remediator_world import HEALTHS, QUICK, until


def cordon(world, node):
    """Cordons the node as an administrator. Retries after write conflicts."""
    body, kind = {"spec": {"unschedulable": True}}, "application/merge-patch+json"
    until("a person's cordon", lambda: world.call("PATCH", f"/api/v1/nodes/{node}", body, kind=kind)[0] < 300)


def cordoned_before_we_did(world):
    """The cordon is decided but not patched. A party that cordons the node in between owns the cordon, and no pod may
    be evicted."""
    world.job(4)
    leader = world.leader()
    world.trouble(conflicts={"nodes": 14})
    world.say(leader, "n1", "train-1")
    cordon(world, "n1")
    until("it is his", lambda: "taken-over" in world.words("n1") and world.bears("n1") == (True, True))
    time.sleep(2)
    assert "train-1" in world.pods() and "owned" in world.health("n1")["reason"], world.health("n1")
    assert "paceline.dev/cordoned-by" not in world.see("n1")["metadata"].get("annotations", {})


def killed_before_its_cordon(world):
    """The next leader must not take another party's cordon for the decided one."""
    world.job(4)
    leader = world.leader()
    world.trouble(conflicts={"nodes": 40})
    world.say(leader, "n1", "train-1")
    world.kill(leader)
    assert world.words("n1")[-1] == "evict" and not world.is_cordoned("n1"), world.health("n1")
    cordon(world, "n1")
    world.leader()
    until("it is left to whoever cordoned it", lambda: "taken-over" in world.words("n1"))
    time.sleep(2)
    assert "train-1" in world.pods(), world.words("n1")


def held_at_once(world):
    """The node is put on hold right after the cordon, uncordoned, and released. No pod may be evicted, and the node
    must not be cordoned again."""
    world.job(4)
    world.budget("quorum", 4)
    leader = world.leader()
    world.say(leader, "n1", "train-1")
    until("it is cordoned", lambda: world.is_cordoned("n1"))
    world.patch("/api/v1/nodes/n1", {"metadata": {"annotations": {"paceline.dev/hold": "true"}}})
    until("it is held", lambda: "a person holds it" in world.health("n1").get("reason", ""))
    world.patch("/api/v1/nodes/n1", {"spec": {"unschedulable": None}})
    world.ask("DELETE", "/apis/policy/v1/namespaces/ml/poddisruptionbudgets/quorum")
    world.patch("/api/v1/nodes/n1", {"metadata": {"annotations": {"paceline.dev/hold": None}}})
    until("it is heeded", lambda: "overridden" in world.words("n1"))
    time.sleep(2)
    assert world.bears("n1") == (False, False) and "train-1" in world.pods(), world.words("n1")


def a_pod_that_is_made_again_elsewhere(world):
    """Evicted pods are recreated with their names on other machines. Findings about the old machine must clear
    nevertheless."""
    world.job(2)
    leader = world.leader()
    world.say(leader, "n1", "train-1")
    world.state("n1", "Drained")
    until("it has left", lambda: "train-1" not in world.pods())
    world.pod("train-1", "n5")
    until("it may say nothing new of where it was", lambda: world.say(leader, "n1", "train-1") == "refused: not-its-job")
    assert world.say(leader, "n1", "train-1", "resolved").startswith("Recovering")
    world.preflight("n1", True)
    world.state("n1", "Healthy")


def gpus_that_are_not_counted(world):
    """The node has MIG. A Job without GPUs would pass without a measurement, and one that requests a whole GPU would
    wait forever, so no preflight may run."""
    world.job(2)
    capacity = {"nvidia.com/gpu": "0", "nvidia.com/mig-1g.10gb": "7"}
    world.patch("/api/v1/nodes/n1/status", {"status": {"capacity": capacity, "allocatable": capacity}})
    leader = world.leader()
    world.say(leader, "n1", "train-1")
    world.state("n1", "Drained")
    world.say(leader, "n1", "train-1", "resolved")
    until("it cannot be measured", lambda: "preflight-unrun" in world.words("n1"))
    reason = until("it says what helps", lambda: 'preflight = "none"' in world.health("n1")["reason"] and world.health("n1")["reason"])
    assert "MIG" in reason and world.bears("n1") == (True, True), reason
    assert not world.ask("GET", "/apis/batch/v1/namespaces/paceline/jobs")["items"]


def gpus_by_claims(world):
    """The node uses DRA, so its capacity shows no GPUs. They must be known from its pods or from a finding about
    one."""
    world.write("policy.toml", QUICK.replace("[drain]", "cluster_percent = 100\njob_percent = 100\n[drain]"))
    for index in range(3):
        claim = {"name": "gpu", "resourceClaimTemplateName": "whole"}
        world.pod(f"train-{index}", f"n{index}", gpus=None, **({"resourceClaims": [claim]} if index == 1 else {}))
    for index in range(10):
        world.patch(f"/api/v1/nodes/n{index}/status", {"status": {"capacity": {"nvidia.com/gpu": None, "cpu": "8"}, "allocatable": None}})
    leader = world.leader()
    for node, pod, subject in (("n1", "train-1", "node n1"), ("n2", "train-2", "gpu GPU-a on n2")):
        world.say(leader, node, pod, subject=subject)
        world.state(node, "Drained")
        world.say(leader, node, pod, "resolved", subject=subject)
        until("it cannot be measured", lambda node=node: "DRA" in world.health(node)["reason"])
        assert world.bears(node) == (True, True), world.words(node)
    assert not world.ask("GET", "/apis/batch/v1/namespaces/paceline/jobs")["items"]


def slices_alone(world):
    """There are only MIG slices on the node and in the pod. A pod with slices must be evicted, and one without devices
    must stay."""
    slices = ("nvidia.com/mig-1g.10gb", "7")
    world.pod("train-0", "n0", gpus=slices)
    world.pod("train-1", "n1", gpus=slices)
    world.pod("web", "n1", "web", gpus=None)
    for name in ("n0", "n1"):
        capacity = {"nvidia.com/gpu": None, slices[0]: slices[1]}
        world.patch(f"/api/v1/nodes/{name}/status", {"status": {"capacity": capacity, "allocatable": capacity}})
    leader = world.leader()
    # A slice has a separate ID.
    world.say(leader, "n1", "train-1", gpu="MIG-a")
    world.state("n1", "Drained")
    until("it has left", lambda: world.pods() == ["train-0", "web"])
    assert world.bears("n1") == (True, True) and world.bears("n0") == (False, False)


def held_longer_than_its_deadline(world):
    """Time without permission to evict must not count for a drain's deadline."""
    world.write("policy.toml", QUICK.replace("retry_s = 1", "retry_s = 1\ndeadline_s = 5"))
    world.job(2)
    world.budget("quorum", 2)
    leader = world.leader()
    world.say(leader, "n1", "train-1")
    until("it is cordoned", lambda: world.health("n1").get("cordoned"))
    world.patch("/api/v1/nodes/n1", {"metadata": {"annotations": {"paceline.dev/hold": "true"}}})
    until("it is held", lambda: "a person holds it" in world.health("n1").get("reason", ""))
    time.sleep(6)
    world.ask("DELETE", "/apis/policy/v1/namespaces/ml/poddisruptionbudgets/quorum")
    world.patch("/api/v1/nodes/n1", {"metadata": {"annotations": {"paceline.dev/hold": None}}})
    world.state("n1", "Drained")
    assert "drain-blocked" not in world.words("n1"), world.words("n1")


def no_right_to_patch_nodes(world):
    """A drain's deadline must start with the cordon, and the reason for the delay must be shown."""
    world.write("policy.toml", QUICK.replace("retry_s = 1", "retry_s = 1\ndeadline_s = 3"))
    world.job(2)
    role = "/apis/rbac.authorization.k8s.io/v1/clusterroles/remediator"
    world.patch(role, {"rules": [rule for rule in world.rights["ClusterRole"] if "patch" not in rule["verbs"]]})
    leader = world.leader()
    world.say(leader, "n1", "train-1")
    until("it says why", lambda: "the node cannot be marked: 403" in world.health("n1").get("reason", ""))
    time.sleep(4)
    assert world.health("n1")["state"] == "Draining", world.health("n1")
    world.patch(role, {"rules": world.rights["ClusterRole"]})
    world.state("n1", "Drained")
    assert "drain-blocked" not in world.words("n1"), world.words("n1")


def no_right_to_a_preflight(world):
    """The reason must be shown at once. The preflight must end at its deadline and be retried."""
    world.write("policy.toml", QUICK + "preflight_deadline_s = 6\n")
    world.job(2)
    role = "/apis/rbac.authorization.k8s.io/v1/namespaces/paceline/roles/remediator"
    world.patch(role, {"rules": [rule for rule in world.rights["Role"] if rule["resources"] != ["jobs"]]})
    leader = world.leader()
    world.say(leader, "n1", "train-1")
    world.state("n1", "Drained")
    world.say(leader, "n1", "train-1", "resolved")
    until("it says why", lambda: "could not run: Job paceline-preflight-" in world.health("n1")["reason"])
    until("it ends", lambda: world.words("n1").count("preflight-unrun") == 1)
    # Kills the leader before the next preflight starts, whose deadline would be too short for a busy machine.
    world.kill(leader)
    said = world.health("n1")["history"][-1]["says"]
    assert "403" in said and "jobs" in said and world.bears("n1") == (True, True), said
    world.patch(role, {"rules": world.rights["Role"]})
    world.write("policy.toml", QUICK)
    world.leader()
    world.preflight("n1", True)
    world.state("n1", "Healthy")


def what_did_not_leave_in_time(world):
    """Evictions must restart for a new fault, and on an administrator's request. The pod leaves when it can."""
    world.write("policy.toml", QUICK.replace("retry_s = 1", "retry_s = 1\ndeadline_s = 2"))
    world.job(4)
    world.budget("quorum", 4)
    leader = world.leader()
    world.say(leader, "n1", "train-1")
    world.state("n1", "DrainBlocked")
    world.patch("/api/v1/nodes/n1", {"metadata": {"annotations": {"paceline.dev/drain": "ada"}}})
    until("a person is heard", lambda: world.words("n1").count("drain-blocked") == 2)
    assert "paceline.dev/drain" not in world.see("n1")["metadata"]["annotations"]
    world.say(leader, "n1", "train-1", gpu="GPU-b")
    until("what is new is heard", lambda: world.words("n1").count("drain-blocked") == 3)
    world.state("n1", "DrainBlocked")
    assert "1 pods are left" in world.health("n1")["reason"] and "quorum" in world.health("n1")["reason"], world.health("n1")
    world.ask("DELETE", "/apis/policy/v1/namespaces/ml/poddisruptionbudgets/quorum")
    drained = world.state("n1", "Drained")
    assert "train-1" not in world.pods() and "quorum" not in drained["reason"], drained


def others_who_say_much(world):
    """The fault of a node must stay recorded despite many other reports. Otherwise the node would return to service
    with the fault, without a preflight."""
    world.write("policy.toml", QUICK + 'preflight = "none"\n')
    world.job(4)
    leader = world.leader()
    world.say(leader, "n1", "train-1")
    world.state("n1", "Drained")
    world.pod("web-0", "n1", "web", gpus=None)
    one = world.parcel("n1", "web-0", finding="straggler-node")["notices"][0]
    for status in ("firing", "resolved"):
        notices = [one | {"subject": f"node {index}", "severity": "info", "status": status} for index in range(60)]
        body = {"version": 1, "unix_ms": 1, "notices": notices}
        until("it is heard", lambda body=body: world.send(leader, body, world.pod_token("web-0"))[0] == 200)
    time.sleep(4)
    health = world.health("n1")
    is_open = [incident["finding"] for incident in health["incidents"].values() if "closed" not in incident]
    assert (health["state"], is_open) == ("Drained", ["gpu-lost"]) and world.bears("n1") == (True, True), health
    assert "evict" in world.words("n1") and "unkept" in world.words("n1") and health["unkept"] > 20, health


def out_with_an_open_fault(world):
    """The next leader must have the reason why a node is out of service, also from records with fields that an API
    server dropped. Unreadable records need an administrator."""
    world.job(4)
    leader = world.leader()
    world.say(leader, "n1", "train-1")
    drained = world.state("n1", "Drained")
    assert [entry["number"] for entry in drained["history"]] == [1, 2, 3], drained["history"]

    def after_a_restart(state):
        """Restarts the leader. Two checks without problems, one per second, would then be enough to start a
        preflight."""
        nonlocal leader
        world.kill(leader)
        leader = world.leader()
        until("it is in charge", lambda: "paceline_remediator_leader 1" in world.page(leader))
        time.sleep(4)
        health = world.health("n1")
        assert health["state"] == state and world.bears("n1") == (True, True), health
        assert not world.ask("GET", "/apis/batch/v1/namespaces/paceline/jobs")["items"], "nobody thinks of giving it back"
        assert "adopted" not in world.words("n1") and "gpu-lost" in health["reason"], health
        return health

    def rewritten(change):
        object = world.ask("GET", f"{HEALTHS}/n1")
        change(object["status"])
        world.kill(leader)
        world.ask("PUT", f"{HEALTHS}/n1/status", object)

    assert after_a_restart("Drained")["history"] == drained["history"]

    def without_numbers(status):
        status["history"] = [{word: entry[word] for word in entry if word != "number"} for entry in status["history"]]

    rewritten(without_numbers)
    after_a_restart("Drained")

    def of_a_later_version(status):
        (one,) = status["incidents"].values()
        status["incidents"]["later"] = one | {"finding": "of-another-century"}

    rewritten(of_a_later_version)
    held = after_a_restart("Held")
    assert world.words("n1")[-1] == "unreadable" and "incidents.later" in held["history"][-1]["says"], held["history"]
    # Only an administrator can return the node to service.
    world.say(leader, "n1", "train-1", "resolved")
    time.sleep(4)
    assert world.health("n1")["state"] == "Held" and world.bears("n1") == (True, True)
    world.patch("/api/v1/nodes/n1", {"metadata": {"annotations": {"paceline.dev/repaired": "ada"}}})
    world.preflight("n1", True)
    until("it is back", lambda: world.bears("n1") == (False, False))
