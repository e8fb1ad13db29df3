#!/bin/sh
# TaskProlog of slurm.conf: runs as the job's user before each task. What it prints goes into the task's environment. Always 0,
# and never for long: another code would end the task.
timeout -k 1 10 /usr/bin/paceline slurm task-prolog
exit 0
