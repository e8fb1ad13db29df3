#!/usr/bin/env python3
"""Faults of networks, machines and clocks, with real processes: nodes are network namespaces on this machine, each with
a real `paceline run` and a trainer that reports steps. After each fault, every step of a trainer is in the journal,
once, and each node's GPU fault from its kernel log in the meantime is a verdict. docs/transport.md.

    tests/transport/faults.py [CASE...]      weather, killed, relayed, blinded, moved, full, narrow, elastic, two_jobs, descriptors, strangers, doors;
                                    side by side

Needs root, iproute2, nftables, ethtool, gcc, openssl and curl. PACELINE: the binary.
"""

import json
import os
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback

import relays as by_relay
import strangers as others
from job import HERE, PACELINE, PATIENCE, Journal, Net, Node, go_on, run, stop, until

FAULT_S = 6


def started(journal, nodes, steps=3):
    keys = [key for node in nodes for key in ((int(rank.split(":")[0]), int(rank.split(":")[2])) for rank in node.ranks)]
    until("the first steps", lambda: all(len(journal.steps()[0].get(key, ())) >= steps for key in keys))


def faults_of(nodes, bus):
    for node in nodes:
        node.fault(bus)
    return {(node.name, f"0000:{bus:02x}:00.0") for node in nodes}


def arrived(what, journal, nodes, found):
    """Waits until all steps so far are in a journal and every fault is a verdict."""
    told = {key: last for node in nodes for key, last in node.has_told().items()}
    until(f"{what}: the steps", lambda: all(
        set(range(1, last + 1)) <= journal.steps()[0].get(key, set()) for key, last in told.items()))
    until(f"{what}: the faults", lambda: found <= journal.faults())


def ended(journal, nodes):
    """Ends the job. No step may be missing, and none may be duplicated."""
    for node in nodes[1:] + nodes[:1]:
        node.end()
    missing, again = journal.missing(nodes), journal.steps()[1]
    assert not missing, f"told and in no journal: {missing}"
    assert not again, f"{again} steps more than once"


def job(net, name, count, aggregator="n1:4711", **variables):
    nodes = [Node(net, i, name, [f"{i - 1}:{count}:0"], aggregator, **variables.get(f"n{i}", {})) for i in range(1, count + 1)]
    return nodes, Journal(nodes[0].run_dir)


def weather(net):
    """Each node has a different problem, all at once: loss of 1, 10 and 30 % of the frames; delay with reordering;
    duplicate frames; another address; a wall clock that jumps an hour ahead or back; partitions up, down and both ways;
    a stopped sidecar, which is a slow reader. After that, half of the nodes are cut off together."""
    run("gcc", "-shared", "-fPIC", "-O1", "-o", f"{net.work}/clock.so", f"{HERE}/clock.c", "-ldl")
    clocks = {}
    for i in (8, 9):
        clocks[i] = f"{net.work}/clock{i}"
        with open(clocks[i], "wb") as file:
            file.write(struct.pack("l", 0))
    preload = {f"n{i}": {"LD_PRELOAD": f"{net.work}/clock.so", "PACELINE_CLOCK": clocks[i]} for i in clocks}
    nodes, journal = job(net, "weather", 13, **preload)
    started(journal, nodes)
    for i, percent in ((2, 1), (3, 10), (4, 30)):
        net.lose(i, percent)
    net.rough(5, 20, 60, 0)
    net.rough(6, 1, 1, 20)
    net.ip("-n", net.space(7), "addr", "del", "10.77.0.7/24", "dev", "eth0")
    net.ip("-n", net.space(7), "addr", "add", "10.77.0.107/24", "dev", "eth0")
    for i, ahead in ((8, 3600), (9, -3600)):
        with open(clocks[i], "r+b") as file:
            file.write(struct.pack("l", ahead))
    net.lose(10, 100, "up")
    net.lose(11, 100, "down")
    net.lose(12, 100)
    stopped = nodes[12].sidecar()
    stop(stopped)
    # A sidecar restarted with the other clock has a number out of order. It does not report kernel messages from before
    # its start.
    found = faults_of(nodes[:8] + nodes[9:], 0x11)
    os.kill(nodes[8].sidecar(), signal.SIGKILL)
    time.sleep(FAULT_S)
    for i in (10, 11, 12):
        net.heal(i)
    go_on(stopped)
    arrived("under loss, delay, doubling", journal, nodes, found)
    for i in (2, 3, 4):
        net.heal(i)
    for i in range(8, 14):
        net.lose(i, 100)
    found |= faults_of(nodes, 0x12)
    time.sleep(FAULT_S)
    for i in range(8, 14):
        net.heal(i)
    arrived("half of the nodes cut off", journal, nodes, found)
    ended(journal, nodes)


