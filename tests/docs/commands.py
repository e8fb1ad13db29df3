#!/usr/bin/env python3
"""Runs every command in README and docs: `commands.py PACELINE TORCH-VENV [PAGE...]`; `commands.py --list` shows how
each is tested.

Commands in blocks of `sh` or `console` run as they are, except for user-specific parts (SAID), in a directory with the
files that they need and, for srun, on a Slurm cluster of four nodes (which needs root). Commands with further
requirements (an API server, a release's artifacts) run in another test, listed in ELSEWHERE; for those that repeat a
measurement (MEASURED) or need hardware (TAKES), only the files are checked. A command that matches none of these fails.
"""

import glob
import os
import re
import secrets
import shlex
import signal
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BLOCK = re.compile(r"^```(?:sh|console)\n(.*?)^```", re.S | re.M)

# Replaces user-specific parts by values for this machine, and smaller ones.
SAID = [
    (r"torchrun --nnodes 4 --nproc-per-node 8 --no-python", "torchrun --standalone --nproc-per-node 2 --no-python"),
    (r"nccl-bench -b 8M -e 1G", "nccl-bench --transport tcp -b 1M -e 4M"),
    (r"node001:29600 --transport tcp", "n1:29600 --transport tcp -e 1M"),
    (r"(paceline nccl-bench .*) --rank 0 --peers 10\.0\.0\.1:7000,10\.0\.0\.2:7000",
     r"peers=127.0.0.1:7000,127.0.0.1:7001; \1 --rank 0 --peers $peers -e 1M & first=$!; \1 --rank 1 --peers $peers -e 1M && wait $first"),
    (r"(paceline run -- torchrun --nnodes 2) --node-rank 0 --master-addr node-0 train\.py",
     r"also='--master-addr 127.0.0.1 --master-port 29517 train.py'; \1 --node-rank 0 $also & first=$!; \1 --node-rank 1 $also && wait $first"),
    (r"mpirun -n 16", "mpirun -n 4"),
    (r"srun -N5", "srun -N4"),
    (r"(srun .*)--nproc-per-node 8", r"\1--nproc-per-node 1"),
    (r"-- srun \./train\.sh", "-- ./train.sh"),
    (r"^paceline preflight --nodes", "srun --ntasks-per-node=1 paceline preflight --nodes"),
    (r"-- (torchrun )?\.\.\.( train\.py)?$", "-- torchrun --standalone --nproc-per-node=2 train.py"),
    (r"^(paceline evaluate)(?!.*--(seeds|suite list))", r"\1 --seeds 1"),
    (r"--ranks 16384 --steps 70", "--ranks 64 --steps 8"),
    (r"/tmp/scale", "scale"),
    (r"/etc/slurm", "etc/slurm"),
    (r"^paceline top( [^-]\S*)?$", r"(sleep 3; printf q) | script -qec '\g<0>' /dev/null"),
]
# Exit codes other than 0: the preflight's opinion of a busy machine does not matter here.
CODES = [(r"paceline preflight --sim", {2}), (r".*paceline preflight", {0, 2}), (r"paceline gpus", {0, 3})]
# Commands that need a running job, or Slurm.
LIVE = r"paceline (top|config set|config reload)\b"
SLURM = r"\bsrun\b|\bscontrol\b"
# Commands run by another test, which contains the text after "::".
ELSEWHERE = [
    (r"^cargo run --release -- demo|^cargo install --path launcher", "tests/package/run::cargo install --path launcher"),
    (r"^(tests/run|cargo test --workspace)\b", ".ci/run::tests/run"),
    (r"^deploy/wheel/build", "tests/package/run::deploy/wheel/build"),
    (r"^pip install --no-index --find-links", "tests/package/run::--no-index --find-links target/wheels paceline"),
    (r"^pip install paceline-", "tests/package/run::--force-reinstall \"$wheel\""),
    (r"^deploy/package/build", "tests/package/run::deploy/package/build"),
    (r"^apt install", "tests/package/run::apt install --yes /packages/old.deb"),
    (r"^deploy/package/twice", "tests/package/run::deploy/package/twice"),
    (r"^deepspeed", "tests/tests/system/tasks.rs::ranks_of_deepspeed_are_one_job_with_one_sidecar"),
    (r"^paceline profiler", "tests/tests/nccl/job.rs::switched_while_it_trains"),
    (r"^paceline (sidecar --relay|run --aggregator n1)", "sidecar/tests/process/relay.rs::--relay"),
    (r"^helm install", "tests/kube/helm_cluster.py::install"),
    (r"\bkubectl (apply|create|get|describe|annotate|label|-n)", "tests/kube/kubectl.py::documented"),
    (r"PACELINE_SCHEDULE=", "sidecar/tests/schedules/main.rs::PACELINE_SCHEDULE"),
    (r"^cargo test .*-p paceline-sidecar --test schedules", "tests/run::schedules"),
    (r"^(tests/setup/venv\.sh|VENV/bin/python tests/trackers)", "tests/run::tests/trackers/real.py"),
    (r"^tests/setup/torch_cuda\.sh", "tests/run::tests/setup/torch_cuda.sh"),
    (r"^tests/virtual-gpu/run\.py", "tests/run::virtual_gpu run.py"),
    (r"^HOME/torch-cuda/bin/python tests/virtual-gpu/programs/hook_cost\.py", "tests/run::tests/virtual-gpu/programs/hook_cost.py"),
    (r"^python3 tests/nccl-wheels/run\.py", "tests/run::tests/nccl-wheels/run.py"),
    (r"^cargo build --release .*-p paceline-nccl-profiler", "deploy/wheel/build::-p paceline-nccl-profiler"),
    (r"^tests/hardware/(carry|run .*--virtual)", "tests/run::tests/hardware/carry"),
]
# Commands that repeat a measurement, or are separate tests.
MEASURED = r"tests/bench/|tests/overhead\.py|python3 tests/prometheus/|^cargo bench|^tests/package/run|^\.ci/run"
TAKES = [
    (r"^tests/hardware/run (?!.*--virtual)|nccl-bench -g 8", "GPUs"),
    (r"^kubectl logs", "a kubelet"),
]


