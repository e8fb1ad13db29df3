"""Part 8: the preflight's product and copies beside PyTorch's; the bench of four ranks on one GPU beside PyTorch's all-reduce."""

import json
import socket
import subprocess

from checks import ON_VIRTUAL

RANKS = 4
SIZES, ITERATIONS = (65536, 1048576, 16777216), 10
GEMM_WITHIN, COPY_WITHIN = 0.10, 0.15
# Ranks that take turns on one GPU wait for a turn, not for the network: times scatter.
REDUCE_FACTOR = 2.0
LIMIT_S = 20


def part(run, checks):
    if run.virtual:
        return checks.unseen("A11", "products, copies and the bench", "", ON_VIRTUAL + ": it computes nothing")
    plausible(run, checks)
    return reduced(run, checks)


def plausible(run, checks):
    done = subprocess.run(run.program("gemm.py"), env=run.environment(), stdout=subprocess.PIPE, check=False, timeout=LIMIT_S)
    torch_ = json.loads(done.stdout)
    done = subprocess.run([run.paceline, "preflight", "quick", "--json"], env=run.environment(), stdout=subprocess.PIPE, check=False, timeout=LIMIT_S)
    print(done.stdout.decode()[-4000:], flush=True)
    report = json.loads(done.stdout)
    checks.equal("B", "outcome of a quick preflight", "ok", report["outcome"])
    checks.equal("B", "problems of it", "none", "; ".join("%(phase)s: %(what)s" % one for one in report["problems"]) or "none")
    for metric, theirs in torch_.items():
        ours = [one["value"] for one in report["samples"] if one["metric"] == metric]
        within = GEMM_WITHIN if metric == "gemm" else COPY_WITHIN
        checks.near("B", "%s by the preflight, beside PyTorch's" % metric, theirs, ours[0] if ours else None, within)


def reduced(run, checks):
    ours = [run.paceline, "nccl-bench", "-b", str(SIZES[0]), "-e", str(SIZES[-1]), "-f", "16", "-n", str(ITERATIONS), "--json"]
    library = loaded_nccl(run)
    bench = ranks(run, ours + (["--nccl-lib", library] if library else []))
    theirs = ranks(run, run.program("allreduce.py", ",".join(map(str, SIZES)), ITERATIONS))
    if bench is None or theirs is None:
        return checks.add("A11", "four ranks on one GPU", "both end", "bench %s, PyTorch %s" % (bench, theirs), False)
    theirs = {int(size): time for size, time in theirs.items()}
    wrong = sum(row[way]["nwrong"] or 0 for row in bench["results"] for way in ("in_place", "out_of_place") if row.get(way))
    checks.equal("A11", "wrong elements of the bench, in place and out of place", 0, wrong)
    for row in bench["results"]:
        time, size = row["out_of_place"]["p50"], row["size"]
        if size in theirs:
            name = "all-reduce of %d bytes, out of place, over PyTorch's" % size
            ratio = time / theirs[size]
            checks.add("A11", name, "at most %g" % REDUCE_FACTOR, "%.2f (%.0f µs)" % (ratio, time), ratio <= REDUCE_FACTOR)
    return None


def ranks(run, command):
    """The same command as each of four ranks; what the first one printed last, or nothing if one failed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = []
    for rank in range(RANKS):
        place = {"RANK": str(rank), "WORLD_SIZE": str(RANKS), "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        environment = run.environment(NCCL_HOSTID="hw-%d" % rank, NCCL_DEBUG="WARN", CUDA_VISIBLE_DEVICES="0", **place)
        started.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE))
    try:
        said = [process.communicate(timeout=LIMIT_S)[0].decode() for process in started]
    except subprocess.TimeoutExpired:
        for process in started:
            process.kill()
        return None
    print("\n".join(said)[-4000:], flush=True)
    lines = [line for line in said[0].splitlines() if line.startswith("{")]
    return json.loads(lines[-1]) if lines and not any(process.returncode for process in started) else None


def loaded_nccl(run):
    """The library that PyTorch has: both are to measure the same."""
    asked = "import torch\nfor line in open('/proc/self/maps'):\n    if 'libnccl.so' in line: print(line.split()[-1]); break\n"
    done = subprocess.run([run.python, "-c", asked], env=run.environment(), stdout=subprocess.PIPE, text=True, check=False)
    return done.stdout.strip()