def killed(net):
    """The aggregator is killed while one node gets nothing from it (a half-open connection). It is restarted, and is
    then stopped for longer than the link timeout."""
    nodes, journal = job(net, "killed", 3)
    started(journal, nodes)
    net.lose(3, 100)
    before = nodes[0].sidecar()
    # The first node's fault comes later, because kernel messages from before a sidecar's start are not read.
    found = faults_of(nodes[1:], 0x21)
    os.kill(before, signal.SIGKILL)
    time.sleep(FAULT_S)
    net.heal(3)
    arrived("killed, and half-open", journal, nodes, found)
    again = nodes[0].sidecar()
    assert again != before
    unheard = journal.unheard()
    stop(again)
    found |= faults_of(nodes, 0x22)
    time.sleep(FAULT_S)
    go_on(again)
    arrived("stopped", journal, nodes, found)
    # The aggregator was not reading, so no node may count as blind.
    assert journal.unheard() == unheard, journal.unheard()
    ended(journal, nodes)


def moved(net):
    """The aggregator's machine is gone for good, and another one takes its name."""
    net.name({"watch": 1})
    nodes, _ = job(net, "moved", 3, "watch:4711")
    first, others = nodes[0], nodes[1:]
    journal, second = Journal(*(node.run_dir for node in nodes)), Journal(others[0].run_dir)
    started(journal, nodes)
    for pid in run("ip", "netns", "pids", net.space(1)).split():
        os.kill(int(pid), signal.SIGKILL)
    first.process.wait()
    net.name({"watch": 2})
    found = faults_of(others, 0x31)
    until("the other aggregator", lambda: {key[0] for key in second.steps()[0]} >= {1, 2})
    arrived("moved", journal, others, found)
    for node in others[::-1]:
        node.end()
    missing = journal.missing(others)
    assert not missing, f"told and in no journal: {missing}"
    assert found <= second.faults(), second.faults()


def full(net):
    """The disk under the run directory is full for a while. Losses must be counted completely, and later data must
    arrive."""
    disk = f"{net.work}/disk"
    os.makedirs(disk)
    run("mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", disk)
    try:
        nodes, journal = job(net, "full", 2, n1={"run_dir": f"{disk}/run"})
        started(journal, nodes)
        with open(f"{disk}/filler", "wb", buffering=0) as filler:
            try:
                while filler.write(b"x" * 512):
                    pass
            except OSError:
                pass
        faults_of(nodes, 0x41)
        time.sleep(FAULT_S)
        os.remove(f"{disk}/filler")
        found = faults_of(nodes, 0x42)
        until("faults that came later", lambda: found <= journal.faults())
        for node in nodes[::-1]:
            node.end()
        missing = sum(len(steps) for steps in journal.missing(nodes).values())
        coverage = journal.report()["coverage"]
        counted = coverage["frames_lost"] + coverage.get("journal_lost", 0)
        assert missing <= counted, f"{missing} missing, {counted} counted: {coverage}"
        print(f"     full: {missing} steps missing, {counted} frames counted as lost", flush=True)
    finally:
        for node in net.nodes:
            node.kill()
        run("umount", disk)


