#!/usr/bin/env python3
"""run.py --paceline PROGRAM: replays the journals that jobs on a real GPU left, and compares the findings with expected.json.

h100/: one H100, PyTorch 2.11, NCCL 2.28.9, four ranks on one GPU (docs/measurements/hardware-check.md), with paths and the
GPU's UUID changed. No rule was tuned on them. --write: writes expected.json anew; its diff is what to review.
"""

import argparse
import gzip
import json
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
EXPECTED = HERE / "expected.json"


def findings(paceline, recording):
    """Each finding of a journal: what, rank, cause, ratio, and the sentence."""
    with tempfile.TemporaryDirectory() as scratch:
        journal = pathlib.Path(scratch, "journal.ndjson")
        journal.write_bytes(gzip.decompress(recording.read_bytes()))
        done = subprocess.run([paceline, "report", "--json", str(journal)], stdout=subprocess.PIPE, check=True)
    return [
        {
            "finding": one["finding"],
            "rank": one["subject"].get("rank"),
            "cause": one["cause"],
            "slowdown_ratio": one["slowdown_ratio"] and round(one["slowdown_ratio"], 2),
            "says": one.get("says"),
        }
        for one in json.loads(done.stdout)["verdicts"]
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--paceline", required=True, help="the program")
    parser.add_argument("--write", action="store_true", help="write expected.json")
    options = parser.parse_args()
    found = {
        "%s/%s" % (file.parent.name, file.name.removesuffix(".ndjson.gz")): findings(options.paceline, file)
        for file in sorted(HERE.glob("*/*.ndjson.gz"))
    }
    if options.write:
        EXPECTED.write_text(json.dumps(found, indent=1) + "\n")
        return 0
    expected = json.loads(EXPECTED.read_text())
    wrong = 0
    for name in sorted(expected.keys() | found.keys()):
        is_right = expected.get(name) == found.get(name)
        wrong += not is_right
        print("%-24s %s" % (name, "ok" if is_right else "WRONG: %s\n  expected: %s" % (found.get(name), expected.get(name))))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
