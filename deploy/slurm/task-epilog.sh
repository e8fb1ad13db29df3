#!/bin/sh
# TaskEpilog of slurm.conf: runs as the job's user after each task. The last of a node waits for the report, ten seconds at most.
timeout -k 1 15 /usr/bin/paceline slurm task-epilog
exit 0
