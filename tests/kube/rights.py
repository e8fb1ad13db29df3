"""The chart's permissions: its roles from the real helm, parsed without a YAML library. Tests deny everything else,
too."""

import os
import subprocess

from tools import ROOT, tools

CHART = os.path.join(ROOT, "deploy", "helm", "paceline")


def rights(part, *values):
    """Returns the rules of a part's Role and ClusterRole, in a release `paceline` of the namespace `paceline`."""
    words = ["template", "paceline", CHART, "--namespace", "paceline", "--show-only", f"templates/{part}/rights.yaml"]
    words += [word for value in values for word in ("--set", value)]
    text = subprocess.run([tools()[0], *words], check=True, capture_output=True, text=True).stdout
    found = {}
    for document in text.split("\n---\n"):
        kind = next(line.partition(": ")[2] for line in document.splitlines() if line.startswith("kind: "))
        if kind in ("Role", "ClusterRole"):
            found[kind] = rules(document.partition("\nrules:\n")[2])
    return found


def rules(text):
    """Parses rules. Each is a block of lines `word: [a, b]`; anything else is an error here."""
    found = []
    for line in text.splitlines():
        if line.strip() and not line.strip().startswith("#"):
            if line.startswith("  - "):
                found.append({})
            word, _, items = line[4:].partition(": ")
            assert items.startswith("[") and items.endswith("]"), line
            found[-1][word] = [item.strip().strip('"') for item in items[1:-1].split(",")]
    assert found and all({"apiGroups", "resources", "verbs"} <= set(rule) for rule in found), text
    return found
