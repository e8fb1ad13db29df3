"""Historical data for a real Prometheus: series as OpenMetrics, converted to blocks by promtool; the shipped rules as
loaded by Prometheus, with their recorded series for the whole time; and the firings of each alert.
"""

import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request

from world import DEPLOY, answers, port, until

# Scrape and evaluation interval of kube-prometheus. A series missing in a scrape ends, as if marked stale.
STEP_S = 30
POINTS = 10_000


def said(words):
    """Runs a program and returns its output; raises with its error if it fails."""
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        how = f"was killed by {signal.Signals(-done.returncode).name}" if done.returncode < 0 else f"ended with {done.returncode}"
        raise RuntimeError(f"{' '.join(words)}\n{how}: {done.stderr[-1500:].strip() or 'without a word'}")
    return done.stdout


class Past:
    """A folder with blocks, and a Prometheus on it."""

    def __init__(self, folder):
        self.folder, self.child = folder, None
        self.data = os.path.join(folder, "data")
        self.begins, self.ends, self.known = None, None, {}

    def path(self, name):
        return os.path.join(self.folder, name)

    def add(self, name, families):
        """Writes series [(labels, [(unix seconds, value)])] by (family, type), and converts them to blocks."""
        text = self.path(f"{name}.om")
        with open(text, "w") as file:
            for (family, kind), series in families.items():
                file.write(f"# TYPE {family} {kind}\n")
                sample = family + ("_total" if kind == "counter" else "")
                for labels, points in series:
                    words = sample + "{" + ",".join(f'{key}="{value}"' for key, value in labels.items()) + "} "
                    file.writelines(f"{words}{value:.10g} {at}\n" for at, value in points)
                    if points:
                        self.begins = min(self.begins or points[0][0], points[0][0])
                        self.ends = max(self.ends or 0, points[-1][0])
            file.write("# EOF\n")
        said(["promtool", "tsdb", "create-blocks-from", "openmetrics", "--max-block-duration=744h", text, self.data])
        os.remove(text)

    def start(self):
        """Starts Prometheus; if another process takes the port in the meantime, retries with a new one."""
        self.stop()
        json.dump({"rule_files": [os.path.abspath(f"{DEPLOY}/paceline.rules.yaml")]}, open(self.path("prometheus.yaml"), "w"))
        for _ in range(5):
            self.at = f"http://127.0.0.1:{port()}"
            self.child = subprocess.Popen(
                ["prometheus", f"--config.file={self.path('prometheus.yaml')}", f"--storage.tsdb.path={self.data}",
                 "--storage.tsdb.retention.time=100y", f"--query.lookback-delta={STEP_S - 1}s", "--query.timeout=10m",
                 f"--web.listen-address={self.at[7:]}"], stdout=subprocess.DEVNULL, stderr=open(self.path("log"), "w"))
            until("Prometheus", lambda: self.child.poll() is not None or answers(f"{self.at}/-/ready")())
            if self.child.poll() is None and self.ask("status/flags")["storage.tsdb.path"] == self.data:
                return
            self.stop()
        raise RuntimeError("Prometheus does not start: " + self.log())

    def stop(self):
        if self.child:
            self.child.terminate()
            self.child.wait()
            self.child = None

    def log(self):
        """The end of Prometheus's log."""
        return open(self.path("log")).read()[-1500:]

    def ask(self, what, **words):
        url = f"{self.at}/api/v1/{what}?" + urllib.parse.urlencode(words)
        try:
            return json.load(urllib.request.urlopen(url, timeout=900))["data"]
        except urllib.error.HTTPError as refused:
            raise RuntimeError(f"{url}: {refused.read()[:1500]}") from None
        except OSError as problem:
            raise RuntimeError(f"{url}: {problem}; Prometheus said: {self.log()}") from None

    def rules(self):
        """The rules as loaded by Prometheus: (alerts, recorded)."""
        groups = until("the rules", lambda: self.ask("rules")["groups"])
        every = [rule for group in groups for rule in group["rules"]]
        return [rule for rule in every if rule["type"] == "alerting"], [rule for rule in every if rule["type"] == "recording"]

    def record(self):
        """Computes recorded series for the whole past, in order of their dependencies. Evaluated on the grid of
        scrapes, like alerts; promtool's own backfill uses times that depend on a file's name, and pieces of two
        hours."""
        left = self.rules()[1]
        while left:
            names = {rule["name"] for rule in left}
            families = {}
            for rule in [rule for rule in left if not any(name in rule["query"] for name in names)]:
                left.remove(rule)
                for labels, points in self.over_all(rule["query"]):
                    labels = {key: value for key, value in labels.items() if key != "__name__"} | rule.get("labels", {})
                    families.setdefault((rule["name"], "gauge"), []).append((labels, [(int(at), float(value)) for at, value in points]))
            assert families, f"nothing is recorded by {names}"
            self.stop()
            self.add("recorded", families)
            self.start()

    def over_all(self, query):
        """The query's result at each evaluation: (labels, points), a series in as many pieces as there are requests."""
        at = self.begins
        while at <= self.ends:
            upto = min(self.ends, at + POINTS * STEP_S)
            for series in self.ask("query_range", query=query, start=at, end=upto, step=STEP_S)["result"]:
                yield series["metric"], series["values"]
            at = upto + STEP_S

    def times(self, query):
        """When the query has a result: by series, a sorted list."""
        if query in self.known:
            return self.known[query]
        found = self.known[query] = {}
        for labels, points in self.over_all(query):
            found.setdefault(json.dumps(labels, sort_keys=True), []).extend(int(point[0]) for point in points)
        return found

    def told(self, query, wait_s):
        """Firings (from, until) of an alert, computed like in Prometheus: the wait starts at the first evaluation with
        a result, and starts again after one without."""
        firings = []
        for times in self.times(query).values():
            since = last = None
            for at in [*times, None]:
                if last is not None and (at is None or at - last > STEP_S):
                    if last - since >= wait_s:
                        firings.append((since + -(-wait_s // STEP_S) * STEP_S, last))
                    since = None
                since = at if since is None else since
                last = at
        return sorted(firings)


def whole(seconds):
    """Rounds down to the grid of scrapes."""
    return int(seconds // STEP_S) * STEP_S


def month_begins():
    """Midnight, a whole number of days ago, so that the month is entirely in the past."""
    return int((time.time() - 120 * 86400) // 86400) * 86400
