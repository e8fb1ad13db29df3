"""Parts 7 and 10: a rank that is stopped, and one that is killed. Who is named, and what stands in the report."""

import contextlib
import os
import signal
import socket
import time

import journal
from checks import ON_VIRTUAL
from jobs import Job

RANK = 1
SUSPECT_S, CONFIRMED_S = 8, 16  # instead of 15 and 60; stacks come after 5 s
RAS_S = 30  # Paceline asks after 8 s; the service waits twice for a process that does not answer, 8 s each time
STOPPED_AT, KILLED_AT = 25, 12  # steps
RAS = ("127.0.0.1", 28028)  # NCCL's default
SILENT = ("rank-silent", "job-hang")


def started(run, name, ranks, seconds, *flags):
    out, run_dir = run.folder(name), run.scratch / (name + "-run")
    train = run.torchrun(ranks, "train.py", "ddp", "--out", out, "--seconds", seconds, "--work-ms", 50)
    return Job(run.watched(run_dir, train, *flags), run.environment(), run.scratch / (name + ".said")), run_dir


def at_step(job, run_dir, step, seconds, checks, fact):
    """The process of RANK, when the job has come so far; None where it does not: then the job is ended and that is a row."""
    pid = job.until(lambda: journal.last_step(run_dir) >= step and journal.pid(run_dir, RANK), seconds)
    if not pid:
        job.process.terminate()
        job.end()
        checks.add(fact, "a job that trains", "step %d" % step, "it did not come so far", False)
    return pid


def hang(run, checks):
    patience = 4 if run.virtual else 1
    flags = ["--set", "silence.suspect_min_s=%d" % SUSPECT_S, "--set", "silence.confirmed_min_s=%d" % CONFIRMED_S]
    flags += ["--set", "silence.unknown_p99_s=1"]
    job, run_dir = started(run, "hang", 4, 12, *flags)
    pid = at_step(job, run_dir, STOPPED_AT, 25 * patience, checks, "B")
    if not pid:
        return
    os.kill(pid, signal.SIGSTOP)
    stopped = time.monotonic()
    named = lambda: [one for one in journal.verdicts(run_dir) if one["finding"] in SILENT]  # noqa: E731
    found = job.until(named, (SUSPECT_S + 10) * patience)
    took = time.monotonic() - stopped
    answer = ras()
    asked = lambda: [one for one in journal.events(run_dir, "ras") if one["still"]]  # noqa: E731
    heard = [] if run.virtual else job.until(asked, RAS_S) or []
    name = "NCCL's RAS service answers beside a stopped rank"
    if run.virtual:
        checks.unseen("B", name, "an answer", ON_VIRTUAL)
    else:
        checks.add("B", name, "an answer", answer or "none", bool(answer))
    with contextlib.suppress(ProcessLookupError):  # the job may have ended meanwhile
        os.kill(pid, signal.SIGCONT)
    code = job.end()
    who = ", ".join("%s of %s" % (one["finding"], one["subject"].get("rank", one["subject"]["kind"])) for one in found or [])
    checks.equal("B", "who is named when rank %d is stopped" % RANK, "rank-silent of %d" % RANK, who or "no rank")
    checks.at_most("B", "named after", (SUSPECT_S + 3) * (2 if run.virtual else 1), took if found else None, " s")
    behind = sorted({rank["rank"] for one in heard for rank in one["ranks"]})
    name = "ranks of which Paceline heard by RAS"
    if run.virtual:
        checks.unseen("B", name, [RANK], ON_VIRTUAL)
    else:
        checks.equal("B", name, str([RANK]), str(behind))
    checks.equal("B", "the job goes on when the rank does: exit code", 0, code)
    last = journal.report(run_dir)["verdicts"]
    states = ", ".join(sorted({one["state"] for one in last if one["finding"] in SILENT})) or "nothing"
    checks.equal("B", "the finding is over then", "cleared", states)


def ras():
    """The first line of its answer to STATUS, or nothing."""
    try:
        with socket.create_connection(RAS, timeout=3) as connection:
            connection.settimeout(8)  # it waits five seconds for ranks that do not answer
            connection.sendall(b"timeout 5\nstatus\n")
            text = b""
            while len(text) < 200 and (more := connection.recv(4096)):
                text += more
    except OSError:
        return None
    return " ".join(text.decode(errors="replace").split())[:120]


def killed(run, checks):
    job, run_dir = started(run, "end", 2, 60)
    pid = at_step(job, run_dir, KILLED_AT, 60 if run.virtual else 15, checks, "ends")
    if not pid:
        return
    os.kill(pid, signal.SIGKILL)
    since = time.monotonic()
    found = job.until(lambda: [one for one in journal.verdicts(run_dir) if one["finding"] == "rank-died"], 10)
    took = time.monotonic() - since
    code = job.end()
    who = ", ".join("rank %s" % one["subject"].get("rank") for one in found or []) or "no rank"
    checks.equal("ends", "who has died when rank %d is killed" % RANK, "rank %d" % RANK, who)
    checks.at_most("ends", "reported after", 6 if run.virtual else 2, took if found else None, " s")
    checks.add("ends", "the job's exit code", "not 0", code, code != 0)
    end = journal.report(run_dir)["end"] or {}
    checks.equal("ends", "why it ended, in the report", "killed, rank %d" % RANK, "%s, rank %s" % (end.get("reason"), end.get("rank")))
