#!/usr/bin/env python3
"""start.py PROGRAM: the duration of `PROGRAM --version` and of `PROGRAM run` up to the command, relative to `env true`.
Fails above the limits."""

import os
import statistics
import subprocess
import sys
import tempfile
import time

TIMES = 40


def milliseconds(begin):
    return (time.monotonic() - begin) * 1e3


def whole(words):
    begin = time.monotonic()
    subprocess.run(words, stdout=subprocess.DEVNULL, check=True)
    return milliseconds(begin)


def until_command(program):
    """The time to the first output line of the command."""
    with tempfile.TemporaryDirectory() as folder:
        words = [program, "run", "--quiet", "--run-dir", folder, "--", "sh", "-c", "echo here"]
        begin = time.monotonic()
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
            assert child.stdout.readline() == b"here\n"
            took = milliseconds(begin)
        return took


def main():
    program = os.path.abspath(sys.argv[1])
    rows = [("env true", lambda: whole(["env", "true"]), None),
            ("paceline --version", lambda: whole([program, "--version"]), 10),
            ("paceline run, to the command", lambda: until_command(program), 100)]
    took = {name: [] for name, _, _ in rows}
    # Interleaved, so that other load affects all of them.
    for _ in range(TIMES):
        for name, measure, _ in rows:
            took[name].append(measure())
    least = statistics.median(took["env true"])
    for name, _, limit in rows:
        median = statistics.median(took[name])
        print(f"{name}: {median:.1f} ms, {median / least:.1f} times env true")
        if limit and median > limit:
            sys.exit(f"{name} takes more than {limit} ms")


main()
