"""What a part of the program finds: a line of JSON for each thing that was compared, at once, so that a part that is cut off
keeps what it had."""

import json

ON_VIRTUAL = "virtual GPU"
NOTED = "noted"


class Checks:
    """Of one part, in a file."""

    def __init__(self, path):
        self.path = path

    def add(self, fact, name, expected, measured, ok, why=None, known=False):
        """`ok` is None where it is not known, and `why` then says so. `known`: that it is wrong is in docs/measurements/gpu-jobs.md."""
        check = {"fact": fact, "name": name, "expected": str(expected), "measured": str(measured), "ok": ok, "why": why}
        check["known"] = known and ok is False
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(check) + "\n")
        print("# %s: %s; expected %s: %s" % (name, measured, expected, word(check)), flush=True)

    def equal(self, fact, name, expected, measured, known=False):
        self.add(fact, name, expected, measured, expected == measured, known=known)

    def near(self, fact, name, expected, measured, within, unit=""):
        """Within this share of what is expected."""
        ok = measured is not None and abs(measured - expected) <= within * abs(expected)
        wanted = "%.4g%s ± %g %%" % (expected, unit, within * 100)
        self.add(fact, name, wanted, "nothing" if measured is None else "%.4g%s" % (measured, unit), ok)

    def at_most(self, fact, name, most, measured, unit=""):
        ok = measured is not None and measured <= most
        self.add(fact, name, "at most %g%s" % (most, unit), "nothing" if measured is None else "%.4g%s" % (measured, unit), ok)

    def at_least(self, fact, name, least, measured, unit=""):
        ok = measured is not None and measured >= least
        self.add(fact, name, "at least %g%s" % (least, unit), "nothing" if measured is None else "%.4g%s" % (measured, unit), ok)

    def note(self, fact, name, measured):
        """For the record: nothing is expected."""
        self.add(fact, name, "", measured, None, NOTED)

    def unseen(self, fact, name, expected, why):
        self.add(fact, name, expected, "", None, why)


def word(check):
    if check["ok"] is None:
        return NOTED if check["why"] == NOTED else "not seen"
    return "right" if check["ok"] else "**wrong**, known" if check["known"] else "**wrong**"


def read(path):
    """All whole lines."""
    try:
        with open(path, encoding="utf-8") as file:
            return [json.loads(line) for line in file if line.endswith("\n")]
    except FileNotFoundError:
        return []


def table(device, parts):
    """The table of docs/measurements/hardware-check.md."""
    lines = ["On %s, driver %s, torch %s, NCCL %s, %s:" % tuple(device[key] for key in ("gpu", "driver", "torch", "nccl", "on")), ""]
    lines += ["| part | fact | what | expected | measured | |", "|---|---|---|---|---|---|"]
    for part in parts:
        name = "%d %s" % (part["number"], part["name"])
        for check in part["checks"]:
            why = check["why"] if check["ok"] is None and check["why"] != NOTED else None
            measured = "; ".join(filter(None, [check["measured"], why]))
            columns = [name, check["fact"], check["name"], check["expected"], measured, word(check)]
            lines.append("| %s |" % " | ".join(column.replace("|", "/").replace("\n", " ") for column in columns))
        if part["state"] != "done":
            lines.append("| %s | | | | %s after %.0f s | **wrong** |" % (name, part["state"], part["seconds"]))
    return "\n".join(lines)


def is_wrong(parts):
    """Whether something is that is not known to be."""
    return any(part["state"] != "done" or any(one["ok"] is False and not one["known"] for one in part["checks"]) for part in parts)
