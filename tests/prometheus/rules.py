#!/usr/bin/env python3
"""Tests every rule of deploy/prometheus with promtool: each alert of a finding fires for a warning and for a critical
verdict, names the rank, the node and the cause, fires after its `for` and not before, and does not fire for info, a
cleared finding, another finding or, if it waits, a single scrape. Another cause, or a failed scrape, causes no second
alert; a ticket never becomes critical. Each alert links to an existing board, with the alert's job selected, and to a
section of the runbook, and Alertmanager's templates create these links. Then runs paceline.rules.test.yaml and
paceline.days.test.yaml, and checks Alertmanager's example with amtool.

    tests/prometheus/rules.py     takes Debian's prometheus (promtool) and prometheus-alertmanager (amtool)
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib

HOME = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../deploy/prometheus")
RULES = os.path.join(HOME, "paceline.rules.yaml")
BOARDS = os.path.join(HOME, "../grafana")
FINDINGS = os.path.join(HOME, "../../health/policy/findings.toml")
RUNBOOK = os.path.join(HOME, "../../docs/findings.md")
SCRAPE_S = 5
# As in alerts.py: the limit of named subjects, and how long an alert outlives its finding.
NAMED, KEEPS_S = 8, 60
# A job name that must be escaped in URLs, and its board.
JOB, RUN = "lm 7b/a&b", "/d/paceline-run?var-job=lm+7b%2Fa%26b"


def boards():
    """The path of each board, and the variables that a URL may set."""
    for name in ("run", "fleet", "executive"):
        board = json.load(open(os.path.join(BOARDS, f"{name}.json")))
        yield f"/d/{board['uid']}", {variable["name"] for variable in board["templating"]["list"]}


def leads_somewhere():
    """Every alert links to a board: its job's, if it is about one."""
    known, text = dict(boards()), open(RULES).read()
    # Each URL is a YAML anchor, to which other alerts refer.
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


def has_sections():
    """Every runbook_url links to an existing section."""
    there = set(re.findall(r'<a id="([a-z0-9-]+)"></a>', open(RUNBOOK).read()))
    urls = re.findall(r"^ {10}runbook_url: (\S+)$", open(RULES).read(), re.M)
    for url in urls:
        page, _, section = url.partition("#")
        assert page == "https://github.com/paceline/paceline/blob/main/docs/findings.md" and section in there, url
    return len(urls)


def rendered(folder, template, *alerts):
    """Alertmanager's text for alerts with these annotations."""
    data = os.path.join(folder, "data.json")
    with open(data, "w") as file:
        alerts = [{"status": "firing", "labels": {}, "annotations": annotations} for annotations in alerts]
        json.dump({"alerts": alerts, "commonLabels": {"alertname": "PacelineStraggler"}}, file)
    made = subprocess.run(["amtool", "template", "render", f"--template.glob={HOME}/alertmanager.tmpl", f"--template.data={data}",
                           f'--template.text={{{{ template "paceline.{template}" . }}}}'], check=True, capture_output=True, text=True)
    return made.stdout.strip()


def words(folder):
    """Alertmanager's texts: subjects, also for several alerts, and links."""
    for annotations, wanted in (({"dashboard_url": RUN}, f"https://grafana.example.org{RUN}"),
                                ({"dashboard_url": f"https://g.org{RUN}"}, f"https://g.org{RUN}"),
                                ({}, "https://grafana.example.org/dashboards?tag=paceline")):
        assert (made := rendered(folder, "dashboard", annotations)) == wanted, (annotations, made)
    one, other = ({"summary": f"Slow: rank {rank} on n1", "description": f"Look at {rank}.", "command": "paceline top"} for rank in (3, 4))
    assert (made := rendered(folder, "title", one)) == "PacelineStraggler: Slow: rank 3 on n1", made
    assert (made := rendered(folder, "title", one, other)) == "PacelineStraggler: Slow: rank 3 on n1 (1 of 2)", made
    assert (made := rendered(folder, "text", one)) == "Slow: rank 3 on n1\nLook at 3.\n`paceline top`", made


def alerts():
    """Name, finding, its row, seconds to wait, whether it is a ticket."""
    rows = tomllib.load(open(FINDINGS, "rb"))
    for block in open(RULES).read().split("- alert: ")[1:]:
        finding = re.search(r'paceline_finding_active\{finding="([a-z-]+)", severity!="info"\}\) > 0\n', block)
        if finding:
            wait = re.search(r" for: (\d+)(s|m)\n", block)
            is_ticket = "urgency: ticket\n" in block
            assert is_ticket == (rows[finding[1]].get("urgency") == "ticket"), finding[1]
            yield block.split("\n", 1)[0], finding[1], rows[finding[1]], int(wait[1]) * {"s": 1, "m": 60}[wait[2]] if wait else 0, is_ticket


def fires(finding, row, severity, urgency, subjects):
    """The expected alert: its labels contain neither subject nor cause."""
    who = ", ".join(subject for subject, _ in subjects[:NAMED]) + (" and others" if len(subjects) > NAMED else "")
    why = " And".join(f" {subject}, cause {cause}." for subject, cause in subjects[:NAMED])
    lines = [f"- exp_labels: {{finding: {finding}, severity: {severity}, urgency: {urgency}}}", "  exp_annotations:"]
    for name, text in (("summary", f"{row['title']}: {who}"), ("description", row["means"] + why),
                       ("command", f"paceline top --once ; paceline explain finding {finding}"), ("dashboard_url", RUN),
                       ("runbook_url", f"https://github.com/paceline/paceline/blob/main/docs/findings.md#{finding}")):
        lines.append(f"    {name}: {json.dumps(text)}")
    return lines


