"""Jobs that a part starts under Paceline and looks at while they run."""

import re
import subprocess
import time

LOOK_EVERY = 0.2


class Job:
    """A job under Paceline, or by itself; its output goes to a file."""

    def __init__(self, command, environment, output):
        self.output = output
        print("$", " ".join(command), flush=True)
        with open(output, "wb") as file:
            self.process = subprocess.Popen(command, env=environment, stdout=file, stderr=subprocess.STDOUT)

    def until(self, is_so, seconds):
        """What `is_so()` gives when it first gives something; None when the job or the time ends before that."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            has_ended = self.process.poll() is not None
            found = is_so()
            if found:
                return found
            if has_ended:
                return None
            time.sleep(LOOK_EVERY)
        return None

    def end(self):
        """Its exit code; and what it printed, into the log."""
        code = self.process.wait()
        print(self.said()[-20000:], flush=True)
        print("$ ended with", code, flush=True)
        return code

    def said(self):
        """Without the virtual GPU's words about its stubs."""
        text = self.output.read_text(errors="replace")
        return "".join(line for line in text.splitlines(True) if "stub called" not in line)


def run(command, environment, output):
    """What it printed, and its exit code."""
    job = Job(command, environment, output)
    code = job.end()
    return job.said(), code


def plugin_interface(said):
    """The version by which NCCL says that it loaded our plugin, or nothing: `PROFILER/Plugin: Loaded Paceline (v5)`."""
    found = re.search(r"(?i)profiler[^\n]*Paceline[^\n]*\bv(\d+)\b", said)
    return "v" + found.group(1) if found else None


def expected_interface(nccl):
    """By NCCL's headers."""
    version = tuple(int(part) for part in nccl.split(".")[:2])
    if version < (2, 27):
        return None
    return "v4" if version < (2, 28) else "v5" if version < (2, 29) else "v6" if version < (2, 31) else "v7"
