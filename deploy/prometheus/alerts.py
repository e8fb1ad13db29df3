#!/usr/bin/env python3
"""The alert of each finding, written into paceline.rules.yaml from health/policy/findings.toml. All else in that file is written by hand.

    deploy/prometheus/alerts.py            writes them
    deploy/prometheus/alerts.py --check    1 where they are not what this writes

An alert's labels are its identity, so what changes while a finding holds is no label: cause and subject are annotations, read from
paceline_finding_info.
"""

import os
import sys
import tomllib

HERE = os.path.dirname(os.path.abspath(__file__))
RULES = os.path.join(HERE, "paceline.rules.yaml")
FINDINGS = os.path.join(HERE, "../../health/policy/findings.toml")
DOCS = "https://github.com/paceline/paceline/blob/main/docs/findings.md"
BEGIN, END = "      # alerts.py begins: one alert for each finding.\n", "      # alerts.py ends.\n"

# Seconds before an alert fires. A verdict has waited for its evidence: this bridges a scrape where a minute later is soon enough.
# All others fire at once.
WAITS = dict.fromkeys((
    "straggler", "straggler-node", "slow-link", "all-ranks-slow", "slow-from-birth", "stage-imbalance", "sequence-imbalance",
    "expert-imbalance", "data-loading", "cpu-contention", "gc-pause", "single-rank-pause", "slow-checkpoint", "slow-warm-up",
    "step-regression",
    "communication-bound", "version-skew"), "15s")
# A connection that was lost for half a minute is no node that cannot be seen.
WAITS["telemetry-blind"] = "1m"
# Scrapes fail now and then: neither is that the end of an alert, nor is the next one a second alert.
KEEPS = "1m"

# Subjects that an annotation names.
NAMED = 8
OF_SEVERITY = ('printf "paceline_finding_info{instance=%q, job=%q, finding=%q, severity=%q}" '
               '$labels.instance $labels.job $labels.finding $labels.severity')
# A ticket is a warning whatever it costs: one alert for both.
OF_ALL = ('printf "paceline_finding_info{instance=%q, job=%q, finding=%q, severity!=\\"info\\"}" '
          '$labels.instance $labels.job $labels.finding')
SUBJECTS = (f'{{{{ if lt $i {NAMED} }}}}{{{{ if $i }}}}, {{{{ else }}}}: {{{{ end }}}}{{{{ .Labels.subject }}}}'
            f'{{{{ else if eq $i {NAMED} }}}} and others{{{{ end }}}}')
CAUSES = f'{{{{ if lt $i {NAMED} }}}} {{{{ if $i }}}}And {{{{ end }}}}{{{{ .Labels.subject }}}}, cause {{{{ .Labels.cause }}}}.{{{{ end }}}}'
# Each is written out once, where it has a name by which the other alerts refer to it.
COMMAND = "'paceline top --once {{ $labels.instance }}; paceline explain finding {{ $labels.finding }}'"
RUN = ("'/d/paceline-run?var-job={{ with printf \"paceline_job_info{instance=%q, job=%q}\" $labels.instance $labels.job | query }}"
       "{{ . | first | label \"job_id\" | urlquery }}{{ end }}'")


def each(subjects, text):
    return f'{{{{ range $i, $it := {subjects} | query | sortByLabel "subject" }}}}{text}{{{{ end }}}}'


def quoted(text):
    return "'" + text.replace("'", "''") + "'"


def alert(finding, row, is_first):
    is_ticket = row.get("urgency") == "ticket"
    subjects = OF_ALL if is_ticket else OF_SEVERITY
    aside = "cause, severity" if is_ticket else "cause"
    yield f"      - alert: Paceline{finding.title().replace('-', '')}"
    yield f'        expr: sum without ({aside}) (paceline_finding_active{{finding="{finding}", severity!="info"}}) > 0'
    if finding in WAITS:
        yield f"        for: {WAITS[finding]}"
    yield f"        keep_firing_for: {KEEPS}"
    yield "        labels:"
    yield "          severity: " + ("warning" if is_ticket else "'{{ $labels.severity }}'")
    yield "          urgency: " + ("ticket" if is_ticket else "page")
    yield "        annotations:"
    yield f"          summary: {quoted(row['title'] + each(subjects, SUBJECTS))}"
    yield f"          description: {quoted(row['means'] + each(subjects, CAUSES))}"
    yield f"          runbook_url: {DOCS}#{finding}"
    yield "          command: " + (f"&command {COMMAND}" if is_first else "*command")
    yield "          dashboard_url: " + (f"&run {RUN}" if is_first else "*run")


def main():
    with open(FINDINGS, "rb") as file:
        rows = tomllib.load(file)
    unknown = sorted(set(WAITS) - set(rows))
    if unknown:
        sys.exit(f"alerts.py waits for findings that there are not: {', '.join(unknown)}")
    lines = [line for at, (finding, row) in enumerate(rows.items()) for line in alert(finding, row, at == 0)]
    old = open(RULES).read()
    before, _, rest = old.partition(BEGIN)
    _, _, after = rest.partition(END)
    new = before + BEGIN + "\n".join(lines) + "\n" + END + after
    if sys.argv[1:] == ["--check"]:
        if new != old:
            sys.exit("deploy/prometheus/paceline.rules.yaml is not what alerts.py writes: run it")
    else:
        open(RULES, "w").write(new)


if __name__ == "__main__":
    main()
