#!/usr/bin/env python3
"""Every rule of deploy/prometheus, by promtool: each alert of a finding fires for a warning and for a critical verdict with its
words as they are written, after what `for` says and not before, and is quiet for info, for what is over, for another finding and,
where it waits, for what one scrape saw. Each alert leads to a board that there is, with the alert's job chosen, and Alertmanager's words
make a link of that. Then what is written in paceline.rules.test.yaml and paceline.days.test.yaml, and
Alertmanager's example by amtool.

    tests/prometheus/rules.py     takes Debian's prometheus (promtool) and prometheus-alertmanager (amtool)
"""

import json
import os
import re
import subprocess
import sys
import tempfile

HOME = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../deploy/prometheus")
RULES = os.path.join(HOME, "paceline.rules.yaml")
BOARDS = os.path.join(HOME, "../grafana")
SCRAPE_S = 5
# A job whose name no address may have as it is, and the board of it.
JOB, RUN = "lm 7b/a&b", "/d/paceline-run?var-job=lm+7b%2Fa%26b"


def boards():
    """Path of each board, and the variables that an address may set."""
    for name in ("run", "fleet", "executive"):
        board = json.load(open(os.path.join(BOARDS, f"{name}.json")))
        yield f"/d/{board['uid']}", {variable["name"] for variable in board["templating"]["list"]}


def leads_somewhere():
    """Every alert has a place to look at: its job's, as far as the alert is about one."""
    known, text = dict(boards()), open(RULES).read()
    # Where an address is written, it has a name by which the others refer to it.
    written = dict(re.findall(r"^ {10}dashboard_url: &(\w+) '?(/.*?)'?$", text, re.M))
    alerts = text.split("- alert: ")[1:]
    for alert in alerts:
        name = alert.split("\n", 1)[0]
        of_alert = re.findall(r"^ {10}dashboard_url: [&*](\w+)", alert, re.M)
        assert len(of_alert) == 1, (name, of_alert)
        path, _, query = written[of_alert[0]].partition("?")
        is_about_a_job = name not in ("PacelinePreflightRegression", "PacelineWatchdog")
        assert path == ("/d/paceline-run" if is_about_a_job else "/d/paceline-fleet"), (name, path)
        names = set(re.findall(r"(?:^|&)var-(\w+)=", query))
        assert names == ({"job"} if is_about_a_job else set()) and names <= known[path], (name, query)
    return len(alerts)


def links(folder):
    """What Alertmanager makes of it."""
    for annotations, wanted in (({"dashboard_url": RUN}, f"https://grafana.example.org{RUN}"),
                                ({"dashboard_url": f"https://g.org{RUN}"}, f"https://g.org{RUN}"),
                                ({}, "https://grafana.example.org/dashboards?tag=paceline")):
        data = os.path.join(folder, "data.json")
        with open(data, "w") as file:
            json.dump({"alerts": [{"status": "firing", "labels": {}, "annotations": annotations}]}, file)
        made = subprocess.run(["amtool", "template", "render", f"--template.glob={HOME}/alertmanager.tmpl", f"--template.data={data}",
                               '--template.text={{ template "paceline.dashboard" . }}'], check=True, capture_output=True, text=True)
        assert made.stdout.strip() == wanted, (annotations, made.stdout)


def alerts():
    """Name, finding, seconds that it waits, and annotations of each alert of a finding."""
    for block in open(RULES).read().split("- alert: ")[1:]:
        finding = re.search(r'paceline_finding_active\{finding="([a-z-]+)", severity!="info"\} > 0\n', block)
        if finding:
            wait = re.search(r"for: (\d+)(s|m)\n", block)
            notes = dict(re.findall(r"^ {10}(summary|description|runbook_url): (.*)$", block, re.M))
            yield block.split("\n", 1)[0], finding[1], int(wait[1]) * {"s": 1, "m": 60}[wait[2]] if wait else 0, notes


def fires(finding, severity, notes):
    lines = [f"- exp_labels: {{finding: {finding}, cause: thermal, severity: {severity}}}", "  exp_annotations:"]
    lines += [f"    {name}: {text.replace('{{ $labels.cause }}', 'thermal')}" for name, text in notes.items()]
    return lines + [f"    dashboard_url: {RUN}"]


def case(name, series, expected):
    """A world: series with their values, and at which seconds which alerts are expected."""
    text = [f"  - interval: {SCRAPE_S}s", "    input_series:"]
    for finding, severity, values in series:
        labels = f'finding="{finding}", cause="thermal", severity="{severity}"'
        text += [f"      - series: 'paceline_finding_active{{{labels}}}'", f"        values: '{values}'"]
    text += [f"      - series: 'paceline_job_info{{job_id=\"{JOB}\"}}'", "        values: '1x60'", "    alert_rule_test:"]
    for at, lines in expected:
        text += [f"      - eval_time: {at}s", f"        alertname: {name}", "        exp_alerts:" + ("" if lines else " []")]
        text += ["          " + line for line in lines]
    return text


def cases():
    for name, finding, wait, notes in alerts():
        for severity in ("warning", "critical"):
            # It begins at 10 s and is over at 60 s, or later where the alert waits for longer.
            over = max(60, wait + 45)
            told = fires(finding, severity, notes)
            expected = [(5, []), (10 + wait, told), (over - SCRAPE_S, told), (over, [])]
            if wait:
                expected.insert(1, (10 + wait - SCRAPE_S, []))
            yield case(name, [(finding, severity, f"0x1 1x{(over - 10) // SCRAPE_S - 1} 0x3")], expected)
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
        assert wait in (0, 15, 60) and notes["runbook_url"].endswith(f"/docs/findings.md#{finding}"), (name, wait, notes)
    told = leads_somewhere()
    with tempfile.TemporaryDirectory() as folder:
        links(folder)
        path = os.path.join(folder, "every.yaml")
        made = list(cases())
        with open(path, "w") as file:
            file.write(f"rule_files: [{os.path.abspath(RULES)}]\nevaluation_interval: {SCRAPE_S}s\ntests:\n")
            file.write("\n".join(line for world in made for line in world) + "\n")
        failed = [words for words in (
            ["promtool", "check", "rules", RULES],
            ["promtool", "test", "rules", path],
            ["promtool", "test", "rules", os.path.join(HOME, "paceline.rules.test.yaml")],
            ["promtool", "test", "rules", os.path.join(HOME, "paceline.days.test.yaml")],
            ["amtool", "check-config", os.path.join(HOME, "alertmanager.yaml")],
        ) if subprocess.run(words).returncode]
    if failed:
        sys.exit(f"wrong: {[' '.join(words[:3]) for words in failed]}")
    print(f"{len(known)} alerts of findings, {len(made)} worlds: each fires when it should and not otherwise; {told} alerts lead to a board")


if __name__ == "__main__":
    main()
