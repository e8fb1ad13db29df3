#!/usr/bin/env bash
# apart.sh NAME COMMAND...: runs a command with a /dev/shm and control groups (v1) of its own, so that jobs of Slurm
# clusters that have the same number can run beside each other. Needs root; they go with the command.
set -euo pipefail
name=paceline-$1-$$; shift
[ "$(id -u)" = 0 ] || { echo "$0: only root can make namespaces" >&2; exit 1; }
groups=()
for controller in freezer memory cpuset; do
  [ ! -d /sys/fs/cgroup/$controller ] || groups+=("/sys/fs/cgroup/$controller")
done
removed() { for group in "${groups[@]}"; do find "$group/$name" -depth -type d -exec rmdir {} + 2>/dev/null || true; done; }
trap removed EXIT
for group in "${groups[@]}"; do
  mkdir "$group/$name"
  # A group without processors or memory takes no process.
  for given in cpuset.cpus cpuset.mems; do
    [ ! -e "$group/$given" ] || cat "$group/$given" >"$group/$name/$given"
  done
done
# The control group's namespace begins where the process is when it is made.
NAME=$name GROUPS_OF_ITS_OWN="${groups[*]}" unshare --mount bash -c '
  for group in $GROUPS_OF_ITS_OWN; do echo $$ >"$group/$NAME/tasks"; done
  exec unshare --cgroup bash -c '\''
    mount -t tmpfs -o mode=1777 none /dev/shm
    for group in $GROUPS_OF_ITS_OWN; do mount --bind "$group/$NAME" "$group"; done
    unset NAME GROUPS_OF_ITS_OWN
    exec "$@"'\'' apart "$@"' apart "$@"
