#!/bin/sh
# Prolog of slurm.conf. Slurm drains a node on any code but 0: only 2 says that it has to be, and a paceline that is missing or
# cannot tell is no reason.
/usr/bin/paceline slurm prolog --drain
[ $? -ne 2 ]
