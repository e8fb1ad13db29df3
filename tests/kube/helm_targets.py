#!/usr/bin/env python3
"""Which pods a real Prometheus scrapes through the chart's PodMonitor, and at which address: its relabelings follow
those of the Prometheus operator, and a file lists pods with the labels from Kubernetes' discovery. Needs
Debian's prometheus.
"""

import json
import os
import re
import socket
import subprocess
import tempfile
import time
import urllib.request

import yaml

from helm import rendered

PATIENCE = 60  # s
META = "__meta_kubernetes_pod_"

# Properties of pods, each with the address at which it is scraped, or None if it is not scraped.
PODS = [
    ({"ip": "10.0.0.1", "annotations": {"injected": "sidecar", "metrics": "9810"}}, "10.0.0.1:9810"),
    ({"ip": "10.0.0.2", "annotations": {"injected": "wrap", "metrics": "eth0:9811"}}, "10.0.0.2:9811"),
    ({"ip": "fd00::7", "annotations": {"injected": "sidecar", "metrics": "9810"}}, "[fd00::7]:9810"),
    ({"ip": "10.0.0.3", "annotations": {"injected": "sidecar"}}, None),
    ({"ip": "10.0.0.4", "annotations": {"metrics": "9810"}}, None),
    ({"ip": "10.0.0.5", "annotations": {"injected": "sidecar", "metrics": "9810"},
      "labels": {"batch_kubernetes_io_job_completion_index": "0"}}, "10.0.0.5:9810"),
    ({"ip": "10.0.0.6", "annotations": {"injected": "sidecar", "metrics": "9810"},
      "labels": {"batch_kubernetes_io_job_completion_index": "1"}}, None),
    ({"ip": "10.0.0.8", "annotations": {"injected": "sidecar", "metrics": "9810"},
      "labels": {"leaderworkerset_sigs_k8s_io_worker_index": "12"}}, None),
    ({"ip": "10.0.0.9", "annotations": {"injected": "sidecar", "metrics": "9810"}, "labels": {"ray_io_node_type": "worker"}}, None),
    ({"ip": "10.0.0.10", "annotations": {"injected": "sidecar", "metrics": "9810"}, "labels": {"ray_io_node_type": "head"}},
     "10.0.0.10:9810"),
]


def snake(word):
    return re.sub(r"([A-Z])", lambda match: "_" + match[1].lower(), word)


def discovered():
    """Returns the targets of the role `pod`, one for each port of each container."""
    for pod, _ in PODS:
        labels = {META + "ip": pod["ip"], META + "name": "p", "__meta_kubernetes_namespace": "n"}
        labels |= {f"{META}annotation_paceline_dev_{name}": value for name, value in pod["annotations"].items()}
        labels |= {f"{META}label_{name}": value for name, value in pod.get("labels", {}).items()}
        for container, port in (("trainer", 8080), ("trainer", 8081), ("paceline", 9810)):
            host = f"[{pod['ip']}]" if ":" in pod["ip"] else pod["ip"]
            yield {"targets": [f"{host}:{port}"], "labels": labels | {META + "container_name": container}}


def main():
    objects = rendered({"monitoring": {"podMonitor": {"enabled": True}}})
    (monitor,) = [one for one in objects if one["kind"] == "PodMonitor" and one["metadata"]["name"].endswith("-jobs")]
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    before = [{"source_labels": ["__meta_kubernetes_namespace"], "target_label": "namespace"},
              {"source_labels": [META + "container_name"], "target_label": "container"},
              {"source_labels": [META + "name"], "target_label": "pod"}]
    rules = before + [{snake(key): value for key, value in rule.items()} for rule in endpoint["relabelings"]]
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "pods.json"), "w") as file:
            json.dump(list(discovered()), file)
        with open(os.path.join(folder, "prometheus.yml"), "w") as file:
            yaml.safe_dump({"scrape_configs": [{"job_name": "jobs", "metrics_path": endpoint["path"], "relabel_configs": rules,
                                                "scrape_interval": "1h",
                                                "file_sd_configs": [{"files": [os.path.join(folder, "pods.json")]}]}]}, file)
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
        words = ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
                 f"--web.listen-address=127.0.0.1:{port}"]
        with open(os.path.join(folder, "log"), "w") as log:
            process = subprocess.Popen(words, stdout=log, stderr=log)
        try:
            found = targets(port, process, os.path.join(folder, "log"))
        finally:
            process.terminate()
            process.wait()
    addresses = sorted(re.sub(r"^http://(.*)/metrics$", r"\1", one["scrapeUrl"]) for one in found)
    wanted = sorted(address for _, address in PODS if address)
    assert addresses == wanted, f"scraped are {addresses}, and should be {wanted}"
    assert all(set(one["labels"]) == {"instance", "job", "namespace", "pod"} for one in found), found[0]["labels"]
    print(f"of {len(PODS)} pods Prometheus scrapes {len(found)}, each once and at its page")


def targets(port, process, log):
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        assert process.poll() is None, open(log).read()
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/targets", timeout=5) as answer:
                data = json.load(answer)["data"]
            if data["activeTargets"]:
                return data["activeTargets"]
        except OSError:
            pass
        time.sleep(0.1)
    raise AssertionError(f"no targets: {open(log).read()}")


main()
