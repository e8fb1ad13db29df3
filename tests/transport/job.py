"""Runs jobs of real `paceline run` processes on nodes that are network namespaces, and reads the data that arrives."""

import glob
import json
import os
import signal
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
PATIENCE = 120


def run(*words, **more):
    return subprocess.run(words, check=True, capture_output=True, text=True, **more).stdout


def until(what, holds, patience=PATIENCE):
    end = time.monotonic() + patience
    while not holds():
        if time.monotonic() > end:
            raise AssertionError(f"waited in vain for {what}")
        time.sleep(0.2)


class Net:
    """Nodes n1, n2, ... on a bridge, each in a separate namespace."""

    def __init__(self, prefix, count, work):
        self.prefix, self.count, self.work, self.nodes = prefix, count, work, []
        self.relays = []
        self.bridge = prefix + "b"
        self.ip("netns", "add", self.bridge)
        self.ip("-n", self.bridge, "link", "add", "br0", "type", "bridge")
        self.ip("-n", self.bridge, "link", "set", "br0", "up")
        for i in range(1, count + 1):
            space = self.space(i)
            self.ip("netns", "add", space)
            os.makedirs(f"/etc/netns/{space}", exist_ok=True)
            self.ip("link", "add", self.veth(i), "netns", self.bridge, "type", "veth", "peer", "name", "eth0", "netns", space)
            self.ip("-n", self.bridge, "link", "set", self.veth(i), "master", "br0", "up")
            self.ip("-n", space, "addr", "add", f"10.77.0.{i}/24", "dev", "eth0")
            self.ip("-n", space, "link", "set", "lo", "up")
            self.ip("-n", space, "link", "set", "eth0", "up")
            # Turns offloads off, so that frames have the size of those on a wire.
            self.inside(space, "ethtool", "-K", "eth0", "tx", "off", "gso", "off", "tso", "off", "gro", "off")
        self.name({})

    @staticmethod
    def ip(*words):
        run("ip", *words)

    def space(self, i):
        return f"{self.prefix}n{i}"

    def veth(self, i):
        return f"v{self.prefix}{i}"

    def inside(self, space, *words):
        return run("ip", "netns", "exec", space, *words)

    def name(self, more):
        """Sets the names of nodes, and of others that may move."""
        names = {f"n{i}": i for i in range(1, self.count + 1)} | more
        text = "127.0.0.1 localhost\n" + "".join(f"10.77.0.{i} {name}\n" for name, i in names.items())
        for i in range(1, self.count + 1):
            with open(f"/etc/netns/{self.space(i)}/hosts", "w") as file:
                file.write(text)

    def nft(self, space, device, table, rule):
        self.inside(space, "nft", f"add table netdev {table}; add chain netdev {table} in "
                    f"{{ type filter hook ingress device \"{device}\" priority 0; }}; add rule netdev {table} in {rule}")

    def lose(self, i, percent, ways="up down"):
        """Drops frames from a node (up), and to it (down)."""
        rule = f"numgen random mod 100 < {percent} drop" if percent < 100 else "drop"
        if "up" in ways:
            self.nft(self.bridge, self.veth(i), f"up{i}", rule)
        if "down" in ways:
            self.nft(self.space(i), "eth0", "down", rule)

    def heal(self, i):
        for space, table in ((self.bridge, f"up{i}"), (self.space(i), "down")):
            if f"table netdev {table}\n" in self.inside(space, "nft", "list", "tables") + "\n":
                self.inside(space, "nft", "delete", "table", "netdev", table)

    def block(self, i, to):
        """Drops frames from a node to another one."""
        self.nft(self.bridge, self.veth(i), f"block{i}", f"ip daddr 10.77.0.{to} drop")

    def unblock(self, i):
        self.inside(self.bridge, "nft", "delete", "table", "netdev", f"block{i}")

    def rough(self, i, delay, jitter, doubled):
        words = [sys.executable, f"{HERE}/rough.py", self.veth(i), "br0", *map(str, (delay, jitter, doubled))]
        relay = subprocess.Popen(["ip", "netns", "exec", self.bridge, *words], stdout=subprocess.PIPE)
        assert relay.stdout.readline() == b"up\n"
        self.relays.append(relay)

    def start(self, i, *words):
        """Starts a program on a node, until the net is closed."""
        words = ["ip", "netns", "exec", self.space(i), *words]
        process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        self.relays.append(process)
        return process

    def close(self):
        for node in self.nodes:
            node.kill()
        for relay in self.relays:
            relay.kill()
            relay.wait()
        for space in [self.space(i) for i in range(1, self.count + 1)] + [self.bridge]:
            subprocess.run(["ip", "netns", "del", space], capture_output=True)
            subprocess.run(["rm", "-rf", f"/etc/netns/{space}"])


