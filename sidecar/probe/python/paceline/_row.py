"""Builds the row for trackers from the aggregator's data: numbers about the whole job, and its findings as text.
Unknown values are left out, never written as zero. Times are in seconds, ratios from 0 to 1.
"""

import array
import base64
import collections
import math

# Fields of a step on the live page (sidecar/src/sink/page/heat.rs).
_STEP, _RESTART, _KIND, _AT, _P50, _P99, _MAX, _PHASES, _RANKS, _BIN, _CELLS, _WHO, _ = range(13)
_PARTS = ("data", "compute", "wait", "optimizer", "checkpoint")
_COMPARED = 16  # steps over which ranks are compared, because a single step may be an outlier
_KEPT = 1024  # steps that are kept between two rows
_MOST_TEXT = 4000  # characters; MLflow takes 5000 in a tag
# Fields of a GPU (sidecar/src/sink/page/fleet.rs): ten numbers of 16 bits.
_FIELDS, _UNKNOWN = 10, 0xFFFF
_TEMPERATURE, _, _CLOCK, _, _POWER, _, _BUSY, _, _, _MATTERS = range(_FIELDS)
_AT_POWER_CAP = 2  # normal for a busy GPU, not a problem

# `text`: all active findings, one per line, or what was observed if there are none.
Row = collections.namedtuple("Row", "step numbers findings text")
Finding = collections.namedtuple("Finding", "key kind severity whom title text alerts")


class Job:
    """The data received so far."""

    def __init__(self):
        self._report = None
        self._gpus = None
        self._fresh = collections.deque(maxlen=_KEPT)  # steps since the last row
        self._last = collections.deque(maxlen=_COMPARED)  # ordinary steps
        self._epoch = None

    def take(self, news):
        """Apply an update."""
        if news["epoch"] != self._epoch:  # another aggregator, which sends all data of the previous one
            self._epoch = news["epoch"]
            self._last.clear()
        self._report = news.get("report", self._report)
        self._gpus = news.get("gpus", self._gpus)
        steps = [step for step in news.get("steps", ()) if step[_KIND] == "train"]
        self._fresh.extend(steps)
        self._last.extend(steps[-_COMPARED:])

    def row(self):
        """Return the current row, or None before anything is known."""
        report = self._report
        if report is None or not report["coverage"]["ranks_seen"]:
            return None
        numbers = {}
        _add_account(numbers, report)
        _add_times(numbers, self._fresh)
        _add_slowest(numbers, self._last)
        _add_gpus(numbers, self._gpus)
        self._fresh.clear()
        step = self._last[-1][_STEP] if self._last else report["steps"]
        known = {name: float(number) for name, number in numbers.items() if number is not None}
        findings = [_finding(verdict) for verdict in report["verdicts"] if verdict["raised"]]
        text = "\n".join(finding.text for finding in findings) or _calm(report["coverage"])
        return Row(step, known, findings, text[:_MOST_TEXT])


def _add_account(numbers, report):
    """Add totals, and how much of the job was observed."""
    cost, coverage = report["cost"], report["coverage"]
    numbers["goodput_ratio"] = cost["goodput"]
    numbers["gpu_hours"] = cost["gpu_hours"]
    numbers["lost_gpu_hours"] = cost["lost_gpu_hours"]
    numbers["lost_cost"] = cost["lost_cost"]
    numbers["what_if_step_s"] = cost["what_if_step_s"]
    for cause, hours in cost["by_cause"].items():
        numbers["lost_gpu_hours_by_cause/" + _word(cause)] = hours
    numbers["findings"] = report["raised"]
    numbers["ranks_seen"] = coverage["ranks_seen"]
    numbers["ranks_expected"] = coverage["ranks_expected"]
    numbers["steps_seen_ratio"] = coverage["steps_ratio"]


def _add_times(numbers, steps):
    """Add the times of the ordinary steps since the last row: the median of each step's percentiles over ranks, and the
    longest."""
    if not steps:
        return
    numbers["step_time_p50_s"] = _middle([step[_P50] for step in steps])
    numbers["step_time_p99_s"] = _middle([step[_P99] for step in steps])
    numbers["step_time_max_s"] = max(step[_MAX] for step in steps)
    phases = [step[_PHASES] for step in steps if step[_PHASES]]
    for name, seconds in zip(_PARTS, zip(*phases)):
        numbers["phase/%s_s" % name] = sum(seconds) / len(seconds)
    numbers["restarts"] = steps[-1][_RESTART]


