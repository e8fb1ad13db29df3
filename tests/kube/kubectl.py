#!/usr/bin/env python3
"""Runs the kubectl commands in the docs with the real kubectl: `kubectl.py KUBE-API PACELINE-OPERATOR [PACELINE]`.

A remediator runs in a cluster of the tests' API server, and each command has the documented effect. With PACELINE, an
injected manifest is applied too. kubectl is downloaded once (tools.py); otherwise only the standard library is used.
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile
import time

from remediator_world import QUICK, ROOT, World, until
from tools import tools

HELM, KUBECTL = tools()
CRD = os.path.join("deploy", "operator", "crd.yaml")
JOB = os.path.join("deploy", "examples", "job.yaml")
# A node with findings is not limited to a tenth of the cluster here, and three such nodes at once open the breaker.
POLICY = QUICK.replace("debounce_s = 0", "debounce_s = 0\ncluster_percent = 100\njob_percent = 100")


def documented(page, block=0):
    """Returns the commands in one of the page's blocks."""
    with open(os.path.join(ROOT, "docs", page)) as file:
        text = re.findall(r"^```sh\n(.*?)^```", file.read(), re.S | re.M)[block]
    return [shlex.split(line, comments=True) for line in text.strip().splitlines()]


class Person:
    """A user with kubectl and the administrator's kubeconfig."""

    def __init__(self, world):
        self.world = world

    def types(self, *words, text=None, fails=False):
        assert words[0] == "kubectl", words
        environment = {"HOME": self.world.dir, "PATH": os.environ["PATH"]}
        done = subprocess.run([KUBECTL, "--kubeconfig", self.world.admin, *words[1:]], env=environment, cwd=ROOT, input=text,
                              capture_output=True, text=True, timeout=120)
        assert (done.returncode != 0) == fails, (words, done.stdout, done.stderr)
        return done.stderr if fails else done.stdout

    def creates(self, *words, text=None):
        """Runs `kubectl create`. It sends protobuf, which the tests' API server cannot parse, so its dry-run output is
        applied instead."""
        made = self.types(*words, "--dry-run=client", "-o", "json", text=text)
        assert "created" in self.types("kubectl", "apply", "-f", "-", text=made)


def the_definition(person):
    """Installs the CRD in three ways, over the one in the tests' cluster."""
    person.types("kubectl", "delete", "crd", "nodehealths.paceline.dev")
    assert "created" in person.types("kubectl", "apply", "-f", CRD)
    assert "unchanged" in person.types("kubectl", "apply", "-f", CRD)
    assert "serverside-applied" in person.types("kubectl", "apply", "--server-side", "-f", CRD)
    person.types("kubectl", "wait", "--for=condition=Established", "crd/nodehealths.paceline.dev")
    assert "doesn't have a resource type" in person.types("kubectl", "get", "nodehealthz", fails=True)


def what_is_known(person, world, get, describe):
    leader = world.leader()
    world.say(leader, "n1", "train-1")
    world.state("n1", "Drained")
    table = person.types(*get).splitlines()
    assert re.split(r"\s{2,}", table[0].strip()) == ["NAME", "STATE", "TAKEN TO", "REASON", "SINCE"], table
    assert re.fullmatch(r"n1 +Drained +evict +\S.*\S +[0-9]+s", table[1]), table
    assert len(table) == 2, "nothing is known of the others"
    assert person.types("kubectl", "get", "nh", "n1").splitlines()[0] == table[0]
    wide = person.types("kubectl", "get", "nodehealths", "-o", "wide").splitlines()
    assert "WOULD" in wide[0], wide
    told = person.types(*describe)
    for word in (r"State: +Drained", r"Rung: +evict", r"What: +raised", r"What: +drained", r"gpu-lost of gpu GPU-a on n1/train-1"):
        assert re.search(word, told), (word, told)
    events = person.types("kubectl", "get", "events", "-o", "jsonpath={.items[*].reason}")
    assert {"PacelineRaised", "PacelineEvict"} <= set(events.split()), events
    pods = person.types("kubectl", "-n", "ml", "get", "pods")
    assert "train-0" in pods and "train-1" not in pods, pods
    return leader