class Node:
    """A `paceline run` and its ranks."""

    def __init__(self, net, i, job, ranks, aggregator, run_dir=None, command=None, **variables):
        self.name, self.i, self.ranks = f"n{i}", i, ranks
        self.dir = f"{net.work}/{job}-n{i}"
        os.makedirs(self.dir + "/tmp")
        self.stop, self.told, self.run_dir = (f"{self.dir}/{name}" for name in ("stop", "told", "run"))
        self.run_dir = run_dir or self.run_dir
        self.kmsg = f"{self.dir}/kmsg"
        open(self.kmsg, "w").close()
        ours = {name: value for name, value in os.environ.items() if not name.startswith(("PACELINE_", "XDG_"))}
        variables = {**ours, "HOME": net.work, "TMPDIR": self.dir + "/tmp", "PACELINE_RAS": "off", **variables}
        command = command or [sys.executable, f"{HERE}/trainer.py", self.stop, self.told, *ranks]
        words = ["ip", "netns", "exec", net.space(i), PACELINE, "run", "--job", job, "--node", self.name, "--run-dir",
                 self.run_dir, "--aggregator", aggregator, "--kmsg", self.kmsg, "--quiet", "--", *command]
        with open(f"{self.dir}/log", "w") as log:
            net.nodes.append(self)
            self.process = subprocess.Popen(words, env=variables, stdout=log, stderr=log,
                                            stdin=subprocess.DEVNULL)

    def log(self):
        return open(f"{self.dir}/log").read() + "".join(open(path).read() for path in glob.glob(f"{self.run_dir}/*.log"))

    def has_told(self):
        """Returns the number of steps of the node's trainers, by rank and restart."""
        told = {}
        for path in glob.glob(f"{self.told}.*.*[0-9]"):
            rank, restart = path.rsplit(".", 2)[1:]
            told[int(rank), int(restart)] = int(open(path).read())
        return told

    def sidecar(self):
        for path in glob.glob("/proc/[0-9]*/stat"):
            try:
                parent = int(open(path).read().rsplit(")", 1)[1].split()[1])
                words = open(path.replace("stat", "cmdline")).read().split("\0")
            except OSError:
                continue
            if parent == self.process.pid and "sidecar" in words:
                return int(path.split("/")[2])
        raise AssertionError(f"{self.name} has no sidecar")

    def fault(self, bus):
        with open(self.kmsg, "a") as file:
            file.write(f"4,{bus},77000000,-;NVRM: Xid (PCI:0000:{bus:02x}:00): 119, pid=7, name=a, Timeout of GSP\n")

    def end(self, patience=PATIENCE):
        open(self.stop, "w").close()
        code = self.process.wait(patience)
        assert code == 0, f"{self.name} ended with {code}: {self.log()}"

    def kill(self):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


class Journal:
    """The data written by aggregators, combined."""

    def __init__(self, *run_dirs):
        self.run_dirs = run_dirs

    def lines(self, name):
        for run_dir in self.run_dirs:
            for path in sorted(glob.glob(f"{run_dir}/{name}*.ndjson")):
                try:
                    lines = open(path, errors="replace")
                except FileNotFoundError:
                    continue  # The segment was thinned into the next.
                for line in lines:
                    try:
                        yield json.loads(line)
                    except ValueError:
                        pass  # The last line may be incomplete.

    def steps(self):
        """Returns the recorded steps by rank and restart, and the number of duplicates."""
        steps, again = {}, 0
        for entry in self.lines("journal"):
            event = entry.get("frame", entry).get("event", {})
            step = event.get("step") if isinstance(event, dict) else None
            if isinstance(step, dict):
                seen = steps.setdefault((step["rank"], step.get("restart", 0)), set())
                again += step["step"] in seen
                seen.add(step["step"])
        return steps, again

    def missing(self, nodes):
        """Returns the steps of trainers that are in no journal."""
        steps, _ = self.steps()
        return {key: sorted(set(range(1, last + 1)) - steps.get(key, set()))
                for node in nodes for key, last in node.has_told().items()
                if set(range(1, last + 1)) - steps.get(key, set())}

    def faults(self):
        """Returns the nodes and GPUs with a gpu-fault verdict."""
        return {(verdict["subject"]["node"], verdict["subject"]["gpu_uuid"]) for verdict in self.lines("verdicts")
                if verdict.get("finding") == "gpu-fault"}

    def unheard(self):
        """Returns the nodes with a telemetry-blind verdict, one entry per verdict."""
        return [verdict["subject"]["node"] for verdict in self.lines("verdicts")
                if verdict.get("finding") == "telemetry-blind" and verdict["state"] == "raised"]

    def report(self):
        return json.load(open(f"{self.run_dirs[0]}/report.json"))


PACELINE = os.environ.get("PACELINE", "target/debug/paceline-under-test")


def stop(pid):
    os.kill(pid, signal.SIGSTOP)


def go_on(pid):
    os.kill(pid, signal.SIGCONT)
