"""Shared code of the training scripts beside this file. None of them depends on Paceline.

They are real programs under torchrun, on CPU with gloo. A sleep simulates compute: real matrix products of several
ranks on few cores are too noisy to resolve 10 %.
"""

import argparse
import gc
import os
import signal
import sys
import time

import torch.distributed as distributed


def arguments(description, steps=100):
    """The options of every script; a script adds its own and calls parse_args."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--steps", type=int, default=steps, help="optimizer steps")
    parser.add_argument("--sleep-ms", type=float, default=0, help="compute of one micro-batch")
    parser.add_argument("--spin-ms", type=float, default=0, help="CPU time within it, of one rank after the other")
    parser.add_argument("--held-rank", type=int, default=-1, help="this rank gets less CPU")
    parser.add_argument("--held-on", type=int, default=-1, help="since it may use this CPU only")
    parser.add_argument("--held-in", default="", help="since it joins a control group, by this file of it")
    parser.add_argument("--slow-rank", type=int, default=-1, help="this rank computes longer")
    parser.add_argument("--slow-pct", type=float, default=10, help="by this much")
    parser.add_argument("--slow-from", type=int, default=0, help="from this step on")
    return parser


def add_faults(parser):
    """Faults at a step on a rank; the first step is 0."""
    parser.add_argument("--fault-rank", type=int, default=0, help="the rank that a fault strikes")
    parser.add_argument("--hang-at", type=int, default=-1, help="stop computing at this step, for ever")
    parser.add_argument("--fail-at", type=int, default=-1, help="end at this step by --exit-code or --die-signal")
    parser.add_argument("--exit-code", type=int, default=3)
    parser.add_argument("--die-signal", default="", help="as KILL or SEGV, instead of an exit code")
    parser.add_argument("--timeout-s", type=float, default=1800, help="how long a collective waits")


class Compute:
    """Simulates forward and backward of one rank, with the speed from the options."""

    def __init__(self, options, rank):
        self._options = options
        self._rank = rank
        if rank == options.held_rank and options.held_on >= 0:
            os.sched_setaffinity(0, {options.held_on})
        if rank == options.held_rank and options.held_in:
            with open(options.held_in, "w") as group:
                group.write(str(os.getpid()))

    def run(self, step):
        """The compute of one micro-batch."""
        options = self._options
        slow = self._rank == options.slow_rank and step >= options.slow_from
        seconds = options.sleep_ms / 1e3 * (1 + options.slow_pct / 100 if slow else 1)
        if not options.spin_ms:
            return time.sleep(seconds)
        # Ranks that use the CPU at the same time would wait for each other.
        before = seconds * self._rank / int(os.environ["WORLD_SIZE"])
        time.sleep(before)
        until = time.thread_time() + options.spin_ms / 1e3
        while time.thread_time() < until:
            pass
        time.sleep(seconds - before)

    def fault(self, step):
        """Triggers this rank's fault at this step, if any."""
        options = self._options
        if self._rank != options.fault_rank:
            return
        if step == options.hang_at:
            while True:
                time.sleep(3600)
        if step == options.fail_at:
            sys.stdout.flush()
            if options.die_signal:
                os.kill(os.getpid(), getattr(signal, "SIG" + options.die_signal))
                signal.pause()
            os._exit(options.exit_code)


class StepTimes:
    """Durations between calls of `lap`; the first few are left out of the median."""

    def __init__(self):
        self._last = None
        self._laps = []

    def lap(self):
        """Marks the end of a step."""
        now = time.perf_counter()
        if self._last is not None:
            self._laps.append(now - self._last)
        self._last = now

    def report(self, rank):
        """Prints one line with the script's own measurements."""
        laps = sorted(self._laps[5:]) or [0.0]
        print("rank %d median step %.3f ms over %d steps" % (rank, laps[len(laps) // 2] * 1e3, len(laps)), flush=True)


def run(main):
    """Runs `main`, which sets up a process group, and destroys the group after all of its objects are gone.

    Otherwise, PyTorch 2.15 with gloo on Python 3.11 aborts in about half of all exits ("terminate called without an
    active exception"): a thread of gloo with objects left to free requests the GIL of a finalized interpreter.
    """
    main()
    gc.collect()
    if distributed.is_initialized():
        distributed.barrier()
        distributed.destroy_process_group()
