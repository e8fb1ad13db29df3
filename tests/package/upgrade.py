#!/usr/bin/env python3
"""Two versions in one job, and the older one's data: `upgrade.py OLD NEW TORCH-VENV`, two programs and PyTorch's
environment.

A DDP job of two nodes, with a slow rank on the second, is monitored by both, each in turn as the aggregator's. Then NEW
reads the data of OLD: journal, report, and a configuration with every key.
"""

import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TRAIN = [os.path.join(ROOT, "tests", "trainers", "ddp.py"), "--steps", "200", "--sleep-ms", "40", "--slow-rank", "2", "--slow-pct", "25"]


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def said(*words, cwd):
    return subprocess.run(words, cwd=cwd, check=True, capture_output=True, text=True).stdout


def findings(report):
    return sorted({(verdict["finding"], verdict["subject"].get("rank")) for verdict in report["verdicts"]})


def job(first, second, venv, folder):
    """The report of `first`, which runs the aggregator."""
    key = os.path.join(folder, "key")
    if not os.path.exists(key):
        with open(os.open(key, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
            file.write(secrets.token_hex(32))
    rendezvous, aggregator = free_port(), free_port()
    environment = {**os.environ, "PATH": f"{venv}/bin:{os.environ['PATH']}", "OMP_NUM_THREADS": "1", "PACELINE_KEY_FILE": key}
    nodes = []
    for node, program in enumerate((first, second)):
        words = [program, "run", "--job", "both", "--node", f"node-{node}", "--aggregator", f"127.0.0.1:{aggregator}",
                 "--run-dir", f"run-{node}", "--", "torchrun", "--nnodes", "2", "--node-rank", str(node), "--nproc-per-node", "2",
                 "--master-addr", "127.0.0.1", "--master-port", str(rendezvous), *TRAIN]
        log = open(os.path.join(folder, f"log-{node}"), "w+")
        while node and not os.path.exists(os.path.join(folder, "run-0", "metrics.addr")):
            assert nodes[0][0].poll() is None, open(nodes[0][1].name).read()
            time.sleep(0.05)  # the first one that listens runs the aggregator
        nodes.append((subprocess.Popen(words, cwd=folder, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL), log))
    for process, log in nodes:
        code = process.wait(300)
        log.seek(0)
        assert code == 0, log.read()[-4000:]
    with open(os.path.join(folder, "run-0", "report.json")) as file:
        report = json.load(file)
    seen = report["coverage"]["ranks_seen"]
    assert seen == 4, f"{seen} of 4 ranks were seen"
    assert ("straggler", 2) in findings(report), findings(report)
    return report


def left_behind(new, run, report):
    """A replay gives the same findings, and the report can be compared."""
    again = json.loads(said(new, "replay", "--json", run, cwd=run))
    assert findings(again) == findings(report), (findings(again), findings(report))
    assert "rank 2" in said(new, "report", run, cwd=run)
    said(new, "report", "--compare", run, run, cwd=run)


def configured(old, new, folder):
    """A file with every key that has an explicit value; both read all of it from there."""
    rows = [line.rsplit("#", 1)[0].strip() for line in said(old, "config", "--origin", cwd=folder).splitlines()]
    rows = [" ".join(row.split()) for row in rows if "= (" not in row and " = " in " ".join(row.split())]
    with open(os.path.join(folder, "paceline.toml"), "w") as file:
        file.write("\n".join(rows) + "\n")
    for program in (old, new):
        lines = [line for line in said(program, "config", "--origin", cwd=folder).splitlines() if "paceline.toml" in line]
        assert len(lines) == len(rows), f"{program}: {len(lines)} of {len(rows)} keys"
    return len(rows)


def main(old, new, venv):
    old, new, venv = map(os.path.abspath, (old, new, venv))
    for first, second, text in ((old, new, "the older has the aggregator"), (new, old, "the newer has the aggregator")):
        with tempfile.TemporaryDirectory() as folder:
            report = job(first, second, venv, folder)
            print(f"{text}: {findings(report)}")
            if first == old:
                left_behind(new, os.path.join(folder, "run-0"), report)
                print("journal and report of the older: the same")
    with tempfile.TemporaryDirectory() as folder:
        print(f"configuration of the older: {configured(old, new, folder)} keys")


main(*sys.argv[1:])
