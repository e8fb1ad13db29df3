"""How fast the live page is: a real aggregator, simulated sidecars, a real Chromium.

    cargo build --release -p paceline && python3 tests/bench/page/run.py --ranks 16384 --minutes 10 --pictures DIR
"""

import argparse
import contextlib
import os
import pathlib
import secrets
import signal
import statistics
import subprocess
import tempfile
import time
import urllib.request

from browser import Browser

ROOT = pathlib.Path(__file__).resolve().parents[3]


@contextlib.contextmanager
def job(binary, ranks, words, faults, steps, slow_every, name=None, more=()):
    """An aggregator with a job of this many ranks; yields its address and process. `more`: arguments of the
    simulation."""
    with tempfile.TemporaryDirectory(prefix="paceline-page-") as home:
        key = pathlib.Path(home, "key")
        key.write_text(secrets.token_hex(32))
        key.chmod(0o600)
        run_dir = pathlib.Path(home, "run")
        port = 20000 + os.getpid() % 20000
        common = ["--job", name or f"page-{ranks}", "--key-file", str(key)]
        logs = open(pathlib.Path(home, "log"), "wb")
        aggregator = subprocess.Popen(
            [binary, "sidecar", *common, "--node", "head", "--run-dir", str(run_dir), "--aggregator", f"127.0.0.1:{port}"],
            stdin=subprocess.PIPE, stdout=logs, stderr=logs,
        )
        load = None
        try:
            address = run_dir / "metrics.addr"
            end = time.monotonic() + 60
            while not (address.exists() and address.read_text()):
                if time.monotonic() > end:
                    raise TimeoutError(pathlib.Path(home, "log").read_text())
                time.sleep(0.05)
            command = [binary, "simulate", *common, "--connect", f"127.0.0.1:{port}", "--ranks", str(ranks), "--steps", str(steps),
                       "--slow-every", str(slow_every), "--world", words, *more]
            for fault in faults:
                command += ["--fault", fault]
            load = subprocess.Popen(command, stdout=logs, stderr=logs)
            yield address.read_text().strip(), aggregator
        finally:
            for process in (load, aggregator):
                if process:
                    process.send_signal(signal.SIGKILL)
                    process.wait()
            logs.close()


def cpu_s(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def rss_mib(pid):
    line = next(line for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def heap_mib(browser):
    browser.call("HeapProfiler.collectGarbage")
    metrics = browser.call("Performance.getMetrics")["metrics"]
    return next(entry["value"] for entry in metrics if entry["name"] == "JSHeapUsedSize") / (1 << 20)


def first_paint(address, columns):
    """Milliseconds from the request to the first content, and to the job's data, in a new browser each time."""
    with Browser() as browser:
        browser.open(f"http://{address}/")
        browser.until(f"typeof heat === 'object' && heat.columns.length >= {columns}")
        paint = browser.run("performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? -1")
        return paint, float(browser.run("document.body.dataset.firstDrawMs ?? performance.now()"))


def main():
    args = argparse.ArgumentParser(description=__doc__)
    args.add_argument("--binary", default=str(ROOT / "target/release/paceline"))
    args.add_argument("--ranks", type=int, default=16384)
    args.add_argument("--world", default="self=900ms racks=16")
    args.add_argument("--fault", action="append", default=None)
    args.add_argument("--minutes", type=float, default=2)
    args.add_argument("--warm", type=float, default=90, help="seconds before the page is opened")
    args.add_argument("--pictures")
    args = args.parse_args()
    faults = args.fault or ["slow rank=4711 factor=1.3 from=30 cause=thermal"]
    steps = int(60 * args.minutes + args.warm + 120)
    with job(args.binary, args.ranks, args.world, faults, steps, 10) as (address, aggregator):
        time.sleep(args.warm)
        before = cpu_s(aggregator.pid)
        time.sleep(20)
        alone = (cpu_s(aggregator.pid) - before) / 20
        paints = [first_paint(address, 10) for _ in range(5)]
        began = time.monotonic()
        state = urllib.request.urlopen(f"http://{address}/v1/live").read()
        took = time.monotonic() - began
        print(f"{args.ranks} ranks: first paint {statistics.median(p for p, _ in paints):.0f} ms (max {max(p for p, _ in paints):.0f}), "
              f"the job drawn after {statistics.median(d for _, d in paints):.0f} ms (max {max(d for _, d in paints):.0f}), of 5; "
              f"all data {len(state) / 1e6:.2f} MB in {took * 1e3:.0f} ms")
        with Browser() as browser:
            browser.open(f"http://{address}/")
            browser.until("Number(document.body.dataset.draws) > 2")
            heaps, updates, last, before, began = [heap_mib(browser)], [], None, cpu_s(aggregator.pid), time.monotonic()
            minute = began + 60
            while time.monotonic() < began + 60 * args.minutes:
                now = browser.run("[document.body.dataset.draws, document.body.dataset.applyMs, document.body.dataset.drawMs].join()")
                if now != last:
                    last = now
                    updates.append(sum(float(part) for part in now.split(",")[1:]))
                if time.monotonic() > minute:
                    minute += 60
                    heaps.append(heap_mib(browser))
                time.sleep(0.05)
            watched = (cpu_s(aggregator.pid) - before) / (time.monotonic() - began)
            updates.sort()
            print(f"updates: {len(updates)}, median {statistics.median(updates):.0f} ms, p99 {updates[int(len(updates) * 0.99)]:.0f} ms, "
                  f"longest {updates[-1]:.0f} ms; heap by minute {', '.join(f'{heap:.1f}' for heap in heaps)} MiB")
            print(f"aggregator: {alone * 100:.1f} % of a core without a visitor, {watched * 100:.1f} % with one; {rss_mib(aggregator.pid):.0f} MiB")
            if browser.console:
                print("console:", *browser.console[:5], sep="\n")
            if args.pictures:
                browser.picture(f"{args.pictures}/{args.ranks}.png")


if __name__ == "__main__":
    main()
