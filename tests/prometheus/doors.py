#!/usr/bin/env python3
"""Tests every metrics output with a real consumer: the page in both formats with promtool, the official parser and a
real Prometheus; the file with promtool; the push with a real OpenTelemetry collector (rotel), which forwards to a
server that parses with OpenTelemetry's own classes; the list of Slurm jobs with a real Prometheus that polls it. And a
receiver that hangs, and one that refuses, must not delay a job.

    tests/setup/venv.sh tests/setup/doors.txt V
    V/bin/python tests/prometheus/doors.py     takes Debian's prometheus; PACELINE: the binary
"""

import gzip
import http.server
import json
import os
import subprocess
import threading
import time
import urllib.request

import rotel
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest, ExportMetricsServiceResponse
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client import parser as plain

from world import PACELINE, answers, played, port, until

OPEN = "application/openmetrics-text; version=1.0.0"
SECRET = "key-that-nobody-may-read"
COLLECTOR = os.path.join(os.path.dirname(rotel.__file__), "rotel-agent")


class Receiver(http.server.BaseHTTPRequestHandler):
    """Stores received requests."""

    came = []

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        self.came.append((dict(self.headers), ExportMetricsServiceRequest.FromString(body)))
        answer = ExportMetricsServiceResponse().SerializeToString()
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *words):
        pass


def refuses():
    """A handler that refuses and counts requests."""

    class Refuses(http.server.BaseHTTPRequestHandler):
        asked = 0

        def do_POST(self):
            type(self).asked += 1
            self.send_error(403, f"not with {self.headers.get('api-key')}")

        def log_message(self, *words):
            pass

    return Refuses


class Hangs(http.server.BaseHTTPRequestHandler):
    came, over = threading.Event(), threading.Event()

    def do_POST(self):
        self.came.set()
        self.over.wait(600)


def points(came):
    """Host, metric, attributes and point of all received data."""
    for _, request in came:
        for resource in request.resource_metrics:
            whose = {pair.key: pair.value.string_value for pair in resource.resource.attributes}
            for metric in (metric for scope in resource.scope_metrics for metric in scope.metrics):
                data = getattr(metric, metric.WhichOneof("data"))
                for point in data.data_points:
                    yield whose, metric, {pair.key: pair.value.string_value for pair in point.attributes}, point


def names(came):
    return {metric.name for _, metric, _, _ in points(came)}


def job(world, name, *words, seconds=3, env=()):
    """A run on one node with simulated GPUs."""
    command = f"i=0; while [ ! -e {world.path(name + '-stop')} ]; do sleep 0.1; done" if seconds is None else f"sleep {seconds}"
    return world.start(PACELINE, "run", "--job", name, "--node", "n1", "--run-dir", world.path(name), "--sim-gpus", "gpus=2",
                       "--ras", "off", *words, "--", "sh", "-c", command, env={**os.environ, **dict(env)})


def log(world, name):
    path = os.path.join(world.path(name), "sidecar.log")
    return open(path).read() if os.path.exists(path) else ""


def promtool(text):
    ran = subprocess.run(["promtool", "check", "metrics"], input=text, text=True, capture_output=True)
    # promtool warns about names for dcgm-exporter's boards and about summaries' maximum; a parse error exits with 1.
    assert ran.returncode in (0, 3) and "error" not in ran.stderr.lower(), ran.stderr
    return ran.stderr


