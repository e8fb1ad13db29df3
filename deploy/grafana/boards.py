#!/usr/bin/env python3
"""Grafana's boards of Paceline, as JSON beside this file: Run (one job), Fleet (whoever is on call), Executive (what it costs).

    deploy/grafana/boards.py            writes run.json, fleet.json and executive.json
    deploy/grafana/boards.py --check    1 where they are not what this writes

Rows go by what may be wrong, not by where a number comes from. tests/prometheus/boards.py asks a real Prometheus every query.
"""

import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
DOCS = "https://github.com/paceline/paceline/blob/main/docs"
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
WIDTH = 24
# Rank families join what else is known of a rank.
WHO = "* on(instance, rank) group_left(node, gpu_uuid) paceline_rank_info{job}"
GPU = "* on(instance, gpu_uuid) group_left(node) paceline_gpu_info{job}"
JOB = 'instance=~"$instance"'


def asked(query):
    """`{job}` is the job of the board, `{job, x="y"}` a part of it."""
    return query.replace("{job}", "{" + JOB + "}").replace("{job, ", "{" + JOB + ", ")


def targets(queries, instant):
    return [{"refId": chr(ord("A") + at), "datasource": SOURCE, "expr": asked(query), "legendFormat": legend,
             "instant": instant, "range": not instant, **({"format": "table"} if instant == "table" else {})}
            for at, (query, legend) in enumerate(queries)]


def panel(kind, title, why, unit, *queries, width=8, height=8, instant=False, **more):
    options = more.pop("options", {})
    steps = more.pop("steps", None)
    custom = more.pop("custom", {})
    defaults = {"unit": unit, "custom": custom, **more}
    if steps:
        defaults["thresholds"] = {"mode": "absolute", "steps": [
            {"value": value, "color": color} for value, color in steps]}
        defaults["color"] = {"mode": "thresholds"}
    for target in (made := targets(queries, instant)):
        if instant == "table":
            target["instant"] = True
    return {"type": kind, "title": title, "description": why, "datasource": SOURCE, "targets": made, "options": options,
            "fieldConfig": {"defaults": defaults, "overrides": []}, "size": (width, height)}


