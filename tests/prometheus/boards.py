#!/usr/bin/env python3
"""Tests Grafana's boards: every query of deploy/grafana, with its variables filled in, runs on a real Prometheus that
scraped a real simulated job with a slow rank and a hot GPU, checkpoints and a restart, a node with GPUs simulated by
tests/fake-nvml and ports from files, and a job's end; so do those of docs/metrics.md and the series recorded by
deploy/autoscaling. No result may be empty, and each annotation must have occurred. Each panel must have a unit, a place
of its own, and a clear title; each board must use the one data source, and have a variable for each that a query uses.

    tests/prometheus/boards.py     takes Debian's prometheus; PACELINE: the binary
"""

import glob
import http.server
import json
import os
import re
import subprocess
import sys
import time

from world import HERE, PACELINE, played, until

BOARDS = os.path.join(HERE, "../../deploy/grafana")
AUTOSCALING = os.path.join(HERE, "../../deploy/autoscaling/paceline.autoscaling.rules.yaml")
# Filled in like by Grafana; a rate needs more than two scrapes.
KNOWN = {"__rate_interval": "30s", "__range": "1m", "instance": ".+", "job": "delivery", "price": "2.5"}
# A checkpoint every six seconds; after twenty, training restarts.
WORLD = "checkpoint-every=50 restart=160 restart-takes=16s"
# Titles must be clear without the documentation.
RIDDLES = {"ill", "told", "tell", "somebody", "whole", "trouble", "binds", "hides", "well", "woken", "wake"}
# Over a long window, the increase of a young counter is too small to see.
LONG = re.compile(r"\[(1h|1d|5m)\]")


def queries(board):
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]


def told():
    """The queries in docs/metrics.md."""
    text = open(os.path.join(HERE, "../../docs/metrics.md")).read()
    found = re.findall(r"^```promql\n(.*?)^```$", text, re.M | re.S)
    assert found, "docs/metrics.md has no queries"
    return found


def recorded():
    """The series for autoscalers."""
    found = re.findall(r"- record: (\S+)", open(AUTOSCALING).read())
    assert found, AUTOSCALING
    return found


def filled(query):
    for name, value in KNOWN.items():
        query = query.replace(f"${name}", value)
    return LONG.sub("[1m]", query)


def faults_of(name, board):
    """The problems of a board."""
    cells, titles = set(), set()
    known = {variable["name"] for variable in board["templating"]["list"]}
    for panel in board["panels"]:
        where, place = f"{name}: {panel['title']}", panel["gridPos"]
        if found := RIDDLES & set(re.findall(r"[a-z]+", panel["title"].lower())):
            yield f"{where}: says {', '.join(found)}"
        if place["x"] + place["w"] > 24:
            yield f"{where}: wider than the board"
        mine = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
        if cells & mine:
            yield f"{where}: lies over another"
        cells |= mine
        if panel["type"] == "row":
            continue
        if panel["title"] in titles:
            yield f"{where}: twice"
        titles.add(panel["title"])
        if not panel["fieldConfig"]["defaults"].get("unit"):
            yield f"{where}: no unit"
        for target in panel["targets"]:
            if target["datasource"]["uid"] != "${datasource}":
                yield f"{where}: a data source of its own"
    for title, query in queries(board):
        for variable in re.findall(r"\$(\w+)", query):
            if not variable.startswith("__") and variable not in known:
                yield f"{name}: {title}: ${variable} is no variable of the board"


def textfile(path):
    class Node(http.server.BaseHTTPRequestHandler):
        """Serves a file like node_exporter's textfile collector."""

        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(open(path, "rb").read())

        def log_message(self, *_):
            pass
    return Node


def job_ends(world, file, code):
    subprocess.run([PACELINE, "run", "--quiet", "--textfile", file, "--run-dir", world.path(f"short-{code}"), "--", "sh", "-c",
                    f"exit {code}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=60)


def play(world, boards):
    ends = world.path("ends.prom")
    job_ends(world, ends, 0)
    world.play_gpus()
    world.play_ports()
    world.watch("--ranks", "64", "--speed", "8", "--world", WORLD, "--fault", "slow rank=7 factor=1.3 from=32 cause=thermal")
    world.scrape(f"127.0.0.1:{world.serve(textfile(ends))}", rules=[AUTOSCALING])
    until("a slow rank that Prometheus knows", lambda: world.query("paceline_rank_slowdown_ratio"))
    job_ends(world, ends, 3)
    asked = [(name, title, query) for name, board in boards.items() for title, query in queries(board)]
    asked += [("docs/metrics.md", "", query) for query in told()]
    asked += [("docs/remedies.md", "", name) for name in recorded()]
    # An annotation lasts only a moment: it must have occurred.
    asked += [(name, mark["name"], f"max_over_time(({mark['expr']})[10m:1s])") for name, board in boards.items()
              for mark in board["annotations"]["list"]]
    silent = asked
    give_up = time.monotonic() + 90
    # Windows have to fill first.
    while silent and time.monotonic() < give_up:
        silent = [(name, title, query) for name, title, query in silent if not world.query(filled(query))]
        time.sleep(1)
    for name, title, query in silent:
        print(f"{name}: {title}: nothing: {filled(query)}", file=sys.stderr)
    assert not silent, f"{len(silent)} of {len(asked)} queries give nothing"
    print(f"{len(asked)} queries of {len(boards)} boards and docs/metrics.md: each has an answer")


def main():
    subprocess.run([sys.executable, os.path.join(BOARDS, "boards.py"), "--check"], check=True)
    boards = {os.path.basename(path)[:-5]: json.load(open(path)) for path in sorted(glob.glob(f"{BOARDS}/*.json"))}
    wrong = [fault for name, board in boards.items() for fault in faults_of(name, board)]
    assert boards and not wrong, wrong
    played("boards", lambda world: play(world, boards))


if __name__ == "__main__":
    main()
