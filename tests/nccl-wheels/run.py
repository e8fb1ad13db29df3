#!/usr/bin/env python3
"""Real libnccl of PyPI's wheels against the plugin and nccl-bench, without a GPU.

    HOME/torch/bin/python tests/nccl-wheels/run.py --home HOME --plugin libpaceline_nccl.so [--all]

Tests the newest version of tests/setup/nccl_wheels.txt, or --all. NCCL's own code loads the plugin (probe.py), in a
separate process for each version and case. Prints a row for each version; exits with 1 if something is not as expected
(expect.py), or differs from docs/measurements/nccl-plugin.md. --fetch only downloads.
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile

import expect
import fetch

HERE = os.path.dirname(os.path.abspath(__file__))
FUNCTIONS_OF_BENCH = os.path.join(HERE, "..", "..", "nccl-bench", "src", "transport", "nccl", "api.rs")
PAGE = os.path.join(HERE, "..", "..", "docs", "measurements", "nccl-plugin.md")
ROW = "%-8s %-9s %-6s %-9s %-8s %-9s %-7s %-12s %s"
HEAD = ("NCCL", "asks for", "given", "at first", "AFTER=0", "SAMPLE=1", "silent", "nccl-bench", "")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--home", required=True, help="what is downloaded stays under HOME/nccl-wheels")
    parser.add_argument("--plugin", help="libpaceline_nccl.so, as it is shipped")
    parser.add_argument("--all", action="store_true", help="every version, not the newest alone")
    parser.add_argument("--fetch", action="store_true", help="only download")
    arguments = parser.parse_args()
    pins = list(fetch.pins().items())
    libraries = {}
    for version, pin in pins if arguments.all else pins[-1:]:
        try:
            libraries[version] = fetch.fetch(os.path.abspath(arguments.home), version, pin)
        except fetch.FetchError as error:
            sys.exit(f"nccl-wheels: {error}")
    if not arguments.fetch:
        if not arguments.plugin or not os.path.exists(arguments.plugin):
            sys.exit("nccl-wheels: --plugin: no such file\n  hint: cargo build --release -p paceline-nccl-profiler")
        sys.exit(1 if run(libraries, os.path.realpath(arguments.plugin)) else 0)


def run(libraries, plugin):
    """Prints and returns the problems."""
    functions = functions_of_bench()
    print(ROW % HEAD)
    problems = []
    for version, library in libraries.items():
        row, wrong = check(version, library, plugin, functions)
        print(ROW % row, flush=True)
        problems += wrong
    if not problems:
        newest = list(libraries)[-1]
        problems = controls(newest, libraries[newest], plugin, functions)
    for problem in problems:
        print(problem, file=sys.stderr)
    return problems


def check(version, library, plugin, functions):
    """The version's row, and its problems."""
    seen = {case.name: probe(library, plugin, functions, case) for case in expect.CASES}
    in_cases = {}
    for name, one in seen.items():
        for problem in expect.problems(version, one):
            in_cases.setdefault(problem, []).append(name)
    where = {problem: "in every case" if len(names) == len(seen) else ", ".join(names) for problem, names in in_cases.items()}
    wrong = [f"NCCL {version}: {problem} ({where[problem]})" for problem in in_cases]
    first = seen[expect.CASES[0].name].facts
    masks = ["%#x" % one.facts["mask"] if one.facts.get("used") else "-" for one in seen.values()]
    is_silent = all(one.facts.get("used") and one.facts["mask"] == 0 for one in seen.values() if one.case.is_silent)
    resolved = f"{len(functions) - len(first.get('missing', functions))} of {len(functions)}"
    interfaces = ["v%d" % max(first[what]) if first.get(what) else "none" for what in ("known", "used")]
    documented = f"| {version} | {interfaces[1]} | {' | '.join(masks[:3])} |"
    if not wrong and documented not in read(PAGE):
        wrong = [f"NCCL {version}: {os.path.relpath(PAGE)} lacks the row {documented}"]
    row = (version, *interfaces, *masks[:3], "yes" if is_silent else "NO", resolved, "FAILED" if wrong else "ok")
    return row, wrong


