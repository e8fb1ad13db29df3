"""One aggregator and the sidecars of a whole job, on this machine: what docs/measurements/scale.md shows.

    cargo build --release -p paceline
    python3 tests/bench/scale/run.py [--sizes 64,512,4096,16384] [--steps 70] [--no-kill] [--json FILE]

For each size, a real `paceline sidecar` runs the aggregator, and `paceline simulate --connect` simulates all other
sidecars, with one step per second. `--relays 8` uses that many relays (`paceline sidecar --relay`). Ranks become slow
one after another; a finding's latency is from the last rank's report of the deciding step to the aggregator's verdict.
A second run of each size kills the aggregator (SIGKILL) and restarts it. A size can be RANKSxPER_NODE: 16384x1 has a
connection per rank. `--scrape 5` reads the metrics page at that interval in seconds. Standard library only; Linux.
"""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
sys.path.insert(0, HERE)
import peer  # noqa: E402

TICKS = os.sysconf("SC_CLK_TCK")
# The first steps are the detector's baseline; then ranks become slow for some steps, with pauses in between.
FIRST, SLOW_FOR, NEXT = 32, 6, 3
# libzmq needs several descriptors per socket, and Python has one limit for all of them.
MOST_PEERS = 4096


class Aggregator:
    """A sidecar of a node without ranks, which runs the aggregator."""

    def __init__(self, program, folder, *more):
        self.program, self.folder, self.more = program, folder, more
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.verdicts, self.progress = [], []
        self.start()

    def start(self):
        command = [self.program, "sidecar", "--job", "scale", "--node", "head", "--run-dir", self.folder + "/run"]
        command += ["--key-file", self.folder + "/key", "--aggregator", f"127.0.0.1:{self.port}", "--ras", "off"]
        command += ["--nvml-lib", self.folder + "/no-gpu-here", *self.more]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        if not any(b'"ready"' in line for line in self.process.stdout):
            sys.exit("the aggregator did not start")
        threading.Thread(target=self.read, args=(self.process.stdout,), daemon=True).start()

    def read(self, lines):
        for line in lines:
            now = time.monotonic_ns()
            status = json.loads(line)
            if "verdict" in status:
                self.verdicts.append((now, status["verdict"]))
            elif "progress" in status:
                self.progress.append((now, status["progress"]))

    def cpu_s(self):
        return cpu_s(self.process.pid)

    def rss_mib(self):
        return rss_mib(self.process.pid)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.stdin.close()
        try:
            self.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self.kill()


class Scraper:
    """Reads the metrics page repeatedly, like Prometheus."""

    def __init__(self, folder, every_s):
        self.took_ms, self.bytes, self.over = [], [], threading.Event()
        self.thread = threading.Thread(target=self.read, args=(folder + "/run/metrics.addr", every_s), daemon=True)
        if every_s:
            self.thread.start()

    def read(self, place, every_s):
        while not self.over.wait(every_s):
            with open(place) as file:
                address = file.read().split()[0]
            began = time.monotonic()
            with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as page:
                self.bytes.append(len(page.read()))
            self.took_ms.append((time.monotonic() - began) * 1e3)

    def stop(self):
        self.over.set()


class Relays:
    """Relays in front of an aggregator."""

    def __init__(self, program, folder, port, count):
        self.ports, self.processes = [], []
        for _ in range(count):
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                self.ports.append(free.getsockname()[1])
            command = [program, "sidecar", "--relay", f"127.0.0.1:{self.ports[-1]}", "--job", "scale"]
            command += ["--aggregator", f"127.0.0.1:{port}", "--key-file", folder + "/key"]
            self.processes.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL))
        for at in self.ports:
            while True:
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", at)) == 0:
                        break
                time.sleep(0.05)

    def cpu_s(self):
        return sum(cpu_s(process.pid) for process in self.processes)

    def rss_mib(self):
        return max((rss_mib(process.pid) for process in self.processes), default=0)

    def stop(self):
        for process in self.processes:
            process.kill()
            process.wait()


def cpu_s(pid):
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def rss_mib(pid):
    with open(f"/proc/{pid}/status") as status:
        kib = [line.split()[1] for line in status if line.startswith("VmHWM")]
    return int(kib[0]) / 1024


