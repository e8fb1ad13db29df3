"""Half an hour of a large job with everything that goes wrong in one: memory, descriptors, and whether anything that was
acknowledged is missing.

    cargo build --release -p paceline
    python3 tests/bench/scale/soak.py [--ranks 4096] [--minutes 30] [--seed 1]

A real `paceline sidecar` runs the aggregator, `paceline simulate --connect` simulates all other sidecars in several
processes. Randomly, from a seed: the aggregator is killed (SIGKILL) and restarted, a process of sidecars is killed and
restarted, either is stopped (SIGSTOP) for seconds, and if the system supports it (`ss -K`, root) connections are
closed. Every sidecar records its acknowledged frames; the journal is read as it grows. Exits with 1 if an acknowledged
frame is not in the journal, or if memory, descriptors or threads grow. Standard library only; Linux.
"""

import argparse
import glob
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import run  # noqa: E402

LINE = re.compile(rb'"node":"((?:[^"\\]|\\.)*)","agent":(\d+),"seq":(\d+)')
# Allowed memory growth from the second quarter to the last, in addition to a tenth.
SLACK_MIB = 24
KINDS = ["kill aggregator", "kill sidecars", "pause aggregator", "pause sidecars", "cut connections"]


class Numbers:
    """A set of seen numbers: the end of the contiguous range, and the few beyond."""

    def __init__(self):
        self.upto, self.beyond = 0, set()

    def add(self, number):
        if number == self.upto + 1:
            self.upto = number
            while self.upto + 1 in self.beyond:
                self.upto += 1
                self.beyond.remove(self.upto)
        elif number > self.upto:
            self.beyond.add(number)


class Journal:
    """Reads the journal as it grows, across its files: an aggregator can start new ones and thin old ones."""

    def __init__(self, folder):
        self.folder, self.at, self.seen, self.lines, self.thinned = folder, {}, {}, 0, set()

    def read(self):
        for path in glob.glob(self.folder + "/journal*.ndjson"):
            try:
                with open(path, "rb") as file:
                    # Files are renamed and get new inodes, but the first line of a segment is unique. What is left of a
                    # thinned segment was read before.
                    key = file.readline()
                    file.seek(self.at.get(key, 0))
                    for line in file:
                        # An incomplete line may be truncated later.
                        if not line.endswith(b"\n"):
                            break
                        self.at[key] = self.at.get(key, 0) + len(line)
                        self.take(line)
            except FileNotFoundError:
                continue

    def take(self, line):
        if b'"thinned":' in line:
            self.thinned.add(line)
        found = LINE.search(line)
        if found:
            self.lines += 1
            numbers = self.seen.setdefault((found[1], int(found[2])), Numbers())
            numbers.add(int(found[3]))


