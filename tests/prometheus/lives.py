"""Jobs for months.py: the arguments of `paceline simulate`, the true faults among its events, and the series of the
job's page, derived from the detector's report."""

import concurrent.futures
import dataclasses
import json
import os

from past import STEP_S, said, whole

DAY = 86400
HOUR = 3600
# The mean time of a step, with all disturbances.
STEP_OF_JOB_S = 8.65
ROUGH = ("self=8s transfer=400ms sigma=0.01 autocorrelation=0.3 tail=0.001 warm-up=8 checkpoint-every=120 checkpoint=5 undeclared=all comms=on "
         "evaluate-every=1000 evaluation=15 evaluation-declared=no gc-every=100")
BURNS = ("PacelineGoodputBurnsFast", "PacelineGoodputBurns", "PacelineGoodputDrains", "PacelineGoodputBudgetSpent",
         "(twice the budget for 15 min)")
# How long an alert may continue after the end of a fault: a verdict needs steps to clear, a window its own length.
ECHO_S = dict(zip(BURNS, (HOUR, 6 * HOUR, 3 * HOUR, 7 * HOUR, HOUR // 2)))


@dataclasses.dataclass
class Truth:
    """A fault for a limited time: the alert that must report it, others that must fire in time, and others that may
    fire."""
    what: str
    told_by: str
    since: float
    until: float
    owed: tuple = ()
    alerts: tuple = ()

    def echo_s(self, alert):
        return ECHO_S.get(alert, 20 * 60)


# (description, the simulator's argument, duration, the alert, budgets that it must burn, other alerts that may fire)
# A rank that is twice as slow also makes all ranks wait for minutes at the end of an evaluation.
FAULTS = [
    ("a rank 1.25 times as slow: heat", "slow rank={rank} factor=1.25 cause=thermal", 2 * HOUR, "Straggler", (), ("GpuThrottled",)),
    ("a rank 1.1 times as slow: power", "slow rank={rank} factor=1.1 cause=power", 2 * HOUR, "Straggler", (), ("GpuThrottled", "GpuConfig")),
    ("a rank 1.4 times as slow: its loader", "slow rank={rank} factor=1.4 cause=data-loading", 2 * HOUR, "Straggler", (), ("DataLoading",)),
    ("a node 1.2 times as slow", "slow node={node} factor=1.2 cause=none", 2 * HOUR, "StragglerNode", (), ("Straggler",)),
    ("a node's link at a quarter", "link node={node} factor=4", 2 * HOUR, "SlowLink", (), ("CommunicationBound", "NetworkPort", "AllRanksSlow")),
    ("all ranks 1.15 times as slow", "slow rank=all factor=1.15", 2 * HOUR, "AllRanksSlow", (), ("StepRegression",)),
    ("a rank stands still for 25 min", "silent rank={rank}", 25 * 60, "RankSilent", (), ("JobHang",)),
    ("all ranks stand still for 100 min", "silent rank=all", 100 * 60, "JobHang", BURNS[:1], ("RankSilent",)),
    ("a node is not heard for 20 min", "gap node={node}", 20 * 60, "TelemetryBlind", (), ("RankSilent",)),
    ("a rank twice as slow for 11 h", "slow rank={rank} factor=2 cause=clock-stuck", 11 * HOUR, "Straggler", BURNS[1:4],
     ("GpuThrottled", "GpuConfig", "RankSilent")),
]
# The faults that fit into a short check, with shorter durations.
SHORT_S = 32 * HOUR
SHORT_FAULTS = [(what.replace("100 min", "75 min"), text, min(lasts, 75 * 60 if BURNS[0] in owed else 45 * 60), teller, owed, others)
                for what, text, lasts, teller, owed, others in FAULTS if lasts <= 2 * HOUR]


@dataclasses.dataclass
class Job:
    """One job with one page. `at`: unix time of its first scrape."""
    paceline: str
    instance: str
    at: int
    seconds: float
    nodes: int
    seed: int
    faults: list
    blips: list

    def words(self, steps, faults):
        restarts = " ".join(f"restart={at}" for share in (0.08, 0.48, 0.9) if (at := int(self.steps() * share)) < steps)
        words = [self.paceline, "simulate", "--json", "--nodes", str(self.nodes), "--gpus", "2", "--seed", str(self.seed), "--steps", str(steps),
                 "--world", f"{ROUGH} {restarts} restart-takes=600s", "--fault", "spikes rank=1 share=0.002 factor=2",
                 "--fault", "loss share=0.0002"]
        for _, text, since, length, *_ in faults:
            first = int(since / STEP_OF_JOB_S)
            longer = float(text.split("factor=")[1].split()[0]) if text.startswith("slow") else 1
            when = {"silent": f"from={first} for={length}s", "gap": f"from={since}s for={length}s"}.get(
                text.split()[0], f"from={first} until={first + int(length / STEP_OF_JOB_S / longer)}")
            words += ["--fault", f"{text} {when}"]
        for node, since, length in self.blips:
            words += ["--fault", f"gap node={node} from={since}s for={length}s"]
        return words

    def steps(self):
        return int(self.seconds / STEP_OF_JOB_S)

    def play(self):
        """The detector's report, and the start of each fault: the duration of the same job when it ends before that
        step."""
        begins = []
        for number, (_, text, since, *_) in enumerate(self.faults):
            if not text.startswith("gap"):
                since = json.loads(said(self.words(int(since / STEP_OF_JOB_S), self.faults[:number])))["duration_s"]
            begins.append(self.at + since)
        return json.loads(said(self.words(self.steps(), self.faults))), begins

    def truths(self, begins):
        for since, (what, _, _, length, teller, owed, others) in zip(begins, self.faults):
            alerts = tuple(f"Paceline{name}" for name in others) + BURNS
            yield Truth(what, f"Paceline{teller}", since, since + length, owed, alerts)


def plans(paceline, random, begins, seconds, is_short):
    """Consecutive jobs with at most two faults each; the third continues the second on one node less, at the same
    address. In a short check the first one has many hours without faults."""
    count = 5 if is_short else max(3, round(seconds / (5 * DAY)))
    length = seconds / count - 40 * 60
    faults = [fault for fault in (SHORT_FAULTS if is_short else FAULTS) if fault[2] <= 0.23 * length]
    random.shuffle(faults)
    at = begins
    for number in range(count):
        nodes = 3 if number == 2 else 4
        mine = []
        for low, high in ((0.15, 0.3), (0.55, 0.68))[is_short and number == 0:]:
            if not faults:
                break
            what, text, lasts, *rest = faults.pop()
            since = int(length * random.uniform(low, high))
            text = text.format(rank=random.randrange(2, 2 * nodes), node=random.randrange(1, nodes))
            mine.append((what, text, since, lasts, *rest))
        blips = [(random.randrange(nodes), int(random.uniform(HOUR, length)), random.randint(2, 40)) for _ in range(round(3 * length / DAY))]
        blips = [blip for blip in blips if not any(since - 60 < blip[1] < since + lasts + 60 for _, _, since, lasts, *_ in mine)]
        instance = f"job{number - (number == 2)}:9400"
        yield Job(paceline, instance, at, length, nodes, random.randrange(10**6), mine, blips)
        # A planned reboot takes up to half an hour, a resize a minute and a half.
        at = whole(at + length + (90 if number == 1 else random.uniform(600, 2000)))


class Scrapes:
    """Failed scrapes: single ones, a few minutes each day, half an hour each week."""

    def __init__(self, random, begins, seconds):
        self.missing = {begins + number * STEP_S for number in range(int(seconds // STEP_S)) if random.random() < 0.002}
        for every, lasts in ((DAY, 240), (7 * DAY, 1800)):
            for number in range(int(seconds // every)):
                since = whole(begins + every * (number + random.random()))
                self.missing |= set(range(since, whole(since + random.uniform(60, lasts)), STEP_S))

    def of(self, since, until):
        return [at for at in range(whole(since), whole(until), STEP_S) if at not in self.missing]


def held(report):
    """When each (finding, cause, severity) held, in seconds of the job. Silence starts as info, and counts after ten
    steps."""
    p99 = next(part["p99_s"] for part in report["times"]["parts"] if part["part"] == "step")
    for verdict in report["verdicts"]:
        names = verdict["finding"], verdict["cause"], verdict["severity"]
        since, until = verdict["raised_s"], verdict["cleared_s"] or report["duration_s"]
        if verdict["finding"] in ("rank-silent", "job-hang") and verdict["severity"] == "critical":
            sure = max(since, verdict["since_s"] + max(60, 10 * p99))
            yield (*names[:2], "info"), since, min(sure, until)
            since = sure
        if since < until:
            yield names, since, until


def lost(report, cause, second):
    """GPU time lost by the verdicts of a cause until then: spread evenly from their start, visible from when they were
    raised."""
    total = 0
    for verdict in report["verdicts"]:
        if verdict["cause"] == cause and second >= verdict["raised_s"]:
            until = verdict["cleared_s"] or report["duration_s"]
            share = (second - verdict["since_s"]) / max(1e-9, until - verdict["since_s"])
            total += verdict["lost_gpu_hours"] * 3600 * min(1, share)
    return total


def page(job, report, times):
    """The families of the job's page that rules query, as far as the report has them."""
    label = {"instance": job.instance, "job": "paceline"}
    ranks = report["world_size"]
    families = {("paceline_gpu_seconds", "counter"): [(label, [(at, ranks * (at - job.at)) for at in times])]}
    active, holds = [], list(held(report))
    for names in sorted({names for names, *_ in holds}):
        spans = [(job.at + since, job.at + until) for one, since, until in holds if one == names]
        born = min(since for since, _ in spans)
        points = [(at, sum(since <= at < until for since, until in spans)) for at in times if at >= born]
        active.append((label | dict(zip(("finding", "cause", "severity"), names)), points))
    families["paceline_finding_active", "gauge"] = active
    causes = sorted({verdict["cause"] for verdict in report["verdicts"]})
    families["paceline_lost_gpu_seconds", "counter"] = [
        (label | {"cause": cause}, [(at, value) for at in times if (value := lost(report, cause, at - job.at)) or at > times[len(times) // 2]])
        for cause in causes]
    return families


def own(random, job, times, is_last):
    """Series without a detector: drops, refused connections, sidecars' CPU, preflights; and faults of these in the last
    job."""
    label = {"instance": job.instance, "job": "paceline"}
    lasts = times[-1] - job.at
    wrong = {name: (job.at + whole(lasts * share), job.at + whole(lasts * share) + 2 * HOUR) if is_last else (0, 0)
             for name, share in (("drops", 0.1), ("strangers", 0.3), ("cpu", 0.6))}
    scans = [job.at + random.uniform(0, lasts) for _ in range(1 + int(lasts / (3 * DAY)))]
    bursts = [job.at + random.uniform(0, lasts) for _ in range(1 + int(2 * lasts / DAY))]

    def within(at, name):
        since, until = wrong[name]
        return max(0, min(at, until) - since)

    def once(at, moments, lasts_s):
        return sum(max(0, min(1, (at - moment) / lasts_s)) for moment in moments)

    blips = [job.at + since for _, since, _ in job.blips]
    dropped = [(at, 170 * once(at, blips, 1) + 5 * within(at, "drops")) for at in times]
    refused = [(at, 2000 * once(at, scans, 90) + 20 * within(at, "strangers")) for at in times]
    families = {("paceline_transport_dropped", "counter"): [(label | {"reason": "frames_lost"}, dropped)],
                ("paceline_connections_refused", "counter"): [(label | {"reason": "broken"}, refused)],
                ("paceline_sidecar_cpu_seconds", "counter"): [], ("paceline_preflight_busbw_bytes_per_second", "gauge"): []}
    for node in range(job.nodes):
        steady = 0.02 if node == 0 else 0.0035
        cpu = [(at, steady * (at - job.at) + 8 * once(at, bursts, 60) + 0.03 * within(at, "cpu")) for at in times]
        families["paceline_sidecar_cpu_seconds", "counter"].append((label | {"node": f"node{node}"}, cpu))
        measured = 4e11 * random.gauss(1, 0.01) * (0.88 if is_last and node == 1 else 1)
        families["paceline_preflight_busbw_bytes_per_second", "gauge"].append(
            (label | {"node": f"node{node}", "op": "all_reduce", "scope": "node"}, [(at, measured) for at in times]))
    if is_last:
        yield Truth("a node's preflight is 12 % lower", "PacelinePreflightRegression", job.at, times[-1])
        for name, what, alert in (("drops", "5 records a second are dropped", "TelemetryDropped"),
                                  ("strangers", "20 strangers a second", "StrangersKnock"),
                                  ("cpu", "sidecars take 3 % of a core more", "SidecarCostly")):
            yield Truth(what, f"Paceline{alert}", *wrong[name])
    yield families


def live(past, paceline, random, begins, seconds, is_short):
    """Fills the past; returns the faults, and for how long jobs ran."""
    scrapes, truths, ran = Scrapes(random, begins, seconds), [], 0
    jobs = list(plans(paceline, random, begins, seconds, is_short))
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        played = list(pool.map(Job.play, jobs))
    for number, (job, (report, begins_at)) in enumerate(zip(jobs, played)):
        until = job.at + report["duration_s"]
        if number + 1 < len(jobs):
            until = min(until, jobs[number + 1].at - 60)
        times = scrapes.of(job.at + STEP_S, until)
        *wrong, families = own(random, job, times, number + 1 == len(jobs))
        past.add(f"{number}", page(job, report, times) | families)
        truths += [*job.truths(begins_at), *wrong]
        ran += until - job.at
    return truths, ran
