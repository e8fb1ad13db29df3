"""Simulates a trainer for the sidecar: ten steps per second until the file STOP exists. Records the number of steps.

    trainer.py STOP TOLD RANK:WORLD:RESTART...    a process for each rank
"""

import os
import sys
import time


def train(stop, told, rank, world, restart):
    os.environ.update(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=world, TORCHELASTIC_RESTART_COUNT=restart)
    import paceline

    paceline.step()  # The first step attaches the hook.
    step = 0
    while not os.path.exists(stop):
        time.sleep(0.1)
        step += 1
        paceline.step(step)
        with open(f"{told}.{rank}.{restart}.new", "w") as file:
            file.write(str(step))
        os.rename(file.name, file.name[:-4])


def main():
    stop, told, *ranks = sys.argv[1:]
    first, *others = [rank.split(":") for rank in ranks]
    children = []
    for other in others:
        child = os.fork()
        if child == 0:
            train(stop, told, *other)
            return
        children.append(child)
    train(stop, told, *first)
    for child in children:
        os.waitpid(child, 0)


main()
