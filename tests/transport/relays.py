"""Cases of faults.py in which nodes send everything through relays."""

import json
import os
import re
import signal
import time

from job import PACELINE, Journal, Node, go_on, stop, until

FAULT_S = 6


def relay(net, i, job):
    """Starts a relay on a node; returns it with the address of its page."""
    key = f"{net.work}/.config/paceline/key"
    until("the job's key", lambda: os.path.exists(key))
    words = ["sidecar", "--relay", f"10.77.0.{i}:4712", "--aggregator", "n1:4711", "--job", job, "--key-file", key]
    process = net.start(i, PACELINE, *words, "--node", f"n{i}")
    return process, json.loads(process.stdout.readline())["ready"]["http"]


def links(net, i, page):
    text = net.inside(net.space(i), "curl", "-sS", "-m", "30", f"http://{page}/metrics")
    return int(re.search("^paceline_relay_links ([0-9]+)$", text, re.M)[1])


def relayed(net):
    """Nodes send everything through a relay, one of them over a link that loses frames. The relay is killed, and
    replaced a while later. Then it is stopped, and then the aggregator behind it is killed."""
    from faults import arrived, ended, faults_of, started

    nodes = [Node(net, 1, "relayed", ["0:3:0"], "n1:4711")]
    journal = Journal(nodes[0].run_dir)
    first, page = relay(net, 4, "relayed")
    nodes += [Node(net, i, "relayed", [f"{i - 1}:3:0"], "n4:4712,n1:4711") for i in (2, 3)]
    started(journal, nodes)
    assert links(net, 4, page) == 2
    net.lose(3, 10)
    found = faults_of(nodes, 0x71)
    first.kill()
    time.sleep(FAULT_S)
    second, page = relay(net, 4, "relayed")
    arrived("relay killed", journal, nodes, found)
    # Blocks the direct route, because nodes that switched to another route keep it until it fails. Only the relay is
    # left to them.
    for i in (2, 3):
        net.block(i, 1)
    until("links through the other relay", lambda: links(net, 4, page) == 2)
    unheard = journal.unheard()
    os.kill(nodes[0].sidecar(), signal.SIGKILL)
    found |= faults_of(nodes[1:], 0x72)
    arrived("aggregator killed", journal, nodes, found)
    until("links through the relay again", lambda: links(net, 4, page) == 2)
    for i in (2, 3):
        net.unblock(i)
    stop(second.pid)
    found |= faults_of(nodes, 0x73)
    time.sleep(FAULT_S)
    go_on(second.pid)
    net.heal(3)
    arrived("relay stopped", journal, nodes, found)
    ended(journal, nodes)
    print(f"     relayed: {len(unheard)} and {len(journal.unheard()) - len(unheard)} times a node unheard", flush=True)


def blinded(net):
    """One of two relays is killed, and the other is stopped at the same moment. Every node must reconnect to the
    aggregator directly before it counts as lost."""
    from faults import arrived, ended, faults_of, started

    both = "n4:4712,n5:4712"
    nodes = [Node(net, 1, "blinded", ["0:3:0"], f"{both},n1:4711")]
    journal = Journal(nodes[0].run_dir)
    (killed, _), (stopped, page) = (relay(net, i, "blinded") for i in (4, 5))
    # With these names, one node starts with the first relay and one with the second.
    nodes += [Node(net, i, "blinded", [f"{i - 1}:3:0"], f"{both},n1:4711") for i in (2, 3)]
    started(journal, nodes)
    assert links(net, 5, page) == 1
    began = time.monotonic()
    stop(stopped.pid)
    killed.kill()
    found = faults_of(nodes, 0x81)
    until("the faults", lambda: found <= journal.faults())
    took = time.monotonic() - began
    time.sleep(max(0, 8 - took))
    go_on(stopped.pid)
    arrived("no relay left", journal, nodes, found)
    assert not journal.unheard(), journal.unheard()
    ended(journal, nodes)
    print(f"     blinded: all heard again after {took:.1f} s", flush=True)