def a_node_on_hold(person, world, leader, hold):
    person.types(*hold)
    world.say(leader, "n1", "train-1", "resolved")
    time.sleep(2)
    assert world.bears("n1") == (True, True), "it is left as it is"
    person.types("kubectl", "annotate", "node", "n1", "paceline.dev/hold-")
    world.preflight("n1", True)
    until("it is back", lambda: world.bears("n1") == (False, False))


def a_repaired_node(person, world, leader, repaired):
    world.say(leader, "n2", "train-2")
    world.state("n2", "Drained")
    person.types(*[word.replace("n1", "n2") for word in repaired])
    world.preflight("n2", True)
    until("it is back", lambda: world.bears("n2") == (False, False))


def a_breaker(person, world, leader, reset):
    for index in (3, 4, 5):
        world.say(leader, f"n{index}", f"train-{index}")
    place = "/api/v1/namespaces/paceline/configmaps/paceline-remediator"
    until("the breaker opens", lambda: "breaker" in (world.call("GET", place)[1].get("data") or {}))
    person.types(*[word.replace("NAME", "ada") for word in reset])
    until("it is closed", lambda: "breaker" not in (world.ask("GET", place).get("data") or {}))


def an_injected_job(person, paceline):
    manifest = subprocess.run([paceline, "inject-manifest", "-f", JOB], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert "paceline.dev/injected" in manifest
    said = person.types("kubectl", "apply", "--dry-run=server", "-f", "-", text=manifest)
    assert "created (server dry run)" in said, said
    assert person.types("kubectl", "get", "jobs", "-o", "name") == "", "nothing came of it"
    assert "created" in person.types("kubectl", "apply", "-f", "-", text=manifest)
    assert "unchanged" in person.types("kubectl", "apply", "-f", "-", text=manifest)
    diff, applied, secret, _ = documented("kubernetes.md")
    assert diff[:4] == applied[:4] == ["paceline", "inject-manifest", "-f", "job.yaml"] and applied[4:] == ["|", "kubectl", "apply", "-f", "-"]
    person.creates(*secret[secret.index("kubectl"):], text="a key")


def a_namespace_that_trains(person):
    person.creates("kubectl", "create", "namespace", "training")
    label = documented("helm.md")[1]
    assert "labeled" in person.types(*[word.replace("TRAINING", "training") for word in label])
    person.creates("kubectl", "-n", "paceline", "create", "configmap", "paceline-remediator-ca", "--from-literal=ca.crt=an authority")
    get, create = documented("remediator.md", 1)
    with tempfile.TemporaryDirectory() as folder:
        authority = os.path.join(folder, "ca.crt")
        with open(authority, "w") as file:
            file.write(person.types(*get[:get.index(">")]))
        words = [word.replace("TRAINING", "training").replace("=ca.crt", f"={authority}") for word in create]
        person.creates(*words)
    assert person.types("kubectl", "-n", "training", "get", "configmap", "paceline-remediator-ca", "-o", "jsonpath={.data.ca\\.crt}") == "an authority"


def main():
    binaries, paceline = sys.argv[1:3], sys.argv[3:]
    get, describe, hold, repaired, drain, reset = documented("remediator.md")
    world = World(binaries, nodes=6, policy=POLICY)
    try:
        person = Person(world)
        began = time.monotonic()
        the_definition(person)
        world.job(6)
        leader = what_is_known(person, world, get, describe)
        a_node_on_hold(person, world, leader, hold)
        a_repaired_node(person, world, leader, repaired)
        # remediator_people.py tests the effect.
        assert "annotated" in person.types(*[word.replace("n1", "n0") for word in drain])
        a_breaker(person, world, leader, reset)
        a_namespace_that_trains(person)
        if paceline:
            an_injected_job(person, os.path.abspath(paceline[0]))
        print(f"kubectl: ok, {time.monotonic() - began:.0f} s")
    except BaseException:
        for process in world.processes:
            if hasattr(process, "log"):
                print(open(process.log).read()[-3000:])
        raise
    finally:
        world.end()


if __name__ == "__main__":
    main()