def page(world, accept):
    request = urllib.request.Request(f"http://127.0.0.1:{world.page}/metrics", headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.headers["Content-Type"], answer.read().decode()


def series(families):
    return {(sample.name, tuple(sorted(sample.labels.items()))) for family in families for sample in family.samples
            if "le" not in sample.labels and "quantile" not in sample.labels}


def formats(world):
    """Both formats have the same series."""
    kind, text = page(world, "*/*")
    assert kind.startswith("text/plain; version=0.0.4"), kind
    promtool(text)
    kind, opened = page(world, OPEN)
    assert kind.startswith(OPEN), kind
    assert opened.endswith("# EOF\n")
    ours, theirs = (series(read(shown)) for read, shown in
                    ((plain.text_string_to_metric_families, text), (openmetrics.text_string_to_metric_families, opened)))
    # A series may start between the two requests.
    missing = ours - theirs
    assert len(ours) > 40 and not missing, missing
    units = {family.name: family.unit for family in openmetrics.text_string_to_metric_families(opened)}
    assert units["paceline_gpu_power_watts"] == "watts" and units["paceline_steps"] == "", units
    world.scrape()
    until("a real Prometheus", lambda: world.query('up{job="paceline"} == 1'))
    assert until("GPUs in it", lambda: world.query("count(paceline_gpu_power_watts)"))[0]["value"][1] == "2"
    url = f"http://127.0.0.1:{world.prometheus}/api/v1/targets/metadata?metric=paceline_gpu_power_watts"
    told = json.load(urllib.request.urlopen(url, timeout=10))["data"]
    assert told and told[0]["unit"] == "watts", "Prometheus took the page as OpenMetrics"


def file(world):
    path = world.path("job.prom")
    # The first file is written before GPUs are read.
    promtool(until("GPUs in the file", lambda: "paceline_gpu_power_watts{" in (text := open(path).read()) and text))
    return path


def all_doors(world):
    kept = world.serve(Receiver)
    collector = port()
    world.start(COLLECTOR, "start", "--otlp-http-endpoint", f"127.0.0.1:{collector}", "--otlp-grpc-endpoint", f"127.0.0.1:{port()}",
                "--exporter", "otlp", "--otlp-exporter-protocol", "http", "--otlp-exporter-endpoint", f"http://127.0.0.1:{kept}",
                "--pid-file", world.path("collector.pid"), "--log-file", world.path("collector.log"))
    until("the collector", lambda: listens(collector))
    run = job(world, "all", "--http", f"127.0.0.1:{world.page}", "--otlp", "env", "--metrics-textfile", world.path("job.prom"),
              seconds=None, env={"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector}", "OTEL_METRIC_EXPORT_INTERVAL": "1000",
                                 "OTEL_EXPORTER_OTLP_HEADERS": f"api-key={SECRET}", "OTEL_RESOURCE_ATTRIBUTES": "team=a%20b",
                                 "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip"}.items())
    until("the page", answers(f"http://127.0.0.1:{world.page}/metrics"))
    until("a GPU by way of the collector", lambda: "hw.power" in names(Receiver.came))
    formats(world)
    path = file(world)
    for whose, metric, said, point in points(Receiver.came):
        assert whose["service.name"] == "paceline" and whose["paceline.job"] == "all" and whose["team"] == "a b", whose
        assert point.time_unix_nano > 0, metric
        if metric.name.startswith("hw."):
            assert whose["host.name"] == "n1" and said["hw.id"], (whose, said)
    power = {said["hw.id"]: point.as_double for _, metric, said, point in points(Receiver.came) if metric.name == "hw.power"}
    assert len(power) == 2 and all(10 < watts < 2000 for watts in power.values()), power
    assert "paceline.job_end_info" not in names(Receiver.came)
    open(world.path("all-stop"), "w").close()
    run.wait(timeout=60)
    assert run.returncode == 0
    until("the last push", lambda: "paceline.job_end_info" in names(Receiver.came), 30)
    ends = [said["reason"] for _, metric, said, _ in points(Receiver.came) if metric.name == "paceline.job_end_info"]
    assert set(ends) == {"success"}, ends
    assert not os.path.exists(path), "the file is gone with its job"
    said = log(world, "all") + "".join(open(os.path.join(root, name), errors="replace").read()
                                       for root, _, found in os.walk(world.path("all")) for name in found)
    assert SECRET not in said, "a secret is told"


def listens(at):
    import socket
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", at)) == 0


def bad_receivers(world):
    closed = port()
    secret = {"OTEL_EXPORTER_OTLP_HEADERS": f"api-key={SECRET}", "OTEL_METRIC_EXPORT_INTERVAL": "500"}.items()
    refusing = refuses()
    jobs = {
        "hangs": (world.serve(Hangs), "were not accepted in time"),
        "refuses": (world.serve(refusing), "status 403"),
        "is-gone": (closed, "accepts no metrics"),
    }
    began = time.monotonic()
    runs = {name: job(world, name, "--otlp", f"http://127.0.0.1:{at}", env=secret) for name, (at, _) in jobs.items()}
    for name, (_, words) in jobs.items():
        assert runs[name].wait(timeout=90) == 0, name
        said = log(world, name)
        assert said.count("otlp http://") == 1 and words in said, (name, said)
        assert SECRET not in said
    print(f"  receivers that hang, refuse and are gone: {time.monotonic() - began:.1f} s for three jobs of 3 s at once")
    assert Hangs.came.is_set() and refusing.asked > 1
    Hangs.over.set()


# Slurm's squeue on a node with one job.
SQUEUE = """#!/bin/sh
while [ "$1" != -o ]; do shift; done
echo "$2" | sed -e 's/%A/77/; s/%u/ada/; s/%N/n1/; s|%Z|FOLDER|; s/%j/train/'
"""


def targets(world):
    """A real Prometheus discovers a Slurm job (squeue is a script) over HTTP, and scrapes it."""
    script = os.path.join(world.path("bin"), "squeue")
    os.mkdir(world.path("bin"))
    with open(script, "w", opener=lambda path, flags: os.open(path, flags, 0o755)) as file:
        file.write(SQUEUE.replace("FOLDER", world.folder))
    run = job(world, "paceline-77", seconds=None)
    listen, world.prometheus = port(), port()
    world.start(PACELINE, "slurm", "targets", "--node", "n1", "--listen", str(listen),
                env={**os.environ, "PATH": f"{world.path('bin')}:{os.environ['PATH']}"})
    until("the list", lambda: listens(listen))
    config = {"global": {"scrape_interval": "1s"}, "scrape_configs": [
        {"job_name": "paceline", "http_sd_configs": [{"url": f"http://127.0.0.1:{listen}/", "refresh_interval": "1s"}]}]}
    json.dump(config, open(world.path("sd.yaml"), "w"))
    world.start("prometheus", f"--config.file={world.path('sd.yaml')}", f"--storage.tsdb.path={world.path('sd')}",
                f"--web.listen-address=127.0.0.1:{world.prometheus}")
    until("Prometheus", answers(f"http://127.0.0.1:{world.prometheus}/-/ready"))
    wanted = 'paceline_job_info{slurm_job="77", user="ada", job_name="train"} * on(instance) up'
    until("a job of Slurm's in Prometheus", lambda: world.query(wanted))
    open(world.path("paceline-77-stop"), "w").close()
    run.wait(timeout=60)


def play(world):
    all_doors(world)
    bad_receivers(world)
    targets(world)


if __name__ == "__main__":
    played("doors", play)
    print("metrics leave by every door")
