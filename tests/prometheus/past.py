"""A past that a real Prometheus is asked about: series as OpenMetrics, made into blocks by promtool; the shipped rules, as Prometheus
loads them, with what they record made for all of that time; and when each alert would have been told.
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

# As kube-prometheus scrapes and evaluates. What a scrape does not bring is gone, as if Prometheus had marked it stale.
STEP_S = 30
POINTS = 10_000


def said(words):
    """What a program prints; how it ended, and what it said of that, where it did not end well."""
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        how = f"was killed by {signal.Signals(-done.returncode).name}" if done.returncode < 0 else f"ended with {done.returncode}"
        raise RuntimeError(f"{' '.join(words)}\n{how}: {done.stderr[-1500:].strip() or 'without a word'}")
    return done.stdout


class Past:
    """A folder with blocks, and a Prometheus over it."""

    def __init__(self, folder):
        self.folder, self.child = folder, None
        self.data = os.path.join(folder, "data")
        self.begins, self.ends, self.known = None, None, {}

    def path(self, name):
        return os.path.join(self.folder, name)

    def add(self, name, families):
        """Writes series [(labels, [(unix seconds, value)])] by (family, type) and has them made into blocks."""
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
        """Starts Prometheus; of a port that somebody else took meanwhile, it finds another."""
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
        """The end of what Prometheus said."""
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
        """The rules as Prometheus has loaded them: (alerts, recorded)."""
        groups = until("the rules", lambda: self.ask("rules")["groups"])
        every = [rule for group in groups for rule in group["rules"]]
        return [rule for rule in every if rule["type"] == "alerting"], [rule for rule in every if rule["type"] == "recording"]

    def record(self):
        """What rules record, for all of the past: first what is made of series, then what is made of that. Asked on the grid of
        scrapes, as alerts are; promtool's own way asks at times that depend on the name of a file, and in two hours' pieces."""
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
        """What the query brings at each evaluation of the past: (labels, points), a series in as many pieces as are asked for."""
        at = self.begins
        while at <= self.ends:
            upto = min(self.ends, at + POINTS * STEP_S)
            for series in self.ask("query_range", query=query, start=at, end=upto, step=STEP_S)["result"]:
                yield series["metric"], series["values"]
            at = upto + STEP_S

    def times(self, query):
        """When the query has an answer: by series, a sorted list."""
        if query in self.known:
            return self.known[query]
        found = self.known[query] = {}
        for labels, points in self.over_all(query):
            found.setdefault(json.dumps(labels, sort_keys=True), []).extend(int(point[0]) for point in points)
        return found

    def told(self, query, wait_s):
        """Firings (from, until) of an alert: as Prometheus has it, an alert waits from the first evaluation that finds it, and one
        evaluation that does not find it begins anew."""
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
    """On the grid of scrapes."""
    return int(seconds // STEP_S) * STEP_S


def month_begins():
    """Midnight, a whole number of days ago, far enough that nothing of it is now."""
    return int((time.time() - 120 * 86400) // 86400) * 86400
