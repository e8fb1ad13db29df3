"""The pictures in docs/page.md, of simulated jobs at a real aggregator. Look at them; a busy machine makes other ones.

    cargo build --release -p paceline && python3 tests/bench/page/pictures.py [--only page-8,page-512,page-16384,top-64]
"""

import argparse
import pathlib
import re
import subprocess
import sys
import time
import urllib.request

from browser import Browser
from run import ROOT, job

PICTURES = ROOT / "docs/pictures"
TOP = (100, 26)
# Name: ranks, the job's name, its world, faults, dark mode, more arguments, and the step of the screenshot.
JOBS = {
    "page-8": (8, "llama-8", "self=990ms", ["slow rank=5 factor=1.3 from=40 cause=thermal"], False, ["--gpus", "4"], 53),
    "page-512": (512, "gpt-512", "self=300ms", ["slow rank=77 factor=1.3 from=40 cause=thermal"], True, [], 110),
    "page-16384": (16384, "page-16384", "self=900ms racks=16", ["slow rank=4711 factor=1.3 from=30 cause=thermal"], False, [], 110),
    "top-64": (64, "llama-70b", "self=450ms", ["slow rank=13 factor=1.3 from=30 cause=thermal",
                                               "slow rank=40 factor=1.12 from=60"], None, [], 150),
}


def reached(address, step):
    """Waits until the job's page has reached this step."""
    end = time.monotonic() + 600
    while True:
        page = urllib.request.urlopen(f"http://{address}/metrics", timeout=60).read().decode()
        steps = re.search(r"^paceline_steps_total (\d+)", page, re.M)
        if steps and int(steps[1]) >= step:
            return
        assert time.monotonic() < end, f"step {step} is not reached"
        time.sleep(0.5)


def page(name, address, dark):
    with Browser(dark=dark) as browser:
        browser.open(f"http://{address}/")
        browser.until("Number(document.body.dataset.draws) > 2")
        browser.picture(PICTURES / f"{name}.png")


def top(name, address, binary):
    """A terminal screenshot by tmux, on a separate server."""
    width, height = map(str, TOP)
    tmux = ["tmux", "-L", f"paceline-pictures-{name}"]
    subprocess.run([*tmux, "-f", "/dev/null", "new-session", "-d", "-x", width, "-y", height,
                    f"COLORTERM= TERM=screen-256color LANG=C.UTF-8 {binary} top {address}"], check=True)
    try:
        time.sleep(15)
        screen = subprocess.run([*tmux, "capture-pane", "-p", "-e"], check=True, capture_output=True).stdout
    finally:
        subprocess.run([*tmux, "kill-server"], check=False)
    drawn = subprocess.run([sys.executable, ROOT / "tests/bench/top/picture.py", width], input=screen, capture_output=True, check=True)
    (PICTURES / f"{name}.svg").write_bytes(drawn.stdout)


def main():
    args = argparse.ArgumentParser(description=__doc__)
    args.add_argument("--binary", type=pathlib.Path, default=ROOT / "target/release/paceline")
    args.add_argument("--only", default=",".join(JOBS))
    args = args.parse_args()
    for name in args.only.split(","):
        ranks, title, words, faults, dark, more, step = JOBS[name]
        with job(args.binary, ranks, words, faults, 10 * step, 2 if ranks <= 512 else 10, title, more) as (address, _):
            reached(address, step)
            if dark is None:
                top(name, address, args.binary.resolve())
            else:
                page(name, address, dark)
        print(name, flush=True)


if __name__ == "__main__":
    main()