# A trainer for any launcher.
TRAIN = """import os, runpy, sys
for name, others in {{"RANK": "SLURM_PROCID OMPI_COMM_WORLD_RANK", "WORLD_SIZE": "SLURM_NTASKS OMPI_COMM_WORLD_SIZE"}}.items():
    os.environ.setdefault(name, next((os.environ[other] for other in others.split() if other in os.environ), "0"))
os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
os.environ.setdefault("MASTER_PORT", "29516")
sys.path.insert(0, {trainers!r})
sys.argv[1:] = ["--steps", "40", "--sleep-ms", "20"]
runpy.run_path({trainers!r} + "/ddp.py", run_name="__main__")
"""
ENDLESS = """import time
import torch
layer = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(layer.parameters(), 0.1)
while True:
    layer(torch.ones(4)).backward()
    optimizer.step()
    time.sleep(0.05)
"""
ENVIRONMENT = {
    "TERM": "xterm", "OMP_NUM_THREADS": "1", "PACELINE_REQUEUE_COMMAND": "true",
    "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1",
}


def pages():
    found = ["README.md", "CONTRIBUTING.md", *sorted(glob.glob("docs/**/*.md", recursive=True, root_dir=ROOT))]
    return [page for page in found if page not in ("docs/commands.md", "docs/settings.md")]


def commands(text):
    """The commands of each block, parsed like in a shell: continued lines and loops are one command."""
    for block in BLOCK.findall(text):
        prompted, whole = "\n$ " in f"\n{block}", ""
        for line in block.splitlines():
            if prompted and not whole:
                if not line.startswith("$ "):
                    continue  # output
                line = line.removeprefix("$ ")
            whole += line + "\n"
            is_open = line.endswith("\\") or subprocess.run(["bash", "-n", "-c", whole], capture_output=True).returncode
            if not is_open:
                command = re.sub(r"\s+#\s.*", "", whole, flags=re.M).strip()
                if command and not command.startswith("#"):
                    yield command
                whole = ""
        assert not whole, f"is no command: {whole}"


def fate(command):
    """Why it does not run here; None if it does."""
    if re.search(MEASURED, command):
        for path in re.findall(r"\btests/[\w/.]+\.(?:py|sh)\b", command):
            assert any(os.path.exists(os.path.join(ROOT, room, path)) for room in ("", "sidecar/probe/python")), path
        return "measures"
    for pattern, what in TAKES:
        if re.search(pattern, command):
            return f"takes {what}"
    for pattern, test in ELSEWHERE:
        if re.search(pattern, command):
            path, _, word = test.partition("::")
            with open(os.path.join(ROOT, path), encoding="utf-8") as file:
                assert word in file.read(), f"{command}: no {test}"
            return f"typed by {path}"
    assert re.search(rf"\bpaceline\b|{SLURM}|^install ", command), f"nobody types: {command}"
    return None


class Slurm:
    """A cluster of four nodes, started by the first command that needs it."""

    def __init__(self, folder):
        self.home, self.is_up = os.path.join(folder, "slurm"), False

    def wrapped(self, command):
        """The command as a batch script on all nodes; a command for the controller only runs beside it."""
        script = os.path.join(ROOT, "tests", "setup", "slurm.sh")
        if not self.is_up:
            subprocess.run([script, "up", self.home], check=True, stdout=subprocess.DEVNULL)
            self.is_up = True
        quoted = shlex.quote(f"export head=n1 MASTER_ADDR=n1; {command}")
        batch = f"$IN_CLUSTER sbatch --quiet --wait -N4 --output=%j.log --wrap {quoted} || {{ code=$?; tail -n 50 *.log >&2; exit $code; }}"
        return f". {self.home}/env; " + (batch if "srun" in command else f"$IN_CLUSTER bash -ec {shlex.quote(command)}")

    def end(self):
        if self.is_up:
            subprocess.run([os.path.join(ROOT, "tests", "setup", "slurm.sh"), "down", self.home], check=True)


