#!/usr/bin/env python3
"""What the chart has of other folders: alerts, boards and the CRD. A chart can read nothing outside its own folder.

    deploy/helm/files.py            copies them to paceline/files
    deploy/helm/files.py --check    1 where they differ
"""

import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
FILES = os.path.join(HERE, "paceline", "files")
SOURCES = ["prometheus/paceline.rules.yaml", "grafana/run.json", "grafana/fleet.json", "grafana/executive.json",
           "operator/crd.yaml"]


def read(path):
    try:
        with open(path) as file:
            return file.read()
    except FileNotFoundError:
        return None


def main():
    is_check = sys.argv[1:] == ["--check"]
    differ = []
    for source in SOURCES:
        text = read(os.path.join(os.path.dirname(HERE), source))
        place = os.path.join(FILES, os.path.basename(source))
        if text is None or read(place) == text:
            continue
        differ.append(source)
        if not is_check:
            with open(place, "w") as file:
                file.write(text)
    extra = set(os.listdir(FILES)) - {os.path.basename(source) for source in SOURCES}
    for name in [f"deploy/{name}" for name in differ] + [f"{name}, which comes from nowhere" for name in sorted(extra)]:
        print(f"deploy/helm/paceline/files is not {name}", file=sys.stderr)
    return 1 if extra or (is_check and differ) else 0


sys.exit(main())
