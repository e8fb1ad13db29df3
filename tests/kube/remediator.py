#!/usr/bin/env python3
"""Tests the real remediator with the tests' API server: `remediator.py KUBE-API PACELINE-OPERATOR [quick | CASE ...]`.

Each case has a separate cluster and real processes of the operator, which are killed and restarted in it. Uses only the
standard library, openssl and helm (rights.py).
"""

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed

from remediator_people import (a_pod_that_is_made_again_elsewhere, cordoned_before_we_did, gpus_by_claims, gpus_that_are_not_counted,
                               held_at_once, held_longer_than_its_deadline, killed_before_its_cordon, no_right_to_a_preflight,
                               no_right_to_patch_nodes, others_who_say_much, out_with_an_open_fault,
                               slices_alone,
                               what_did_not_leave_in_time)
from remediator_rights import (a_dry_run, a_task_that_panics, a_word_in_a_dry_run, certificates_of_its_own, no_right_to_a_condition, no_right_to_see,
                               no_right_to_tell, two_of_them, what_is_refused, who_may_speak)
from remediator_world import HEALTHS, QUICK, World, until

AT_ONCE = 8  # cases at a time, which mostly wait


def there_and_back(world):
    foreign = {"key": "example.org/own", "effect": "NoExecute"}
    world.patch("/api/v1/nodes/n1", {"spec": {"taints": [foreign]}})
    world.job(4)
    world.pod("other", "n1", "web", gpus=False)
    leader = world.leader()
    world.trouble(kubelet_ms=300)
    world.say(leader, "n1", "train-1")
    world.state("n1", "Drained")
    assert world.bears("n1") == (True, True)
    assert world.pods() == ["other", "train-0", "train-2", "train-3"], "who holds no device stays"
    seen = world.see("n1")
    assert foreign in seen["spec"]["taints"] and seen["metadata"]["labels"]["paceline.dev/health"] == "unhealthy", seen
    conditions = {one["type"]: one for one in seen["status"]["conditions"]}
    assert conditions["PacelineFault"]["status"] == "True" and conditions["Ready"]["status"] == "True", conditions
    # Does what kubelets do while a GPU is unhealthy: none can be allocated, but the capacity stays.
    world.patch("/api/v1/nodes/n1/status", {"status": {"allocatable": {"nvidia.com/gpu": "0"}}})
    world.say(leader, "n1", "train-1", "resolved")
    job = world.preflight("n1", True)
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "8" and "--gpus=8" in container["command"], container
    assert {"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "compute,utility"} in container["env"], container
    term = job["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["nodeSelectorTerms"][0]["matchFields"][0]["values"] == ["n1"]
    world.state("n1", "Healthy")
    until("it is back", lambda: world.bears("n1") == (False, False))

    def condition():
        return {one["type"]: one["status"] for one in world.see("n1")["status"]["conditions"]}["PacelineFault"]

    until("nothing speaks against it", lambda: condition() == "False")
    seen = world.see("n1")
    assert seen["spec"]["taints"] == [foreign] and "paceline.dev/health" not in seen["metadata"].get("labels", {}), seen
    assert "paceline.dev/cordoned-by" not in seen["metadata"].get("annotations", {}), seen
    assert world.words("n1") == ["raised", "evict", "drained", "resolved", "preflight", "recovered"], world.words("n1")

    def told():
        return {event["reason"] for event in world.ask("GET", "/api/v1/namespaces/default/events")["items"]}

    until("Events", lambda: {"PacelineRaised", "PacelineEvict", "PacelineRecovered"} <= told())


def budgets_and_a_deadline(world):
    world.write("policy.toml", QUICK.replace("retry_s = 1", "retry_s = 1\ndeadline_s = 5"))
    world.job(4)
    world.budget("quorum", 4)
    leader = world.leader()
    world.say(leader, "n1", "train-1")
    until("the budget is named", lambda: "quorum" in world.health("n1").get("reason", ""))
    world.budget("second", 1)
    until("two budgets", lambda: "more than one PodDisruptionBudget" in world.health("n1").get("reason", ""))
    world.state("n1", "DrainBlocked")
    assert "train-1" in world.pods(), "nothing is deleted"
    assert world.bears("n1") == (True, True)
    page = world.page(leader)
    assert 'evictions_total{answer="budget"}' in page and 'evictions_total{answer="budgets"}' in page, page


def a_dead_node(world):
    """Without a kubelet, evicted pods never end. The drain must end with advice, and the node must wait until it is
    Ready."""
    world.write("policy.toml", QUICK.replace("retry_s = 1", "retry_s = 1\ndeadline_s = 5"))
    world.job(2)
    leader = world.leader()
    world.trouble(kubelet_ms=10_000_000)
    world.patch("/api/v1/nodes/n1/status", {"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}})
    world.say(leader, "n1", "train-1")
    blocked = world.state("n1", "DrainBlocked")
    assert "out-of-service" in blocked["history"][-1]["says"] and "train-1" in world.pods(), blocked["history"]
    # The pod is evicted and not deleted. The condition shows the Job that the pod did not fail.
    conditions = world.ask("GET", "/api/v1/namespaces/ml/pods/train-1")["status"]["conditions"]
    assert "DisruptionTarget" in [one["type"] for one in conditions], conditions
    world.say(leader, "n1", "train-1", "resolved")
    world.state("n1", "Recovering")
    time.sleep(3)
    health = world.health("n1")
    assert health["recovery"]["clean"] == 0 and world.words("n1").count("drain-blocked") == 1, health
    assert world.bears("n1") == (True, True)


def every_answer_to_an_eviction(world):
    """An eviction is answered with 201, 404, 409, 429 with and without a budget, 500 by two budgets, and 403. Each must
    be handled correctly, and the drain must continue."""
    world.job(2)
    for name in ("gone", "another", "held", "twice"):
        world.pod(name, "n1", name)
    for name, job in (("quorum", "held"), ("left", "twice"), ("right", "twice")):
        world.budget(name, 1, job)
    roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles/remediator"
    rules = world.ask("GET", roles)["rules"]
    world.patch(roles, {"rules": [rule for rule in rules if rule["resources"] != ["pods/eviction"]]})
    leader = world.leader()

    def counted(answer):
        return f'evictions_total{{answer="{answer}"}}' in world.page(leader)

    world.say(leader, "n1", "train-1")
    until("403", lambda: counted("forbidden") and "403" in world.health("n1").get("reason", ""))
    assert world.pods() == ["another", "gone", "held", "train-0", "train-1", "twice"]
    world.trouble(crowded={"pods/eviction": 2}, meanwhile={"gone": "gone", "another": "another"})
    world.patch(roles, {"rules": rules})
    until("429 of priority and fairness", lambda: counted("busy"))
    for answer in ("asked", "gone", "another", "budget", "budgets"):
        until(answer, lambda answer=answer: counted(answer))
    until("what budgets hold is left", lambda: world.pods() == ["held", "train-0", "twice"])
    reason = until("a budget is named", lambda: "quorum" in world.health("n1")["reason"] and world.health("n1")["reason"])
    assert "busy" not in reason, reason
    seen = [(line["name"], line["code"]) for line in json.loads(world.ask("GET", "/_test/audit")) if line["resource"] == "/pods/eviction"]
    for wanted in (("train-1", 201), ("gone", 404), ("another", 409), ("another", 201), ("held", 429), ("twice", 500), ("held", 403)):
        assert wanted in seen, (wanted, seen)
    for name in ("quorum", "left", "right"):
        world.ask("DELETE", f"/apis/policy/v1/namespaces/ml/poddisruptionbudgets/{name}")
    world.state("n1", "Drained")
    assert world.pods() == ["train-0"]


def killed_in_the_middle(world):
    """At each step, the next leader must continue from the state in the cluster, and not act on old reports alone."""
    world.write("policy.toml", QUICK.replace("debounce_s = 0", "debounce_s = 4"))
    world.job(4)
    world.budget("quorum", 4)
    leader = world.leader()
    world.say(leader, "n1", "train-1")
    world.kill(leader)
    leader = world.leader()
    time.sleep(6)
    assert world.health("n1")["state"] == "Suspect" and world.bears("n1") == (False, False), world.health("n1")
    world.say(leader, "n1", "train-1")
    deadline = world.state("n1", "Draining")["drain"]["until"]
    until("it is cordoned", lambda: world.bears("n1") == (True, True))
    world.kill(leader)
    # Reverts the patch, as if the leader had been killed between decision and patch.
    world.patch("/api/v1/nodes/n1", {"spec": {"unschedulable": None, "taints": None}, "metadata": {"annotations": {"paceline.dev/cordoned-by": None}}})
    status = world.ask("GET", f"{HEALTHS}/n1")
    status["status"]["cordoned"] = False
    world.ask("PUT", f"{HEALTHS}/n1/status", status)
    leader = world.leader()
    until("it is cordoned again", lambda: world.bears("n1") == (True, True))
    assert world.health("n1")["drain"]["until"] == deadline
    world.ask("DELETE", "/apis/policy/v1/namespaces/ml/poddisruptionbudgets/quorum")
    world.state("n1", "Drained")
    world.say(leader, "n1", "train-1", "resolved")
    world.state("n1", "Recovering")
    world.kill(leader)
    leader = world.leader()
    jobs = "/apis/batch/v1/namespaces/paceline/jobs"
    until("a preflight", lambda: world.ask("GET", jobs)["items"])
    world.kill(leader)
    world.leader()
    world.preflight("n1", True)
    world.state("n1", "Healthy")
    until("it is back", lambda: world.bears("n1") == (False, False))
    assert world.words("n1").count("evict") == 1 and world.words("n1").count("preflight") == 1, world.words("n1")


def a_storm(world):
    world.write("policy.toml", QUICK.replace("debounce_s = 0", "debounce_s = 5").replace("[drain]", "job_percent = 100\n[drain]"))
    world.job(10)
    leader = world.leader()
    for index in range(5):
        world.say(leader, f"n{index}", f"train-{index}")
    place = "/api/v1/namespaces/paceline/configmaps/paceline-remediator"
    until("the breaker opens", lambda: world.call("GET", place)[0] == 200)
    assert world.say(leader, "n0", "train-0").startswith("Suspect: breaker")
    world.kill(leader)
    leader = world.leader()
    for index in range(5):
        world.say(leader, f"n{index}", f"train-{index}")
    time.sleep(6)
    assert not any(world.is_cordoned(f"n{index}") for index in range(10)), "it stays open"
    assert "paceline_remediator_breaker_open 1" in world.page(leader)
    world.patch(place, {"metadata": {"annotations": {"paceline.dev/reset-breaker": "ada"}}})
    for index in range(5):
        world.say(leader, f"n{index}", f"train-{index}")
    until("one is taken out", lambda: sum(world.is_cordoned(f"n{index}") for index in range(10)))
    time.sleep(3)
    out = sum(world.is_cordoned(f"n{index}") for index in range(10))
    assert out == 1, f"a tenth of ten nodes is one: {out}"
    refused = [index for index in range(5) if "refused" in world.words(f"n{index}")]
    assert len(refused) == 5, refused
    assert "breaker" not in (world.ask("GET", place).get("data") or {})


def a_storm_that_cannot_be_written(world):
    """The breaker must be open even if it cannot be recorded. Its absence in the cluster is then not a reset."""
    world.write("policy.toml", QUICK.replace("debounce_s = 0", "debounce_s = 5").replace("[drain]", "job_percent = 100\n[drain]"))
    world.job(10)
    role = "/apis/rbac.authorization.k8s.io/v1/namespaces/paceline/roles/remediator"
    whole = world.rights["Role"]
    bare = [rule for rule in whole if rule["resources"] != ["configmaps"]]
    world.patch(role, {"rules": bare + [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]}]})
    leader = world.leader()
    for index in range(5):
        world.say(leader, f"n{index}", f"train-{index}")
    until("the breaker opens", lambda: "paceline_remediator_breaker_open 1" in world.page(leader))
    for index in range(5):
        world.say(leader, f"n{index}", f"train-{index}")
    time.sleep(7)
    assert not any(world.is_cordoned(f"n{index}") for index in range(10)), "it stays open"
    page = world.page(leader)
    assert "paceline_remediator_breaker_open 1" in page and "paceline_remediator_breaker_trips_total 1" in page, page
    log = open(leader.log).read()
    assert log.count("breaker: 403") == 1, log
    world.patch(role, {"rules": whole})
    place = "/api/v1/namespaces/paceline/configmaps/paceline-remediator"
    until("it is written", lambda: world.call("GET", place)[0] == 200)
    world.patch(place, {"metadata": {"annotations": {"paceline.dev/reset-breaker": "ada"}}})
    until("a person closes it", lambda: "paceline_remediator_breaker_open 0" in world.page(leader))


def preflights_that_fail(world):
    """A preflight that could not run gives no information, so the node must wait. A failed one counts. Two failed ones
    need an administrator."""
    world.write("policy.toml", QUICK + "preflight_deadline_s = 1\n")
    world.job(2)
    wanted = {"imagePullSecrets": [{"name": "pull"}], "tolerations": [{"key": "team", "operator": "Exists"}]}
    leader = world.leader(more=["--preflight-pod", json.dumps(wanted)])
    world.say(leader, "n1", "train-1")
    world.state("n1", "Drained")
    world.say(leader, "n1", "train-1", "resolved")
    job = world.preflight("n1", False)
    pod = job["spec"]["template"]["spec"]
    assert pod["imagePullSecrets"] == wanted["imagePullSecrets"] and wanted["tolerations"][0] in pod["tolerations"], pod
    until("it could not run", lambda: "preflight-unrun" in world.words("n1"))
    assert world.bears("n1") == (True, True) and world.health("n1")["recovery"]["failures"] == 0
    jobs = "/apis/batch/v1/namespaces/paceline/jobs"
    assert world.call("GET", f"{jobs}/{job['metadata']['name']}")[0] == 404, "it would take the GPUs some day"
    # This preflight is never scheduled and reaches its deadline.
    until("its time is over", lambda: world.words("n1").count("preflight-unrun") == 2)
    world.write("policy.toml", QUICK)
    world.kill(leader)
    leader = world.leader()
    for _ in range(2):
        world.preflight("n1", False, {"exitCode": 2, "reason": "Error", "message": "GPU 3 is slow"})
    held = world.state("n1", "Held")
    assert "GPU 3 is slow" in held["history"][-2]["says"] and world.bears("n1") == (True, True), held


def what_others_cordoned(world):
    world.job(4)
    world.patch("/api/v1/nodes/n1", {"spec": {"unschedulable": True}})
    leader = world.leader()
    world.say(leader, "n1", "train-1")
    until("it is tainted", lambda: world.bears("n1") == (True, True))
    assert "owned" in world.health("n1")["reason"] and "train-1" in world.pods()
    world.say(leader, "n1", "train-1", "resolved")
    world.preflight("n1", True)
    until("the taint goes", lambda: world.bears("n1") == (True, False))
    # An administrator's uncordon of a node must be respected.
    world.say(leader, "n2", "train-2")
    until("it is cordoned", lambda: world.health("n2").get("cordoned"))
    world.patch("/api/v1/nodes/n2", {"spec": {"unschedulable": None}})
    until("it is let go", lambda: world.bears("n2") == (False, False) and "overridden" in world.words("n2"))
    world.say(leader, "n2", "train-2") if "train-2" in world.pods() else None
    time.sleep(2)
    assert world.bears("n2") == (False, False)


def an_api_server_that_fails(world):
    world.job(4)
    leader = world.leader()
    world.trouble(conflicts={"nodes": 2, "nodehealths": 1})
    world.say(leader, "n1", "train-1")
    world.state("n1", "Draining", "Drained")
    world.trouble(away_ms=6000)
    time.sleep(6)
    world.trouble(drop_watches=True, compact=True)
    world.state("n1", "Drained")
    assert world.bears("n1") == (True, True)
    assert leader.poll() is None
    until("it is in charge again", lambda: "paceline_remediator_leader 1" in world.page(leader))
    world.say(leader, "n1", "train-1", "resolved")
    world.preflight("n1", True)
    until("it is back", lambda: world.bears("n1") == (False, False))


def a_node_that_goes(world):
    world.job(4)
    world.budget("quorum", 4)
    leader = world.leader()
    world.say(leader, "n1", "train-1")
    world.state("n1", "Draining")
    world.ask("DELETE", "/api/v1/nodes/n1")
    until("its NodeHealth goes or says so", lambda: world.health("n1").get("state", "Gone") == "Gone")
    world.node("n1")
    world.say(leader, "n2", "train-2")
    until("another may be taken out for it", lambda: world.is_cordoned("n2"))
    assert world.bears("n1") == (False, False), "a new node of the same name is another"


def how_large(world):
    """Runs only if it is named. Measures memory with 1,000 realistic nodes, 5,000 pods, a job of 400 and verdicts about
    100 nodes."""
    images = [{"names": [f"registry.example.org/team/image-{index}@sha256:{'0' * 64}"], "sizeBytes": index} for index in range(50)]
    for index in range(10, 1000):
        world.node(f"n{index}")
    for index in range(1000):
        world.patch(f"/api/v1/nodes/n{index}/status", {"status": {"images": images}})
    for index in range(400):
        world.pod(f"train-{index}", f"n{index}")
    for index in range(4600):
        world.pod(f"web-{index}", f"n{index % 1000}", "web")
    leader = world.leader()
    for index in range(100):
        world.say(leader, f"n{index}", f"train-{index}", sender=f"train-{index}")
    world.state("n0", "Draining", "Drained")
    for line in open(f"/proc/{leader.pid}/status"):
        if line.startswith(("VmRSS", "VmHWM")):
            print(line.strip())


# The longest cases come first.
CASES = [killed_in_the_middle, out_with_an_open_fault, a_storm, certificates_of_its_own, there_and_back, preflights_that_fail,
         budgets_and_a_deadline, a_dead_node,
         every_answer_to_an_eviction, a_storm_that_cannot_be_written, what_others_cordoned, an_api_server_that_fails, a_node_that_goes, who_may_speak,
         two_of_them, a_dry_run, a_word_in_a_dry_run, what_is_refused, cordoned_before_we_did,
         killed_before_its_cordon, held_at_once, a_pod_that_is_made_again_elsewhere,
         gpus_that_are_not_counted, gpus_by_claims, slices_alone, held_longer_than_its_deadline, no_right_to_a_preflight, no_right_to_patch_nodes,
         no_right_to_a_condition, no_right_to_tell, no_right_to_see, others_who_say_much, a_task_that_panics,
         what_did_not_leave_in_time]


# Cases that `quick` omits, because they measure seconds, which fails on a busy machine.
QUIET = [a_storm_that_cannot_be_written, a_pod_that_is_made_again_elsewhere, held_longer_than_its_deadline, no_right_to_a_preflight,
         no_right_to_patch_nodes, no_right_to_a_condition, no_right_to_tell, no_right_to_see]


def run(binaries, case):
    """Runs a case. Returns the duration, or the failure with the operators' logs."""
    began, world = time.monotonic(), World(binaries)
    try:
        case(world)
        return f"{time.monotonic() - began:.1f} s", True
    except Exception as problem:
        logs = [open(process.log).read()[-3000:] for process in world.processes[1:]]
        return "\n".join([f"FAILED: {type(problem).__name__} {problem}", *logs]), False
    finally:
        world.end()


def main():
    binaries, wanted = sys.argv[1:3], sys.argv[3:]
    if wanted == ["quick"]:
        wanted = [case.__name__ for case in CASES if case not in QUIET]
    cases = [case for case in [*CASES, how_large] if (case.__name__ in wanted if wanted else case is not how_large)]
    assert len(cases) >= len(wanted), f"no such case among {wanted}"
    failed = []
    with ThreadPoolExecutor(AT_ONCE) as pool:
        running = {pool.submit(run, binaries, case): case.__name__ for case in cases}
        for done in as_completed(running):
            says, is_good = done.result()
            print(f"{running[done]}: {says}", flush=True)
            failed += [] if is_good else [running[done]]
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