def probe(library, plugin, functions, case):
    """The results of one process of one case."""
    with tempfile.TemporaryDirectory() as folder:
        rings, log = os.path.join(folder, "rings"), os.path.join(folder, "nccl.log")
        os.mkdir(rings)
        environment = {name: value for name, value in os.environ.items() if not re.match("NCCL_|PACELINE_|SLURM_|OMPI_|PMI", name)}
        environment |= {"NCCL_PROFILER_PLUGIN": plugin, "NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": log, "NCCL_CONF_FILE": os.devnull}
        environment |= {"TMPDIR": folder, "HOME": folder, "PYTHONDONTWRITEBYTECODE": "1", **expect.RANK, **case.environment(rings)}
        command = [sys.executable, os.path.join(HERE, "probe.py"), library, plugin, *functions]
        try:
            ended = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=60)
        except subprocess.TimeoutExpired:
            return expect.Seen(case, f"the process did not end within a minute; {last(read(log))}")
        if ended.returncode:
            code = ended.returncode
            how = f"signal {signal.Signals(-code).name}" if code < 0 else f"code {code}: {last(ended.stderr)}"
            return expect.Seen(case, f"the process ended by {how}; {last(read(log))}")
        facts = json.loads(ended.stdout)
        # Files of NCCL itself: its log and, on a machine with a GPU, the driver.
        facts["open"] = [path for path in facts["open"] if not path.endswith(log) and "/dev/nvidia" not in path]
        files = [os.path.relpath(os.path.join(at, name), folder) for at, _, names in os.walk(folder) for name in names]
        left = {name: read_bytes(os.path.join(folder, name)) for name in files if name != "nccl.log"}
        return expect.Seen(case, None, facts, read(log), left)


def controls(version, library, plugin, functions):
    """Negative controls: a plugin without the symbol that NCCL looks up, a function that NCCL lacks, and one case
    checked as another must be reported."""
    newest = max(expect.INTERFACES.values())
    case, silent = expect.CASES[0], expect.CASES[-1]
    with tempfile.TemporaryDirectory() as folder:
        lacking = os.path.join(os.path.realpath(folder), "libpaceline_nccl.so")
        shutil.copy(plugin, lacking)
        with open(lacking, "r+b") as file:
            data = file.read()
            file.seek(0)
            file.write(data.replace(b"ncclProfiler_v%d\0" % newest, b"ncclProfiler_vX\0"))
        seen = probe(library, lacking, [*functions, "ncclNoSuchFunction"], case)
    found = " ".join(expect.problems(version, seen))
    seen.case = silent
    found_silent = " ".join(expect.problems(version, seen))
    wanted = [(f"asks for v{newest} first, and the plugin gave v{newest - 1}", found), ("ncclNoSuchFunction", found)]
    wanted += [("0x0 was expected", found_silent), ("files left behind", found_silent)]
    return [f"NCCL {version}: a problem that was put in was not found: {text}" for text, found in wanted if text not in found]


def functions_of_bench():
    """From the source code, so that no list has to be maintained."""
    with open(FUNCTIONS_OF_BENCH) as file:
        found = re.findall(r'"(nccl[A-Z]\w+)": fn\(', file.read())
    if not {"ncclGetVersion", "ncclCommInitRankConfig", "ncclAllReduce", "ncclGroupEnd"} <= set(found):
        sys.exit(f"nccl-wheels: {os.path.relpath(FUNCTIONS_OF_BENCH)}: its tables of functions are not understood any more")
    return sorted(found)


def last(text):
    """The last line, without NCCL's process id and time."""
    lines = [line for line in text.splitlines() if line.strip()] or ["it said nothing"]
    return re.sub(r"^.*?(?=NCCL (INFO|WARN|ATTN))", "", lines[-1])


def read(path):
    return read_bytes(path).decode(errors="replace")


def read_bytes(path):
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


if __name__ == "__main__":
    main()
