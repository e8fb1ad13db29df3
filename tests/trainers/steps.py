"""A training loop of sleeps, without PyTorch: it declares its steps by `paceline.step()`, waits for the others where they
would, and writes down which signals it got.

srun -n 4 python steps.py --steps 100 --sleep-ms 20 --slow-rank 2 --slow-pct 25 --say said
"""

import argparse
import os
import signal
import socket
import sys
import time

import paceline

RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")


def options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--sleep-ms", type=float, default=20)
    parser.add_argument("--slow-rank", type=int, default=-1)
    parser.add_argument("--slow-pct", type=float, default=25)
    parser.add_argument("--say", required=True, help="a file for each rank: this and its number")
    parser.add_argument("--until-term", action="store_true", help="train on until SIGTERM, and end in order then")
    parser.add_argument("--stubborn", action="store_true", help="train on after every signal")
    parser.add_argument("--save", action="store_true", help="mark a checkpoint after SIGUSR1")
    parser.add_argument("--fail-rank", type=int, default=-1)
    parser.add_argument("--exit-code", type=int, default=3)
    parser.add_argument("--eat-mb", type=int, default=0, help="memory that --fail-rank takes instead of ending")
    return parser.parse_args()


def main():
    opt = options()
    rank = next(int(os.environ[name]) for name in RANKS if name in os.environ)
    said = open(f"{opt.say}{rank}", "a", buffering=1)
    asked = []

    def note(number, _frame):
        said.write(f"got {signal.Signals(number).name}\n")
        asked.append(number)

    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, note)
    said.write(f"rank {rank} on {socket.gethostname()} below {os.getppid()}\n")
    whole = opt.sleep_ms / 1e3 * (1 + opt.slow_pct / 100)
    own = whole if rank == opt.slow_rank else opt.sleep_ms / 1e3
    step = 0
    while step < opt.steps or opt.until_term or opt.stubborn:
        step += 1
        time.sleep(own)
        with paceline.phase("wait"):
            time.sleep(max(whole - own, 0))
        if opt.save and signal.SIGUSR1 in asked:
            asked.remove(signal.SIGUSR1)
            paceline.mark("checkpoint")
        paceline.step()
        if signal.SIGTERM in asked and not opt.stubborn:
            break
        if rank == opt.fail_rank and step == opt.steps:
            kept = bytearray(opt.eat_mb << 20)
            said.write(f"took {len(kept) >> 20} MB\n")
            sys.exit(opt.exit_code)
    said.write(f"ends after {step} steps\n")


if __name__ == "__main__":
    main()