def active(finding, severity, values, cause="thermal"):
    return f'paceline_finding_active{{finding="{finding}", cause="{cause}", severity="{severity}"}}', values


def about(finding, severity, subject, values, cause="thermal"):
    return f'paceline_finding_info{{finding="{finding}", cause="{cause}", severity="{severity}", subject="{subject}"}}', values


def case(name, series, expected):
    """A test case: series with values, and the expected alerts with their times."""
    text = [f"  - interval: {SCRAPE_S}s", "    input_series:"]
    for one, values in [*series, (f'paceline_job_info{{job_id="{JOB}"}}', "1x80")]:
        text += [f"      - series: '{one}'", f"        values: '{values}'"]
    text.append("    alert_rule_test:")
    for at, lines in expected:
        text += [f"      - eval_time: {at}s", f"        alertname: {name}", "        exp_alerts:" + ("" if lines else " []")]
        text += ["          " + line for line in lines]
    return text


def cases():
    subjects = [("rank 12 on n3", "thermal"), ("rank 5 on n2", "thermal")]
    for name, finding, row, wait, is_ticket in alerts():
        of = [about(finding, severity, subject, "1x80") for subject, _ in subjects for severity in ("warning", "critical")]
        if is_ticket:
            of = of[::2]
        for severity in ("warning", "critical"):
            label = ("warning", "ticket") if is_ticket else (severity, "page")
            # The finding holds from 10 s to 60 s, or longer if the alert waits longer; the alert stays for a while.
            over = max(60, wait + 45)
            told = fires(finding, row, *label, subjects)
            expected = [(5, []), (10 + wait, told), (over - SCRAPE_S, told), (over + KEEPS_S - 10, told), (over + KEEPS_S, [])]
            if wait:
                expected.insert(1, (10 + wait - SCRAPE_S, []))
            yield case(name, [active(finding, severity, f"0x1 1x{(over - 10) // SCRAPE_S - 1} 0x40"), *of], expected)
        other = "straggler" if finding != "straggler" else "gpu-fault"
        quiet = [active(finding, "info", "1x12"), active(finding, "warning", "0x12"), active(other, "warning", "1x12")]
        yield case(name, quiet, [(at, []) for at in (0, 30, 60)])
        if wait:
            yield case(name, [active(finding, "warning", "0x1 1x1 0x1 1 0 1 0x3")], [(at, []) for at in range(0, 60, SCRAPE_S)])
        yield from the_same_alert(name, finding, row, wait, is_ticket)


def the_same_alert(name, finding, row, wait, is_ticket):
    """The cause is found after 150 s, and a scrape fails after 200 s: neither restarts the wait, or causes another
    alert."""
    label = ("warning", "ticket") if is_ticket else ("warning", "page")
    before, after = (fires(finding, row, *label, [("rank 5 on n2", cause)]) for cause in ("unknown", "thermal"))
    series = [active(finding, "warning", "1x29 0x50", "unknown"), active(finding, "warning", "0x29 1x9 stale 1x39"),
              about(finding, "warning", "rank 5 on n2", "1x29 stale", "unknown"),
              about(finding, "warning", "rank 5 on n2", "_x30 1x49")]
    yield case(name, series, [(145, before), *((at, after) for at in range(150, 260, SCRAPE_S))])


def a_ticket_of_both_severities():
    """A ticket is one alert with severity warning."""
    for name, finding, row, wait, is_ticket in alerts():
        if is_ticket:
            series = [active(finding, severity, "1x40") for severity in ("warning", "critical")]
            series += [about(finding, severity, f"rank {at} on n1", "1x40") for at, severity in enumerate(("warning", "critical"))]
            told = fires(finding, row, "warning", "ticket", [("rank 0 on n1", "thermal"), ("rank 1 on n1", "thermal")])
            yield case(name, series, [(60, told)])


def many_subjects():
    name, finding, row, _, _ = next(alerts())
    subjects = [(f"rank {rank} on n1", "thermal") for rank in range(1, 10)]
    series = [active(finding, "critical", "9x40"), *(about(finding, "critical", subject, "1x40") for subject, _ in subjects)]
    yield case(name, series, [(60, fires(finding, row, "critical", "page", subjects))])


def main():
    subprocess.run([sys.executable, os.path.join(HOME, "alerts.py"), "--check"], check=True)
    known = list(alerts())
    for name, finding, _, wait, _ in known:
        # The aggregator's own notifications use the same names.
        assert name == "Paceline" + finding.title().replace("-", ""), (name, finding)
        assert wait in (0, 15, 60), (name, wait)
    told, sections = leads_somewhere(), has_sections()
    with tempfile.TemporaryDirectory() as folder:
        words(folder)
        path = os.path.join(folder, "every.yaml")
        made = [*cases(), *a_ticket_of_both_severities(), *many_subjects()]
        with open(path, "w") as file:
            file.write(f"rule_files: [{os.path.abspath(RULES)}]\nevaluation_interval: {SCRAPE_S}s\ntests:\n")
            file.write("\n".join(line for world in made for line in world) + "\n")
        failed = [command for command in (
            ["promtool", "check", "rules", RULES],
            ["promtool", "test", "rules", path],
            ["promtool", "test", "rules", os.path.join(HOME, "paceline.rules.test.yaml")],
            ["promtool", "test", "rules", os.path.join(HOME, "paceline.days.test.yaml")],
            ["amtool", "check-config", os.path.join(HOME, "alertmanager.yaml")],
        ) if subprocess.run(command).returncode]
    if failed:
        sys.exit(f"wrong: {[' '.join(command[:3]) for command in failed]}")
    print(f"{len(known)} alerts of findings, {len(made)} worlds: each fires when it should and not otherwise; {told} alerts lead to a board, "
          f"{sections} to a section of the runbook")


if __name__ == "__main__":
    main()