def _add_slowest(numbers, steps):
    """Add the rank that was most often the slowest in the last steps, and its self-time relative to its peers."""
    if not steps:
        return
    alike = steps[-1][_RESTART], steps[-1][_RANKS], steps[-1][_BIN]
    worst = collections.defaultdict(list)
    for step in steps:
        if (step[_RESTART], step[_RANKS], step[_BIN]) != alike or step[_RANKS] < 2:
            continue
        cells = base64.b64decode(step[_CELLS])
        cell = max(cells)
        if cell:  # otherwise there is no data of any rank
            row = cells.index(cell)
            within = base64.b64decode(step[_WHO])[row] if step[_WHO] else 0
            worst[row * step[_BIN] + within].append(math.exp((cell - 128) / 64))
    if worst:
        rank, ratios = max(worst.items(), key=lambda item: len(item[1]))
        numbers["slowest_rank"] = rank
        numbers["slowest_rank_slowdown"] = _middle(ratios)


def _add_gpus(numbers, packed):
    """Add values over all GPUs."""
    if not packed:
        return
    fields = array.array("H", base64.b64decode(packed))

    def known(field):
        values = fields[field::_FIELDS]
        return values if _UNKNOWN not in values else [value for value in values if value != _UNKNOWN]

    temperatures, clocks, power, busy = (known(field) for field in (_TEMPERATURE, _CLOCK, _POWER, _BUSY))
    if temperatures:
        numbers["gpu/temperature_max_c"] = max(temperatures)
        numbers["gpu/temperature_mean_c"] = sum(temperatures) / len(temperatures)
    if clocks:
        numbers["gpu/sm_clock_min_mhz"] = min(clocks)
    if power:
        numbers["gpu/power_mean_w"] = sum(power) / len(power)
        numbers["gpu/power_total_w"] = sum(power)
    if busy:
        numbers["gpu/utilization_mean_ratio"] = sum(busy) / len(busy) / 1000
    if fields:
        matters = collections.Counter(fields[_MATTERS::_FIELDS])
        numbers["gpu/troubled"] = sum(count for bits, count in matters.items() if bits & ~_AT_POWER_CAP)


def _finding(verdict):
    whom, kind = plain(verdict["whom"]), plain(verdict["finding"])
    text = ["%s: %s." % (whom, plain(verdict["title"]))]
    if verdict["slowdown"] is not None:
        text.append("It takes %.2f times as long as its peers." % verdict["slowdown"])
    if verdict["since_step"] is not None:
        text.append("Since step %d." % verdict["since_step"])
    if verdict["cause"] != "unknown":
        text.append("Cause: %s." % plain(verdict["cause"]))
    if verdict["lost_gpu_hours"] > 0:
        text.append("Lost so far: %.3g GPU-hours (rank-hours without GPUs)." % verdict["lost_gpu_hours"])
    if verdict["action"]:
        text.append("Now: %s" % plain(verdict["action"]))
    if verdict["provenance"] != "live":
        text.append("It is based on data that is not live (%s)." % verdict["provenance"])
    alerts = verdict["severity"] != "info" and not verdict["observe_only"]
    key = verdict["id"], kind, whom
    return Finding(key, kind, verdict["severity"], whom, "paceline: %s, %s" % (kind, whom), " ".join(text), alerts)


def _calm(coverage):
    seen, expected = coverage["ranks_seen"], coverage["ranks_expected"]
    if seen < expected:
        return "no finding, but only %d of %d ranks are observed" % (seen, expected)
    return "no finding in the observed part of %d ranks" % seen


def plain(text):
    """Return external text in a form that is safe wherever it may be displayed. Characters that begin markup or a
    mention are replaced by similar ones."""
    text = str(text)
    if not text.isprintable():
        text = "".join(filter(str.isprintable, text))
    return text.translate(_LOOK_ALIKE)


_LOOK_ALIKE = str.maketrans("<>&`@[]", "\u2039\u203a\uff06\u02cb\uff20()")


def _word(text):
    """Return the text as part of a metric name, in which trackers accept letters, digits, _ and -."""
    return "".join(letter if letter.isascii() and (letter.isalnum() or letter in "_-") else "_" for letter in text)[:60]


def _middle(values):
    return sorted(values)[len(values) // 2]
