"""More parts: jobs that hang in NCCL, each in its own way (../hangs), and what PyTorch's flight recorder left of those it ended."""

import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
HANGS_AT_A_TIME = 3


def live(run, checks):
    """While the job hangs: kind, seconds, cause, stacks, right or what is wrong."""
    for kind, at, cause, says, end in table(run, "run.py", "--backend", "nccl"):
        checks.add("hang", "%s: explained after %s, cause %s" % (kind, at, cause), "right", "%s: %s" % (end, says), end == "right")


def dumps(run, checks):
    """After PyTorch's watchdog ended it."""
    for kind, backend, says, end in table(run, "dumps.py", *([] if run.virtual else ["--backends", "nccl-legacy"])):
        checks.add("hang", "%s, %s: by `paceline why` at the end" % (kind, backend), "right", "%s: %s" % (end, says), end == "right")


def table(run, program, *words):
    """The rows of the table that a program prints."""
    python = run.virtual / "torch-cuda" if run.virtual else subprocess.check_output([run.python, "-c", "import sys; print(sys.prefix)"], text=True).strip()
    command = [sys.executable, str(HERE.parent / "hangs" / program), "--torch", str(python), "--paceline", run.paceline]
    command += ["--jobs", str(HANGS_AT_A_TIME), "--keep", str(run.folder(program)), *words]
    command += [] if run.virtual else ["--shared-gpu"]
    rows = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as done:
        for line in done.stdout:
            print(line, end="", flush=True)
            columns = [column.strip() for column in line.strip().strip("|").split(" | ")]
            if line.startswith("| ") and columns[0] != "hang":
                rows += 1
                yield columns
    if not rows:
        raise SystemExit("%s: no row, exit code %d" % (program, done.returncode))
