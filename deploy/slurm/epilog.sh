#!/bin/sh
# Epilog of slurm.conf. Always 0: another code would drain the node, whatever was found.
/usr/bin/paceline slurm epilog --drain || true
