#!/bin/sh
# HealthCheckProgram of slurm.conf.
/usr/bin/paceline slurm health-check --drain --resume || true