def lines(title, why, unit, *queries, **more):
    options = {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi", "sort": "desc"}}
    return panel("timeseries", title, why, unit, *queries, options=options, **more)


def areas(title, why, unit, *queries, **more):
    custom = {"fillOpacity": 60, "lineWidth": 0, "stacking": {"mode": "normal"}}
    return lines(title, why, unit, *queries, custom=custom, **more)


def number(title, why, unit, query, steps=((None, "text"),), **more):
    options = {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "background", "graphMode": "area", "textMode": "auto"}
    return panel("stat", title, why, unit, (query, ""), options=options, steps=steps, width=more.pop("width", 4),
                 height=4, **more)


def table(title, why, unit, query, **more):
    made = panel("table", title, why, unit, (query, ""), instant="table", options={"showHeader": True}, **more)
    made["transformations"] = [{"id": "organize", "options": {"excludeByName": {
        "Time": True, "__name__": True, "job": True, "instance": True, "local_rank": True}}}]
    return made


GOOD = ((None, "red"), (0.8, "orange"), (0.95, "green"))
NONE = ((None, "green"), (1, "red"))


def run():
    yield "Is the job healthy?", [
        number("Useful share of GPU time (goodput)", "Share of GPU time that made progress at the speed the job would have with nothing wrong.", "percentunit",
               "paceline_goodput_ratio{job}", GOOD, min=0, max=1),
        number("Open findings", "Active warnings and critical findings, without info.", "none",
               'sum(paceline_finding_active{job, severity!="info"}) or vector(0)', NONE),
        number("Time since the last step", "Of the rank that is furthest behind. Minutes: the job hangs, or has ended.", "s",
               "time() - min(paceline_last_step_timestamp_seconds{job})", ((None, "green"), (60, "orange"), (300, "red"))),
        number("Completed steps", "Steps that every live rank has finished.", "none", "paceline_steps_total{job}"),
        number("Median step time", "Over all ranks since the job began.", "s", 'paceline_step_seconds{job, phase="step", quantile="0.5"}'),
        number("Ranks alive", "Ranks whose processes run.", "none", "sum(paceline_rank_up{job})"),
        table("Open findings by rank and node", f"Rank, node and cause of what holds now. What each finding means and what to do: {DOCS}/findings.md", "none",
              "paceline_finding_info{job}", width=12),
        table("Slow ranks", "Self-time (step time without waiting) over the median of the peers: at 1.3 a step takes 30 % longer.", "none",
              f"sort_desc(paceline_rank_slowdown_ratio{{job}} {WHO})", width=12),
    ]
    yield "How fast is the job?", [
        lines("Steps per second", "A drop is a slower job, a gap is a restart or a checkpoint.", "ops", (
            "rate(paceline_steps_total{job}[$__rate_interval])", "steps")),
        lines("Step time over all ranks", "Median and 99th percentile.", "s",
              ("histogram_quantile(0.5, sum by (instance, le) (rate(paceline_step_duration_seconds_bucket{job}[$__rate_interval])))", "p50"),
              ("histogram_quantile(0.99, sum by (instance, le) (rate(paceline_step_duration_seconds_bucket{job}[$__rate_interval])))", "p99")),
        panel("status-history", "Self-time by rank", "Step time without waiting. A row is a rank; a row of another color is a rank that is slower than the rest.", "s",
              ('paceline_rank_step_median_seconds{job, phase="self"}', "r{{rank}}"), color={"mode": "continuous-BlYlRd"},
              options={"showValue": "never", "rowHeight": 0.95, "legend": {"showLegend": False}}),
    ]
    phase = "paceline_step_phase_seconds_total"
    yield "Why is the job slow?", [
        areas("Step time by phase", "All ranks. `wait` is time in collectives, mostly for other ranks; `data` is the data loader.", "percentunit",
              (f"sum by (instance, phase) (rate({phase}{{job}}[$__rate_interval])) / ignoring(phase) group_left() "
               f"sum by (instance) (rate({phase}{{job}}[$__rate_interval]))", "{{phase}}"), max=1),
        lines("Time in collectives by rank", "The rank that waits least is the one that all others wait for.", "percentunit",
              ("bottomk(5, rate(paceline_collective_wait_seconds_total{job}[$__rate_interval]))", "r{{rank}} waits least"),
              ("topk(5, rate(paceline_collective_wait_seconds_total{job}[$__rate_interval]))", "r{{rank}} waits most")),
        lines("GPU utilization", "Share of time with a kernel. Near 1 in a slow job: the GPU itself is slow. Far below: the data loader, the host, or waiting for others.", "percentunit",
              (f"min by (instance) (paceline_gpu_utilization_ratio{{job}})", "least"),
              (f"avg by (instance) (paceline_gpu_utilization_ratio{{job}})", "mean"), max=1, min=0),
    ]
    pcie = "rate(paceline_gpu_pcie_bytes_total{job}[$__rate_interval])"
    yield "What limits the GPUs?", [
        lines("SM, tensor core and memory activity", "Mean of all GPUs (Hopper and later). `dram` high and `tensor` low: bound by memory. `sm` high and "
              "`tensor` low: no tensor cores, or small kernels. All low: look at PCIe, the loader and the collectives.", "percentunit",
              ('avg by (instance, part) (paceline_gpu_activity_ratio{job, part!="occupancy"})', "{{part}}"), min=0, max=1),
        lines("PCIe throughput", "The busiest GPU, by direction. A link of 16 lanes carries 63 GB/s (generation 5) or 31 GB/s (4).", "Bps",
              (f"max by (instance, direction) ({pcie})", "{{direction}}"), min=0),
        lines("Memory-bound GPUs", "Memory activity over SM activity; the three highest GPUs. Above 1 the step waits for memory bandwidth.", "none",
              ('topk(3, paceline_gpu_activity_ratio{job, part="dram"} / ignoring(part) paceline_gpu_activity_ratio{job, part="sm"})',
               "{{gpu_uuid}}"), min=0),
    ]
    yield "Are the GPUs healthy?", [
        lines("Highest GPU temperatures", "The ten highest.", "celsius",
              (f"topk(10, paceline_gpu_temperature_celsius{{job}} {GPU})", "{{node}} {{gpu_uuid}}")),
        lines("Smallest thermal margins", "Degrees left before the hardware slows down; the ten smallest.", "celsius",
              (f"bottomk(10, paceline_gpu_margin_celsius{{job}} {GPU})", "{{node}} {{gpu_uuid}}")),
        lines("Lowest SM clocks", "One GPU below the rest slows the whole job.", "hertz",
              (f"bottomk(10, paceline_gpu_sm_clock_hertz{{job}} {GPU})", "{{node}} {{gpu_uuid}}")),
        lines("Power draw over power limit", "The ten nearest to their limit.", "percentunit",
              ("topk(10, paceline_gpu_power_watts{job} / on(instance, gpu_uuid) paceline_gpu_power_limit_watts{job})", "{{gpu_uuid}}")),
        lines("Throttled time by reason", "Share of time, all GPUs together.", "percentunit",
              ("avg by (instance, reason) (rate(paceline_gpu_throttled_seconds_total{job}[$__rate_interval]))", "{{reason}}")),
        panel("piechart", "GPUs by model and data source", "Whether readings are live or simulated.", "none",
              ("count by (model, provenance) (paceline_gpu_info{job})", "{{model}} ({{provenance}})"), instant=True),
    ]
    rate = "[$__rate_interval]"
    yield "Is the network healthy?", [
        lines("Network ports up", "Ports that can carry data beside all ports, by kind. Above 512 ranks only with --metrics gpu.", "none",
              ("sum by (instance, link) (paceline_fabric_port_up{job})", "{{link}} up"),
              ("count by (instance, link) (paceline_fabric_port_up{job})", "{{link}}, all"), min=0),
        lines("Lowest port rates", "The five lowest; a port that came up below the others' rate slows all traffic across it.", "Bps",
              ("bottomk(5, paceline_fabric_port_rate_bytes_per_second{job})", "{{node}} {{port}}"), min=0),
        lines("Network port errors", "The ten ports with most: lost links, damaged or dropped packets, repeated transmissions.", "ops",
              (f"topk(10, rate(paceline_fabric_errors_total{{job}}{rate}))", "{{node}} {{port}} {{counter}}"), min=0),
        lines("NVLink throughput", "The busiest GPU, by direction.", "Bps",
              (f"max by (instance, direction) (rate(paceline_gpu_nvlink_bytes_total{{job}}{rate}))", "{{direction}}"), min=0),
        lines("NVLink and PCIe errors", "The GPUs with most. Links that retransmit still work, and are slower.", "ops",
              (f"topk(5, rate(paceline_gpu_nvlink_errors_total{{job}}{rate}) {GPU})", "{{node}} {{gpu_uuid}} NVLink {{kind}}"),
              (f"topk(5, rate(paceline_gpu_pcie_replays_total{{job}}{rate}) {GPU})", "{{node}} {{gpu_uuid}} PCIe replay"), min=0),
        lines("Exposed communication", "Share of time in collectives of the rank that waits least: a rise while no rank is slower comes from the "
              "network.", "percentunit",
              (f"min by (instance) (rate(paceline_collective_wait_seconds_total{{job}}{rate}))", "least"), min=0, max=1),
    ]
    yield "What does it cost?", [
        areas("GPUs lost by cause", "GPU-seconds lost per second: as many GPUs work for nothing.", "none",
              ("sum by (instance, cause) (rate(paceline_lost_gpu_seconds_total{job}[$__rate_interval]))", "{{cause}}"), width=12),
        number("Lost GPU-hours", "To findings, since the job began.", "h", "sum(paceline_lost_gpu_seconds_total{job}) / 3600", width=6),
        number("Cost of lost GPU time", "At the price of a GPU-hour above.", "currencyUSD",
               "sum(paceline_lost_gpu_seconds_total{job}) / 3600 * $price", width=6),
    ]
    yield "Is the data complete?", [
        lines("Dropped telemetry by reason", f"Findings then rest on incomplete data: {DOCS}/metrics.md#what-is-dropped", "ops",
              ("sum by (instance, reason) (rate(paceline_transport_dropped_total{job}[$__rate_interval])) or "
               "0 * sum by (instance) (paceline_steps_total{job})", "{{reason}}")),
        lines("Sidecar CPU", "Share of one core.", "percentunit",
              ("topk(5, rate(paceline_sidecar_cpu_seconds_total{job}[$__rate_interval]))", "{{node}}")),
        lines("Sidecar memory", "Resident; the five largest.", "bytes", ("topk(5, paceline_sidecar_resident_bytes{job})", "{{node}}")),
    ]


def fleet():
    yield "Which jobs need attention?", [
        number("Running jobs", "", "none", "count(paceline_job_info)"),
        number("Jobs with a critical finding", "", "none",
               'count(count by (instance) (paceline_finding_active{severity="critical"} > 0)) or vector(0)', NONE),
        number("Ranks alive", "Of all jobs.", "none", "count(paceline_rank_up == 1)"),
        number("GPUs lost now", "GPU-seconds lost per second, over all jobs.", "none",
               "sum(rate(paceline_lost_gpu_seconds_total[5m])) or vector(0)"),
        table("Open findings by job, rank and node", f"What each finding means and what to do: {DOCS}/findings.md", "none",
              "paceline_finding_info * on(instance) group_left(job_id, world_size) paceline_job_info", width=24),
    ]
    yield "Which jobs are slow?", [
        table("Jobs by goodput", "The worst first.", "percentunit",
              "sort(paceline_goodput_ratio * on(instance) group_left(job_id, world_size) paceline_job_info)", width=12),
        lines("Goodput by job", "Useful share of GPU time.", "percentunit",
              ("paceline_goodput_ratio * on(instance) group_left(job_id) paceline_job_info", "{{job_id}}"), width=12, max=1),
    ]
    yield "What fails?", [
        lines("Findings raised per hour", "", "none",
              ("sum by (finding) (increase(paceline_findings_total[1h])) > 0 or sum by (finding) (paceline_findings_total)", "{{finding}}"), width=12),
        lines("Job endings by reason", f"In a day. Counted by the epilog or --textfile: {DOCS}/metrics.md#how-jobs-end", "none",
              ("sum by (reason) (increase(paceline_jobs_ended_total[1d]))", "{{reason}}"), width=12),
        table("Nodes with slow ranks", "", "none",
              "count by (node) (paceline_rank_slowdown_ratio * on(instance, rank) group_left(node) paceline_rank_info > 1)", width=12),
        lines("Sidecar CPU, the five highest", "Share of one core.", "percentunit",
              ("topk(5, rate(paceline_sidecar_cpu_seconds_total[5m]))", "{{node}}"), width=12),
    ]


def executive():
    yield "What did training cost?", [
        number("Useful share of GPU time (goodput)", "Of all GPU time in the time range: the share that made progress.", "percentunit",
               "1 - (sum(increase(paceline_lost_gpu_seconds_total[$__range])) or vector(0)) / "
               "sum(increase(paceline_gpu_seconds_total[$__range]))", GOOD, width=6),
        number("GPU-hours", "", "h", "sum(increase(paceline_gpu_seconds_total[$__range])) / 3600", width=6),
        number("Lost GPU-hours", "", "h", "(sum(increase(paceline_lost_gpu_seconds_total[$__range])) or vector(0)) / 3600", width=6),
        number("Cost of lost GPU time", "At the price of a GPU-hour above.", "currencyUSD",
               "(sum(increase(paceline_lost_gpu_seconds_total[$__range])) or vector(0)) / 3600 * $price", width=6),
    ]
    yield "What was GPU time lost to?", [
        panel("piechart", "Lost GPU-hours by cause", "", "h",
              ("sum by (cause) (increase(paceline_lost_gpu_seconds_total[$__range])) / 3600", "{{cause}}"), width=8, instant=True),
        areas("GPUs lost over time", "", "none", ("sum by (cause) (rate(paceline_lost_gpu_seconds_total[5m]))", "{{cause}}"), width=8),
        panel("piechart", "Job endings by reason", "", "none",
              ("sum by (reason) (increase(paceline_jobs_ended_total[$__range]))", "{{reason}}"), width=8, instant=True),
    ]
    yield "Loss budget", [
        lines("Share of GPU time lost", "The budget is 5 %.", "percentunit",
              ("sum(rate(paceline_lost_gpu_seconds_total[1h])) / sum(rate(paceline_gpu_seconds_total[1h]))", "lost"),
              ("vector(0.05)", "budget"), width=24),
    ]


def variables(name):
    known = [{"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"}]
    if name == "run":
        known += [
            {"name": "job", "type": "query", "label": "Job", "datasource": SOURCE, "refresh": 2, "sort": 1,
             "query": "label_values(paceline_job_info, job_id)"},
            {"name": "instance", "type": "query", "label": "Page", "datasource": SOURCE, "refresh": 2, "hide": 2,
             "query": 'label_values(paceline_job_info{job_id="$job"}, instance)'}]
    if name != "fleet":
        known.append({"name": "price", "type": "textbox", "label": "Price of a GPU-hour", "query": "2.5",
                      "current": {"text": "2.5", "value": "2.5"}})
    return known


def mark(name, query, color, title):
    return {"name": name, "datasource": SOURCE, "enable": True, "iconColor": color, "expr": asked(query), "titleFormat": title}


def marks(name):
    """What stands across all panels at the moments when it happened."""
    if name != "run":
        return [mark("Findings", "sum by (finding) (changes(paceline_findings_total[$__rate_interval])) > 0", "orange", "{{finding}}")]
    return [mark("Findings", "changes(paceline_findings_total{job}[$__rate_interval]) > 0", "orange", "{{finding}}"),
            mark("Restarts", "changes(paceline_restarts_total{job}[$__rate_interval]) > 0", "red", "restart"),
            mark("Checkpoints", 'rate(paceline_step_phase_seconds_total{job, phase="checkpoint"}[$__rate_interval]) > 0', "blue",
                 "checkpoint")]


def board(name, title, rows):
    panels, y = [], 0
    for heading, content in rows:
        panels.append({"type": "row", "title": heading, "collapsed": False, "panels": [],
                       "gridPos": {"x": 0, "y": y, "w": WIDTH, "h": 1}})
        y, x, tall = y + 1, 0, 0
        for made in content:
            width, height = made.pop("size")
            if x + width > WIDTH:
                x, y, tall = 0, y + tall, 0
            made["gridPos"] = {"x": x, "y": y, "w": width, "h": height}
            x, tall = x + width, max(tall, height)
            panels.append(made)
        y += tall
    for number_of, made in enumerate(panels, 1):
        made["id"] = number_of
    return {"uid": f"paceline-{name}", "title": f"Paceline / {title}", "tags": ["paceline"], "schemaVersion": 39, "editable": True,
            "refresh": "10s" if name == "run" else "1m", "time": {"from": "now-30d" if name == "executive" else "now-1h", "to": "now"},
            "timezone": "browser", "templating": {"list": variables(name)}, "annotations": {"list": marks(name)},
            "links": [{"type": "dashboards", "tags": ["paceline"], "title": "Paceline", "asDropdown": False}], "panels": panels}


BOARDS = {"run": ("Run", run), "fleet": ("Fleet", fleet), "executive": ("Executive", executive)}


def main():
    stale = []
    for name, (title, rows) in BOARDS.items():
        text = json.dumps(board(name, title, rows()), indent=1) + "\n"
        path = os.path.join(HERE, f"{name}.json")
        if sys.argv[1:] == ["--check"]:
            if not os.path.exists(path) or open(path).read() != text:
                stale.append(name)
        else:
            open(path, "w").write(text)
    if stale:
        sys.exit(f"not what boards.py writes: {', '.join(stale)}")


if __name__ == "__main__":
    main()