def load(program, folder, ports, ranks, each, steps, processes):
    places = ",".join(f"127.0.0.1:{port}" for port in ports)
    command = [program, "simulate", "--connect", places, "--job", "scale", "--json"]
    command += ["--key-file", folder + "/key", "--ranks", str(ranks), "--gpus", str(each), "--steps", str(steps)]
    command += ["--processes", str(processes)]
    for number, step in enumerate(range(FIRST, steps - SLOW_FOR, NEXT)):
        rank = (7 + 13 * number) % ranks
        command += ["--fault", f"slow rank={rank} factor=1.3 from={step} until={step + SLOW_FOR}"]
    return subprocess.Popen(command, stdout=subprocess.PIPE)


def quantile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))] if values else None


def measure(args, ranks, each):
    """A run without kills: a row of the table."""
    with tempfile.TemporaryDirectory(dir=args.dir) as folder:
        aggregator = fresh(args.program, folder, *args.more.split())
        relays = Relays(args.program, folder, aggregator.port, args.relays)
        ports = [*relays.ports, aggregator.port]
        began = time.monotonic()
        player = load(args.program, folder, ports, ranks, each, args.steps, args.processes)
        scraper = Scraper(folder, args.scrape)
        # CPU is measured in the steady state: the last steps, with findings.
        time.sleep(min(25, args.steps / 3))
        before, of_relays, at = aggregator.cpu_s(), relays.cpu_s(), time.monotonic()
        time.sleep(max(5, began + args.steps - 5 - time.monotonic()))
        cpu = (aggregator.cpu_s() - before) / (time.monotonic() - at)
        relay_cpu = (relays.cpu_s() - of_relays) / (time.monotonic() - at)
        report = json.loads(player.communicate()[0])
        time.sleep(1)
        rss, relay_rss = aggregator.rss_mib(), relays.rss_mib()
        scraper.stop()
        relays.stop()
        aggregator.stop()
        said = dict(map(tuple, report["steps"]))
        # A repeated verdict with a higher severity does not count.
        first = {}
        for now, verdict in aggregator.verdicts:
            if verdict["state"] == "raised" and verdict.get("raised_step") in said:
                first.setdefault(verdict["id"], (now, verdict))
        each = [
            ((now - said[verdict["raised_step"]]) / 1e6, verdict["finding"], verdict["raised_step"])
            for now, verdict in first.values()
        ]
        raised = [took for took, _, _ in each]
        journal = sum(entry.stat().st_size for entry in os.scandir(folder + "/run") if "journal" in entry.name)
        return {
            "ranks": ranks,
            "nodes": report["nodes"],
            "cpu": cpu,
            "load_cpu": report["cpu_s"] / report["took_s"],
            "rss_mib": rss,
            "scrapes": len(scraper.took_ms),
            "scrape_p50_ms": quantile(scraper.took_ms, 0.5),
            "scrape_max_ms": max(scraper.took_ms, default=None),
            "scrape_bytes": max(scraper.bytes, default=None),
            "relay_cpu": relay_cpu,
            "relay_rss_mib": relay_rss,
            "bytes_up": report["bytes_up"] / report["rank_steps"],
            "bytes_down": report["bytes_down"] / report["rank_steps"],
            "findings": len(raised),
            "each": each,
            "verdict_p50_ms": quantile(raised, 0.5),
            "verdict_p99_ms": quantile(raised, 0.99),
            "fold": report["said_to_acked"],
            "wire": report["sent_to_acked"],
            "late": report["late"],
            "connect_s": report["connect_s"],
            "failures": report["failed"],
            "last_failure": report["last_failure"],
            "dropped": report["dropped"],
            "frames": report["frames"],
            "journal_bytes": journal / report["rank_steps"],
        }


def recover(args, ranks, each):
    """A run in which the aggregator is killed and restarted: the time until everything is as before."""
    with tempfile.TemporaryDirectory(dir=args.dir) as folder:
        aggregator = fresh(args.program, folder)
        player = load(args.program, folder, [aggregator.port], ranks, each, args.steps, args.processes)
        time.sleep(args.steps / 2)
        aggregator.kill()
        killed = time.monotonic_ns()
        aggregator.start()
        started = (time.monotonic_ns() - killed) / 1e9
        report = json.loads(player.communicate()[0])
        aggregator.stop()
        backs = [back for down, back in report["outages"] if down >= killed - 1e9]
        return {
            "recovery_s": (max(backs) - killed) / 1e9 if backs else None,
            "journal_read_s": started,
            "dropped_in_kill": report["dropped"],
        }


