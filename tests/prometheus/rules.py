#!/usr/bin/env python3
"""Every rule of deploy/prometheus, by promtool: each alert of a finding fires for a warning and for a critical verdict with its
words as they are written, after what `for` says and not before, and is quiet for info, for what is over, for another finding and,
where it waits, for what one scrape saw. Then what is written in paceline.rules.test.yaml, and Alertmanager's example by amtool.

    tests/prometheus/rules.py     takes Debian's prometheus (promtool) and prometheus-alertmanager (amtool)
"""

import os
import re
import subprocess
import sys
import tempfile

HOME = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../deploy/prometheus")
RULES = os.path.join(HOME, "paceline.rules.yaml")
SCRAPE_S = 5


def alerts():
    """Name, finding, seconds that it waits, and annotations of each alert of a finding."""
    for block in open(RULES).read().split("- alert: ")[1:]:
        finding = re.search(r'paceline_finding_active\{finding="([a-z-]+)", severity!="info"\} > 0\n', block)
        if finding:
            wait = re.search(r"for: (\d+)s\n", block)
            notes = dict(re.findall(r"^ {10}(summary|description|runbook_url): (.*)$", block, re.M))
            yield block.split("\n", 1)[0], finding[1], int(wait[1]) if wait else 0, notes


def fires(finding, severity, notes):
    lines = [f"- exp_labels: {{finding: {finding}, cause: thermal, severity: {severity}}}", "  exp_annotations:"]
    return lines + [f"    {name}: {text.replace('{{ $labels.cause }}', 'thermal')}" for name, text in notes.items()]


def case(name, series, expected):
    """A world: series with their values, and at which seconds which alerts are expected."""
    text = [f"  - interval: {SCRAPE_S}s", "    input_series:"]
    for finding, severity, values in series:
        labels = f'finding="{finding}", cause="thermal", severity="{severity}"'
        text += [f"      - series: 'paceline_finding_active{{{labels}}}'", f"        values: '{values}'"]
    text.append("    alert_rule_test:")
    for at, lines in expected:
        text += [f"      - eval_time: {at}s", f"        alertname: {name}", "        exp_alerts:" + ("" if lines else " []")]
        text += ["          " + line for line in lines]
    return text


def cases():
    for name, finding, wait, notes in alerts():
        for severity in ("warning", "critical"):
            # It begins at 10 s and is over at 60 s.
            expected = [(5, []), (10 + wait, fires(finding, severity, notes)), (55, fires(finding, severity, notes)), (60, [])]
            if wait:
                expected.insert(1, (10 + wait - SCRAPE_S, []))
            yield case(name, [(finding, severity, "0x1 1x9 0x3")], expected)
        other = "straggler" if finding != "straggler" else "gpu-fault"
        quiet = [(finding, "info", "1x12"), (finding, "warning", "0x12"), (other, "warning", "1x12")]
        yield case(name, quiet, [(at, []) for at in (0, 30, 60)])
        if wait:
            yield case(name, [(finding, "warning", "0x1 1x1 0x1 1 0 1 0x3")], [(at, []) for at in range(0, 60, SCRAPE_S)])


def main():
    known = list(alerts())
    for name, finding, wait, notes in known:
        # The aggregator's own notices have the same names.
        assert name == "Paceline" + finding.title().replace("-", ""), (name, finding)
        assert wait in (0, 15) and notes["runbook_url"].endswith(f"/docs/findings.md#{finding}"), (name, wait, notes)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "every.yaml")
        made = list(cases())
        with open(path, "w") as file:
            file.write(f"rule_files: [{os.path.abspath(RULES)}]\nevaluation_interval: {SCRAPE_S}s\ntests:\n")
            file.write("\n".join(line for world in made for line in world) + "\n")
        failed = [words for words in (
            ["promtool", "check", "rules", RULES],
            ["promtool", "test", "rules", path],
            ["promtool", "test", "rules", os.path.join(HOME, "paceline.rules.test.yaml")],
            ["amtool", "check-config", os.path.join(HOME, "alertmanager.yaml")],
        ) if subprocess.run(words).returncode]
    if failed:
        sys.exit(f"wrong: {[' '.join(words[:3]) for words in failed]}")
    print(f"{len(known)} alerts of findings, {len(made)} worlds: each fires when it should and not otherwise")


if __name__ == "__main__":
    main()