class Place:
    """A directory with the files used by one page's commands."""

    def __init__(self, paceline, venv, folder):
        self.folder, self.job, self.sessions = folder, None, []
        os.mkdir(self.path("bin"))
        os.symlink(paceline, self.path("bin/paceline"))
        self.environment = {**ENVIRONMENT, "PATH": f"{self.path('bin')}:{venv}/bin:{os.environ['PATH']}", "HOME": folder}
        os.symlink(os.path.join(ROOT, "deploy"), self.path("deploy"))
        self.write("train.py", TRAIN.format(trainers=os.path.join(ROOT, "tests", "trainers")))
        prints = "for step in $(seq 30); do echo \"{line}\"; sleep 0.05; done\n"
        for name, line in [("train.sh", "iteration $step/30 | elapsed time per iteration (ms): 50.0 |"), ("train", "S$step 0.05s")]:
            self.write(name, "#!/bin/sh\n" + prints.replace("{line}", line))
        self.write("start", "#!/bin/sh\nexec >train.log\n" + prints.replace("{line}", "step: $step loss: 1.0"))
        self.write("run.py", "import sys, time\nfor step in range(31):\n    print(f'\\r{step}/30 [00:01<00:01, 20.0it/s]', end='', file=sys.stderr)\n    time.sleep(0.05)\n")
        self.write("KEY", secrets.token_hex(32), 0o600)
        with open(os.path.join(ROOT, "deploy/examples/job.yaml"), encoding="utf-8") as job:
            self.write("job.yaml", job.read())
        for run in ("RUN", "OLD", "NEW", "DIR/one"):
            os.makedirs(self.path(run))
            self.sh(f"paceline simulate --steps 150 --fault 'slow rank=3 factor=1.2 from=60' --journal {run}/journal.ndjson")
        os.symlink("RUN/journal.ndjson", self.path("JOURNAL"))

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, text, mode=0o755):
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(self.path(name), mode)

    def sh(self, command, codes=(0,)):
        # Not a pipe: background processes would keep it open.
        with open(self.path("said"), "w+", encoding="utf-8", errors="replace") as told:
            words = ["bash", "-o", "pipefail", "-c", command]
            process = subprocess.Popen(words, cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL, stdout=told,
                                       stderr=subprocess.STDOUT, start_new_session=True)
            self.sessions.append(process.pid)
            ended = process.wait(180)
            told.seek(0)
            assert ended in codes, f"{command}\nexit {ended}\n{told.read()[-4000:]}"

    def live(self):
        """Starts a job that runs until the end of the page."""
        if self.job is None:
            words = ["paceline", "run", "-q", "--job", "4711.0", "--http", "127.0.0.1:9810", "--", "python", "-c", ENDLESS]
            self.job = subprocess.Popen(words, cwd=self.folder, env={**self.environment, "RANK": "0", "WORLD_SIZE": "1"},
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            journal = self.path("paceline-4711.0/journal.ndjson")
            for _ in range(300):
                if os.path.exists(journal):
                    with open(journal, encoding="utf-8") as file:
                        if '{"step":{' in file.read():
                            return
                time.sleep(0.1)
            raise AssertionError("no job is under way")

    def end(self):
        if self.job is not None:
            self.job.send_signal(signal.SIGTERM)
            self.job.wait(60)
        for session in self.sessions:
            try:
                os.killpg(session, signal.SIGTERM)
            except ProcessLookupError:
                pass


def said(command):
    """The command with user-specific parts replaced."""
    for pattern, instead in SAID:
        command = re.sub(pattern, instead, command)
    return command


def typed(page, paceline, venv):
    with open(os.path.join(ROOT, page), encoding="utf-8") as file:
        mine = [command for command in commands(file.read()) if fate(command) is None]
    if not mine:
        return 0
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        place, slurm = Place(paceline, venv, folder), Slurm(folder)
        try:
            for command in mine:
                began = time.monotonic()
                if re.match(LIVE, command):
                    place.live()
                words = said(command)
                codes = next((codes for pattern, codes in CODES if re.match(pattern, command)), {0})
                place.sh(slurm.wrapped(words) if re.search(SLURM, words) else words, codes)
                print(f"{page}: {' '.join(command.split())}: {time.monotonic() - began:.1f} s", flush=True)
        finally:
            place.end()
            slurm.end()
    return len(mine)


def main(words):
    if words == ["--list"]:
        for page in pages():
            with open(os.path.join(ROOT, page), encoding="utf-8") as file:
                for command in commands(file.read()):
                    print(f"{page}: {' '.join(command.split())}: {fate(command) or 'typed here'}")
        return
    paceline, venv, *wanted = words
    count = sum(typed(page, os.path.abspath(paceline), os.path.abspath(venv)) for page in wanted or pages())
    print(f"{count} commands were typed")


main(sys.argv[1:])
