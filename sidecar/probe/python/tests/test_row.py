"""The contents of a row, and what it omits. No program, no aggregator."""

import base64
import copy
import json
import os
import unittest

from support import HOOK

from paceline import _row

with open(os.path.join(HOOK, "tests", "live.json")) as file:
    RECORDED = json.load(file)


def row(**changed):
    """Return the row of the recorded answer with parts of it replaced. None removes a part."""
    news = {**copy.deepcopy(RECORDED), **changed}
    job = _row.Job()
    job.take({name: part for name, part in news.items() if part is not None})
    return job.row()


def step(number, cells, kind="train", bin=1, who=None, phases=None):
    def packed(text):
        return base64.b64encode(bytes(text)).decode()

    ranks = len(cells) * bin
    return [number, 0, kind, 1.0, 0.1, 0.2, 0.3, phases, ranks, bin, packed(cells), who and packed(who), True]


class Row(unittest.TestCase):
    def test_what_is_not_known_is_left_out(self):
        numbers = row(gpus=None, steps=None).numbers
        gone = [name for name in numbers if name.startswith(("gpu/", "phase/", "step_time", "slowest"))]
        self.assertEqual(gone, [])
        self.assertIn("goodput_ratio", numbers)
        self.assertIsNone(row(report=None))
        report = copy.deepcopy(RECORDED["report"])
        report["cost"]["goodput"] = None
        self.assertNotIn("goodput_ratio", row(report=report).numbers)
        report["coverage"]["ranks_seen"] = 0
        self.assertIsNone(row(report=report))
        unreadable = base64.b64encode(b"\xff" * 20).decode()
        self.assertNotIn("gpu/power_total_w", row(gpus=unreadable).numbers)

    def test_times_are_of_ordinary_steps_since_the_last_row(self):
        job = _row.Job()
        slow = step(7, [128, 128], phases=[0.01, 0.2, 0.03, 0.0, 0.0])
        slow[4:7] = [1.0, 2.0, 3.0]
        checkpoint = step(8, [128, 128], kind="checkpoint")
        checkpoint[6] = 99.0
        job.take({**RECORDED, "steps": [slow, checkpoint]})
        first = job.row()
        self.assertEqual(first.step, 7)
        found = [first.numbers["step_time_%s_s" % name] for name in ("p50", "p99", "max")]
        self.assertEqual(found, [1.0, 2.0, 3.0])
        self.assertEqual((first.numbers["phase/data_s"], first.numbers["phase/compute_s"]), (0.01, 0.2))
        job.take({"v": 1, "epoch": RECORDED["epoch"], "serial": 9})
        second = job.row()
        self.assertNotIn("step_time_p50_s", second.numbers)
        self.assertEqual(second.numbers["goodput_ratio"], first.numbers["goodput_ratio"])
        self.assertEqual(second.step, 7)

    def test_the_slowest_is_slow_in_most_steps_and_not_once(self):
        def slowest(*steps):
            numbers = row(steps=list(steps)).numbers
            return numbers.get("slowest_rank"), round(numbers.get("slowest_rank_slowdown", 0), 2)

        steady = [step(n, [128, 142, 127]) for n in range(5)]
        self.assertEqual(slowest(*steady, step(5, [255, 142, 127])), (1, 1.24))
        # If several ranks share a row, the slowest rank within it is named.
        self.assertEqual(slowest(step(1, [128, 150], bin=16, who=[3, 5])), (21, 1.41))
        self.assertEqual(slowest(step(1, [0, 0])), (None, 0))
        self.assertEqual(slowest(step(1, [200])), (None, 0))
        # A different set of ranks took part in the first step.
        self.assertEqual(slowest(step(1, [200, 128, 128]), step(2, [128, 130])), (1, 1.03))

    def test_no_finding_is_no_health(self):
        report = copy.deepcopy(RECORDED["report"])
        report["verdicts"][0]["raised"] = False
        self.assertEqual(row(report=report).text, "no finding in the observed part of 4 ranks")
        report["coverage"]["ranks_seen"] = 3
        self.assertEqual(row(report=report).text, "no finding, but only 3 of 4 ranks are observed")

    def test_text_from_outside_stays_text(self):
        report = copy.deepcopy(RECORDED["report"])
        verdict = report["verdicts"][0]
        verdict["whom"] = "rank 2 on <!channel> [x](http://e) `rm`\n\x1b[31m" + "@here"
        verdict["action"] = "<script>alert(1)</script>&amp;"
        report["cost"]["by_cause"] = {"a b/../é\n": 1.0}
        found = row(report=report)
        (finding,) = found.findings
        for text in (found.text, finding.title, finding.text, finding.whom):
            self.assertFalse(set(text) & set("<>&`@[]\n\x1b"), text)
        self.assertEqual(found.numbers["lost_gpu_hours_by_cause/a_b______"], 1.0)

    def test_many_findings_are_cut(self):
        report = copy.deepcopy(RECORDED["report"])
        report["verdicts"] = [dict(report["verdicts"][0], id=n) for n in range(120)]
        self.assertEqual(len(row(report=report).text), 4000)

    def test_who_is_alerted(self):
        report = copy.deepcopy(RECORDED["report"])
        for change, alerts in (({}, True), ({"severity": "info"}, False), ({"observe_only": True}, False)):
            report["verdicts"] = [dict(RECORDED["report"]["verdicts"][0], **change)]
            self.assertEqual(row(report=report).findings[0].alerts, alerts)


if __name__ == "__main__":
    unittest.main()