def fresh(program, folder, *more):
    with open(folder + "/key", "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as key:
        key.write(os.urandom(32).hex())
    return Aggregator(program, folder, *more)


def table(rows):
    def ms(value):
        return "-" if value is None else f"{value:.0f}"

    def seconds(value):
        return "-" if value is None else f"{value:.1f}"

    print("| ranks | connections | CPU of a core | memory | bytes up (back) a rank-step | finding p50 / p99 | any frame "
          "p50 / p99 | all joined | back after a kill | load's CPU, lateness p99 | plain TCP: CPU, p50 / p99 | libzmq: CPU, p50 / p99 |")
    print("|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    def beside(row, name):
        echo = row.get(name)
        return f"{echo['cpu'] * 100:.1f} %, {echo['p50_ms']:.1f} / {echo['p99_ms']:.1f} ms" if echo else "-"

    for row in rows:
        print(
            f"| {row['ranks']:,} | {row['nodes']:,} | {row['cpu'] * 100:.1f} % | {row['rss_mib']:.0f} MiB "
            f"| {row['bytes_up']:.0f} ({row['bytes_down']:.0f}) "
            f"| {ms(row['verdict_p50_ms'])} / {ms(row['verdict_p99_ms'])} ms of {row['findings']} "
            f"| {ms(row['fold']['p50_ms'])} / {ms(row['fold']['p99_ms'])} ms | {seconds(row['connect_s'])} s "
            f"| {seconds(row.get('recovery_s'))} s "
            f"| {row['load_cpu'] * 100:.0f} %, {ms(row['late']['p99_ms'])} ms "
            f"| {beside(row, 'tcp')} | {beside(row, 'zmq')} |",
            flush=True,
        )


def size(text):
    ranks, _, each = text.partition("x")
    return int(ranks), int(each or 8)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=lambda text: [size(one) for one in text.split(",")],
                        default=[(64, 8), (512, 8), (4096, 8), (16384, 8)])
    parser.add_argument("--steps", type=int, default=70)
    parser.add_argument("--no-kill", action="store_true")
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--scrape", type=float, default=0, metavar="SECONDS", help="reads the metrics page every so often")
    parser.add_argument("--with", dest="more", default="", metavar="FLAGS", help="more flags of the aggregator's sidecar")
    parser.add_argument("--relays", type=int, default=0, help="relays between the sidecars and the aggregator")
    parser.add_argument("--program", default=os.path.join(ROOT, "target/release/paceline"))
    parser.add_argument("--dir", help="where run directories are made [default: that of temporary files]")
    parser.add_argument("--json", help="write everything that was measured there")
    args = parser.parse_args()
    rows = []
    for ranks, each in args.sizes:
        row = measure(args, ranks, each)
        if not args.no_kill:
            row.update(recover(args, ranks, each))
        if not args.no_peer and ranks // each <= MOST_PEERS:
            row["tcp"] = peer.tcp(ranks // each, int(each * row["bytes_up"]), 10)
            row["zmq"] = peer.libzmq(ranks // each, int(each * row["bytes_up"]), 10)
        rows.append(row)
        print(json.dumps(row), file=sys.stderr, flush=True)
        if args.json:
            with open(args.json, "w") as file:
                json.dump(rows, file, indent=1)
    table(rows)
    for row in rows if args.scrape else []:
        print(f"{row['ranks']:,} ranks: the metrics page has {row['scrape_bytes'] / 1e3:.0f} kB, read in {row['scrape_p50_ms']:.1f} ms, "
              f"{row['scrape_max_ms']:.1f} at most of {row['scrapes']}")
    for row in rows if args.relays else []:
        print(f"{row['ranks']:,} ranks through {args.relays} relays: {row['relay_cpu'] * 100:.1f} % of a core for all of them, "
              f"{row['relay_rss_mib']:.0f} MiB the largest")
    if not args.no_peer and not peer.has_libzmq():
        print("libzmq: left out, for pyzmq is not installed")


if __name__ == "__main__":
    main()
