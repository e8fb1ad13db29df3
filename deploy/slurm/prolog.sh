#!/bin/sh
# Prolog of slurm.conf. Its code is what Slurm acts on: 1 only where the node was drained.
exec /usr/bin/paceline slurm prolog --drain