class Process:
    def __init__(self, pid):
        self.pid = pid

    def field(self, name):
        with open(f"/proc/{self.pid}/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith(name + ":"))

    def sample(self):
        return self.field("VmRSS") / 1024, len(os.listdir(f"/proc/{self.pid}/fd")), self.field("Threads")


class Soak:
    def __init__(self, args, folder):
        self.args, self.folder = args, folder
        self.chance = random.Random(args.seed)
        self.aggregator = run.fresh(args.program, folder, "--journal-bytes", args.journal_bytes)
        self.journal = Journal(folder + "/run")
        self.number = 0
        self.players = [self.play(part) for part in range(args.processes)]
        self.done = {}
        self.samples = []

    def play(self, part):
        args = self.args
        self.number += 1
        command = [args.program, "simulate", "--connect", f"127.0.0.1:{self.aggregator.port}", "--job", "scale", "--json"]
        command += ["--key-file", self.folder + "/key", "--ranks", str(args.ranks), "--gpus", "8"]
        # A restarted process starts its training again, and all end a little before the time limit.
        command += ["--steps", str(max(10, int(self.left() - 20)))]
        command += ["--part", f"{part}/{args.processes}", "--acked", f"{self.folder}/acked-{self.number}"]
        command += ["--fault", f"slow rank={8 * part + 3} factor=1.3 from=40 until=80"]
        return subprocess.Popen(command, stdout=open(f"{self.folder}/report-{self.number}", "wb"))

    def left(self):
        return getattr(self, "until", time.monotonic() + self.args.minutes * 60) - time.monotonic()

    def fault(self):
        kind = self.chance.choice(KINDS)
        part = self.chance.randrange(len(self.players))
        pause = self.chance.uniform(0.5, 8)
        if kind == "kill aggregator":
            self.aggregator.kill()
            time.sleep(self.chance.uniform(0, 2))
            self.aggregator.start()
        elif kind == "kill sidecars":
            self.players[part].kill()
            self.players[part].wait()
            time.sleep(self.chance.uniform(0, 2))
            self.players[part] = self.play(part)
        elif kind == "cut connections":
            port = self.aggregator.port
            cut = subprocess.run(["ss", "-K", "-tn", "dport", "=", f":{port}"], capture_output=True)
            if cut.returncode or b"ESTAB" not in cut.stdout:
                kind = "cut connections: this system cannot"
        else:
            process = self.aggregator.process if kind == "pause aggregator" else self.players[part]
            process.send_signal(signal.SIGSTOP)
            time.sleep(pause)
            process.send_signal(signal.SIGCONT)
        self.done[kind] = self.done.get(kind, 0) + 1
        return f"{kind} for {pause:.1f} s" if kind.startswith("pause") else kind

    def acked(self):
        """The highest number acknowledged to each incarnation."""
        highest = {}
        for path in glob.glob(self.folder + "/acked-*"):
            with open(path, "rb") as file:
                for line in file:
                    parts = line.split()
                    if len(parts) == 3 and line.endswith(b"\n"):
                        key = (parts[0], int(parts[1]))
                        highest[key] = max(highest.get(key, 0), int(parts[2]))
        return highest

    def run(self):
        began = time.monotonic()
        self.until = began + self.args.minutes * 60
        print("| minute | memory of aggregator | descriptors | threads | of a process of sidecars | frames in the journal | what was done |")
        print("|--:|--:|--:|--:|--:|--:|---|", flush=True)
        told, notes, next_fault = began, [], began + 30
        while self.left() > 0:
            time.sleep(1)
            self.journal.read()
            now = time.monotonic()
            if now >= next_fault and self.left() > 60:
                notes.append(self.fault())
                next_fault = now + self.chance.uniform(15, 45)
            if now >= told + self.args.every:
                told = now
                mine = Process(self.aggregator.process.pid).sample()
                alive = [player for player in self.players if player.poll() is None]
                theirs = Process(alive[0].pid).sample() if alive else (0, 0, 0)
                self.samples.append(((now - began) / 60, mine, theirs))
                print(f"| {(now - began) / 60:.1f} | {mine[0]:.0f} MiB | {mine[1]} | {mine[2]} | {theirs[0]:.0f} MiB "
                      f"| {self.journal.lines:,} | {', '.join(notes) or '-'} |", flush=True)
                notes = []
        for player in self.players:
            player.send_signal(signal.SIGTERM)
            try:
                player.wait(timeout=30)
            except subprocess.TimeoutExpired:
                player.kill()
                player.wait()
        self.aggregator.stop()
        self.journal.read()
        return self.judge()

    def judge(self):
        acked = self.acked()
        frames = sum(acked.values())
        none = Numbers()
        lost = 0
        for key, upto in acked.items():
            seen = self.journal.seen.get(key, none)
            if seen.upto < upto:
                lost += upto - seen.upto - sum(1 for number in seen.beyond if number <= upto)
        quarter = len(self.samples) // 4
        bad = []

        def grows(name, values, slack):
            before, after = sorted(values[quarter:2 * quarter]), sorted(values[-quarter:])
            if quarter and after[len(after) // 2] > before[len(before) // 2] * 1.1 + slack:
                bad.append(f"{name}: {before[len(before) // 2]:.0f}, then {after[len(after) // 2]:.0f}")

        if lost:
            bad.append(f"{lost} frames were acknowledged and are not in the journal")
        if not frames:
            bad.append("nothing was acknowledged")
        for at, name in enumerate(["memory", "descriptors", "threads"]):
            slack = (SLACK_MIB, 64, 2)[at]
            grows(f"{name} of the aggregator", [mine[at] for _, mine, _ in self.samples], slack)
            grows(f"{name} of the sidecars", [theirs[at] for _, _, theirs in self.samples], slack)
        print(f"\n{len(acked):,} incarnations of sidecars; {frames:,} frames acknowledged, {lost} of them not in the journal "
              f"of {self.journal.lines:,}, of which {len(self.journal.thinned)} say that it was thinned; done: {self.done}; seed {self.args.seed}")
        print("failed: " + "; ".join(bad) if bad else "memory, descriptors and threads flat, nothing lost", flush=True)
        return 1 if bad else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=4096)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--journal-bytes", default="8GiB", help="what the journal may take: with less it is thinned")
    parser.add_argument("--every", type=float, default=30, help="seconds between two lines")
    parser.add_argument("--program", default=os.path.join(run.ROOT, "target/release/paceline"))
    parser.add_argument("--dir", help="where run directories are made [default: that of temporary files]")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.dir) as folder:
        soak = Soak(args, folder)
        try:
            code = soak.run()
        finally:
            for process in [soak.aggregator.process, *soak.players]:
                if process.poll() is None:
                    process.kill()
                    process.wait()
    sys.exit(code)


if __name__ == "__main__":
    main()