def elastic(net):
    """Eight ranks on two nodes become six and eight again, each time with new trainer processes."""
    script = f"{net.work}/elastic.sh"
    with open(script, "w") as file:
        file.write('stop=$1 told=$2; shift 2\nfor ranks in "$@"; do\n'
                   f'  "{sys.executable}" "{HERE}/trainer.py" "$stop.${{ranks##*:}}" "$told" $ranks || exit\ndone\n')
    nodes, parts = [], {}
    for i in (1, 2):
        spans = [(range((i - 1) * world // 2, i * world // 2), world, restart) for world, restart in ((8, 0), (6, 1), (8, 2))]
        parts[i] = [[f"{rank}:{world}:{restart}" for rank in ranks] for ranks, world, restart in spans]
        own = f"{net.work}/elastic-n{i}"
        command = ["sh", script, f"{own}/stop", f"{own}/told", *(" ".join(part) for part in parts[i])]
        nodes.append(Node(net, i, "elastic", parts[i][0], "n1:4711", command=command))
    journal = Journal(nodes[0].run_dir)
    for restart in (0, 1, 2):
        for node in nodes:
            node.ranks = parts[node.i][restart]
        started(journal, nodes)
        found = faults_of(nodes, 0x51 + restart)
        if restart < 2:
            for node in nodes:
                open(f"{node.stop}.{restart}", "w").close()
    arrived("resized", journal, nodes, found)
    for node in nodes:
        open(f"{node.stop}.2", "w").close()
    ended(journal, nodes)
    assert journal.report()["world_size"] == 8


def two_jobs(net):
    """Two jobs run on the same two nodes, with aggregators on the same one. Neither may get data of the other."""
    nodes = {name: [Node(net, i, name, [f"{i - 1}:2:0"], "n1") for i in (1, 2)] for name in ("one", "two")}
    journals = {name: Journal(own[0].run_dir) for name, own in nodes.items()}
    found = {}
    for (name, own), bus in zip(nodes.items(), (0x61, 0x62)):
        started(journals[name], own)
        # As in `killed`, no fault is logged on the node whose sidecar is killed next, which may not have read its
        # kernel log yet.
        found[name] = faults_of(own[1:] if name == "one" else own, bus)
    os.kill(nodes["one"][0].sidecar(), signal.SIGKILL)
    for name, own in nodes.items():
        arrived(name, journals[name], own, found[name])
        ended(journals[name], own)
        assert journals[name].faults() == found[name]


def aggregator_of(net, name, port, run_dir, log, **more):
    words = [PACELINE, "sidecar", "--job", name, "--node", "watch", "--run-dir", run_dir, "--aggregator", f"127.0.0.1:{port}"]
    return subprocess.Popen(
        ["ip", "netns", "exec", net.space(1), *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
        env={**os.environ, "HOME": net.work, "TMPDIR": net.work}, **more)


def simulated(net, name, port, *words):
    load = ["ip", "netns", "exec", net.space(1), PACELINE, "simulate", "--connect", f"127.0.0.1:{port}", "--job", name, *words]
    return subprocess.Popen([*load, "--json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                            env={**os.environ, "HOME": net.work, "TMPDIR": net.work})


def narrow(net):
    """Another process fills the disk of a journal except for a few megabytes, when it is opened and again later. The
    journal must be thinned, that must be reported, and no new data may be lost."""
    disk = f"{net.work}/disk"
    os.makedirs(disk)
    run("mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", disk)

    def fill(left):
        with open(f"{disk}/filler", "wb", buffering=0) as filler:
            while (there := os.statvfs(disk)).f_bavail * there.f_frsize > left:
                filler.write(b"x" * (64 << 10))

    fill(3 << 19)
    log = open(f"{net.work}/log", "w")
    aggregator = aggregator_of(net, "narrow", 4802, f"{disk}/run", log)
    try:
        assert any("ready" in line for line in aggregator.stdout), open(log.name).read()
        played = simulated(net, "narrow", 4802, "--ranks", "32", "--steps", "800", "--speed", "40")
        journal = Journal(f"{disk}/run")
        os.remove(f"{disk}/filler")
        until("three segments", lambda: os.path.exists(f"{disk}/run/journal-000003.ndjson"))
        fill(2 << 20)
        report = json.loads(played.communicate(timeout=PATIENCE)[0])
        assert report["connect_s"] is not None and report["dropped"] == 0, report
        assert any("thinned" in entry["frame"]["event"] for entry in journal.lines("journal")
                   if isinstance(entry["frame"]["event"], dict)), os.listdir(f"{disk}/run")
        coverage = journal.report()["coverage"]
        assert coverage.get("journal_lost", 0) == 0, (coverage, open(log.name).read())
        assert any("was reduced" in note for note in coverage["notes"]), coverage
    finally:
        aggregator.terminate()
        aggregator.communicate()
        run("umount", disk)


def descriptors(net):
    """An aggregator with a limit of 40 files must report when a 41st is needed. One whose limit can be raised must
    raise it."""
    for name, limits, is_enough in (("few", (40, 40), False), ("raised", (40, 4096), True)):
        run_dir, port = f"{net.work}/{name}", 4800 + is_enough
        os.makedirs(run_dir)
        with open(f"{run_dir}/log", "w") as log:
            aggregator = aggregator_of(net, name, port, f"{run_dir}/run", log,
                                       preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, limits))
        try:
            assert any("ready" in line for line in aggregator.stdout), open(f"{run_dir}/log").read()
            played = simulated(net, name, port, "--nodes", "64", "--gpus", "1", "--steps", "3")
            if is_enough:
                report = json.loads(played.communicate(timeout=PATIENCE)[0])
                assert report["connect_s"] is not None and report["dropped"] == 0, report
            else:
                until("a clear error", lambda: re.search("of 40 file descriptors", open(f"{run_dir}/log").read()))
                played.kill()
                played.wait()
        finally:
            aggregator.terminate()
            aggregator.communicate()


CASES = {"weather": 13, "killed": 3, "relayed": 4, "blinded": 5, "moved": 3, "full": 2, "narrow": 1, "elastic": 2, "two_jobs": 2, "descriptors": 1,
         "strangers": 3, "doors": 2}


def play(name, failed):
    began = time.monotonic()
    work = tempfile.mkdtemp(prefix=f"paceline-{name}-")
    net = None
    try:
        net = Net(f"pt{os.getpid() % 10000}{list(CASES).index(name)}", CASES[name], work)
        (globals().get(name) or getattr(by_relay, name, None) or getattr(others, name))(net)
        print(f"ok   {name} ({time.monotonic() - began:.1f} s)", flush=True)
    except Exception:
        failed.append(name)
        logs = "".join(f"--- {node.name}\n{node.log()[-800:]}" for node in net.nodes) if net else ""
        print(f"FAILED {name} ({time.monotonic() - began:.1f} s)\n{traceback.format_exc()}{logs}", flush=True)
    finally:
        if net:
            net.close()
        shutil.rmtree(work, ignore_errors=True)


def main():
    chosen = sys.argv[1:] or list(CASES)
    failed = []
    began = time.monotonic()
    cases = [threading.Thread(target=play, args=(name, failed)) for name in chosen]
    for case in cases:
        case.start()
    for case in cases:
        case.join()
    print(f"{len(chosen) - len(failed)} of {len(chosen)} cases in {time.monotonic() - began:.1f} s", flush=True)
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
