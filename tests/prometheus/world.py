"""Real programs with a simulated job: Debian's Prometheus and Alertmanager, an aggregator, and the job's sidecars."""

import glob
import http.server
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
DEPLOY = os.path.join(HERE, "../../deploy/prometheus")
PACELINE = os.path.abspath(os.environ.get("PACELINE", "target/debug/paceline-under-test"))
PATIENCE = 120
SCRAPE_S = 5


def port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def until(what, holds, patience=PATIENCE):
    give_up = time.monotonic() + patience
    while not (found := holds()):
        assert time.monotonic() < give_up, f"{what}: not in {patience} s"
        time.sleep(0.05)
    return found


def answers(url):
    def ask():
        try:
            return urllib.request.urlopen(url, timeout=5).status == 200
        except OSError:
            return False
    return ask


class World:
    """The programs, with configuration in a separate folder."""

    def __init__(self, folder):
        self.folder, self.children = folder, []
        self.page, self.alertmanager, self.prometheus = port(), port(), port()
        self.nvml, self.ports = [], {}

    def path(self, name):
        return os.path.join(self.folder, name)

    def start(self, *words, **more):
        log = open(self.path(f"log-{len(self.children)}"), "w")
        child = subprocess.Popen(words, stdout=log, stderr=log, cwd=self.folder, **more)
        self.children.append(child)
        return child

    def receive(self, telephone, changed=lambda text: text):
        """Alertmanager as in the example, or with a change, and with a local web server as its receivers."""
        server = self.serve(telephone)
        text = changed(open(f"{DEPLOY}/alertmanager.yaml").read())
        hook = f"webhook_configs: [{{url: 'http://127.0.0.1:{server}/', send_resolved: true}}]"
        text = text[:text.index("receivers:")] + "receivers:\n  - {name: dead-man}\n" + "".join(
            f"  - name: {name}\n    {hook}\n" for name in ("team", "tickets", "on-call"))
        # All notifications must arrive within a test's timeout, also the team's and tickets.
        for slow, soon in (("group_interval: 1m", "group_interval: 5s"), ("group_interval: 1h", "group_interval: 5s"),
                           ("group_wait: 5m", "group_wait: 1s")):
            text = text.replace(slow, soon)
        open(self.path("alertmanager.yaml"), "w").write(text)
        self.start("prometheus-alertmanager", f"--config.file={self.path('alertmanager.yaml')}", f"--storage.path={self.path('am')}",
                   f"--web.listen-address=127.0.0.1:{self.alertmanager}", "--cluster.listen-address=")
        until("Alertmanager", answers(f"http://127.0.0.1:{self.alertmanager}/-/ready"))

    def serve(self, handler):
        """Starts a web server; returns its port."""
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server.server_port

    def scrape(self, *others, rules=()):
        config = {
            "global": {"scrape_interval": f"{SCRAPE_S}s", "evaluation_interval": f"{SCRAPE_S}s"},
            "rule_files": [os.path.abspath(path) for path in (f"{DEPLOY}/paceline.rules.yaml", *rules)],
            "alerting": {"alertmanagers": [{"static_configs": [{"targets": [f"127.0.0.1:{self.alertmanager}"]}]}]},
            "scrape_configs": [{"job_name": "paceline", "static_configs": [{"targets": [f"127.0.0.1:{self.page}"]}]},
                               {"job_name": "others", "static_configs": [{"targets": list(others)}]}],
        }
        json.dump(config, open(self.path("prometheus.yaml"), "w"))
        self.start("prometheus", f"--config.file={self.path('prometheus.yaml')}", f"--storage.tsdb.path={self.path('tsdb')}",
                   f"--web.listen-address=127.0.0.1:{self.prometheus}")
        until("Prometheus", answers(f"http://127.0.0.1:{self.prometheus}/-/ready"))

    def query(self, words):
        url = f"http://127.0.0.1:{self.prometheus}/api/v1/query?" + urllib.parse.urlencode({"query": words})
        return json.load(urllib.request.urlopen(url, timeout=10))["data"]["result"]

    def play_gpus(self):
        """Adds GPUs to the aggregator's node, with all of Hopper's readings, from the fake library that cargo builds
        for tests."""
        beside = os.path.dirname(PACELINE)
        places = [f"{beside}/libpaceline_fake_nvml.so", f"{beside}/deps/libpaceline_fake_nvml.so",
                  *glob.glob(os.path.join(HERE, "../../target/*/deps/libpaceline_fake_nvml.so"))]
        library = next((place for place in places if os.path.exists(place)), None)
        assert library, "no libpaceline_fake_nvml.so: cargo test -p paceline-tests --no-run"
        shutil.copy(library, self.path("libnvidia-ml.so.1"))
        open(self.path("libnvidia-ml.so.1.toml"), "w").write('gpus = 2\nprofile = "h100"\n')
        self.nvml = ["--nvml-lib", self.path("libnvidia-ml.so.1")]

    def play_ports(self):
        """Adds InfiniBand ports, as a file tree, with the host's own processes."""
        root = self.path("root")
        os.makedirs(f"{root}/sys")
        os.symlink("/proc", f"{root}/proc")
        os.symlink("/sys/fs", f"{root}/sys/fs")
        for line in open(os.path.join(HERE, "../../sidecar/tests/host/infiniband.txt")):
            path, _, text = line.strip().partition(" = ")
            if path.startswith("sys/"):
                os.makedirs(os.path.dirname(f"{root}/{path}"), exist_ok=True)
                open(f"{root}/{path}", "w").write(text + "\n")
        self.ports = {"PACELINE_HOST_ROOT": root}

    def watch(self, *load):
        """A node without ranks, whose sidecar is the aggregator; its kernel log is a file."""
        open(self.path("kmsg"), "w").close()
        with open(self.path("key"), "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as key:
            key.write(os.urandom(32).hex())
        at = f"127.0.0.1:{port()}"
        self.run = self.start(
            PACELINE, "run", "--job", "delivery", "--node", "watch", "--run-dir", self.path("run"), "--aggregator", at,
            "--key-file", self.path("key"), "--http", f"127.0.0.1:{self.page}", "--kmsg", self.path("kmsg"), "--ras", "off",
            "--notify", f"alertmanager=http://127.0.0.1:{self.alertmanager}", *self.nvml, "--", "sleep", "100000", env={**os.environ, **self.ports})
        until("the aggregator", answers(f"http://127.0.0.1:{self.page}/metrics"))
        self.start(PACELINE, "simulate", "--connect", at, "--job", "delivery", "--key-file", self.path("key"), "--steps", "100000",
                   *load)

    def fault(self, gpu):
        line = f"4,{gpu},77000000,-;NVRM: Xid (PCI:0000:{gpu:02x}:00): 119, pid=7, name=a, Timeout of GSP\n"
        with open(self.path("kmsg"), "a") as log:
            log.write(line)
        return time.monotonic()

    def end(self):
        for child in reversed(self.children):
            if child.poll() is None:
                child.send_signal(signal.SIGTERM)
        for child in self.children:
            try:
                child.wait(timeout=20)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def played(name, play):
    """Runs a test in a temporary world; prints the programs' logs on a failure."""
    with tempfile.TemporaryDirectory(prefix=f"paceline-{name}-") as folder:
        world = World(folder)
        try:
            play(world)
        except BaseException:
            for number, child in enumerate(world.children):
                print(f"--- {child.args[0]}\n{open(world.path(f'log-{number}')).read()[-1500:]}", file=sys.stderr)
            raise
        finally:
            world.end()
