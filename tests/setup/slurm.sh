#!/usr/bin/env bash
# slurm.sh up|down DIRECTORY: a Slurm cluster of its own on this machine, for tests: a controller and NODES (4) nodes n1, n2, ...,
# each with an address and a host name of its own, joined by a bridge. `. DIRECTORY/env` then sets SLURM_CONF, and
# IN_CLUSTER, the words to put before sinfo, srun and sbatch.
#
#   NODES=4  CPUS=4 (of a node, whatever the machine has)  PROCTRACK=linuxproc|cgroup  SLURM_EXTRA="more lines of slurm.conf"
#   SCHED="more words of SchedulerParameters"  CGROUP="more lines of cgroup.conf", with PROCTRACK=cgroup
#
# Key, socket, spool, logs and slurm.conf are all in DIRECTORY; every port is in network namespaces; `down` ends what runs and
# removes it all. Needs root, iproute2 and Debian's slurmctld, slurmd, slurm-client and munge (their services are not used).
# E: what fails in a function is cleared up as well.
set -Eeuo pipefail
PATH=$PATH:/usr/sbin:/sbin
usage() { echo "usage: $0 up|down DIRECTORY" >&2; exit 64; }
[ $# -eq 2 ] || usage
verb=$1; mkdir -p "$2"; home=$(realpath "$2")
nodes=${NODES:-4}; cpus=${CPUS:-4}
# Interfaces have short names: a piece of the directory's checksum keeps two clusters apart.
pre=sl$(printf %s "$home" | cksum | cut -d' ' -f1 | tail -c 5)
network=10.88.0; controller=$network.254

pid_of() { # pid_of FILE: of a process that runs and is no zombie
  # Not $(<FILE): when the file goes away in between, bash ends the whole script.
  local pid=; { read -r pid < "$1" || true; } 2>/dev/null; [ -n "$pid" ] && [ -e "/proc/$pid/stat" ] && ! grep -q ') Z ' "/proc/$pid/stat" && echo "$pid"
}

stop() { # stop FILE: ends the process whose number it holds
  local pid; pid=$(pid_of "$1") || return 0
  kill -TERM "$pid" 2>/dev/null || return 0
  for _ in $(seq 50); do pid_of "$1" >/dev/null || return 0; sleep 0.1; done
  kill -KILL "$pid" 2>/dev/null || true
}

down() {
  if [ -f "$home/env" ]; then
    . "$home/env"
    timeout 10 $IN_CLUSTER scancel --user=root 2>/dev/null || true
    for _ in $(seq 20); do [ -z "$(timeout 5 $IN_CLUSTER squeue -h -t R,CG 2>/dev/null)" ] && break; sleep 0.2; done
  fi
  for file in "$home"/run/slurmd-*.pid "$home/run/slurmctld.pid" "$home/run/munged.pid"; do stop "$file"; done
  for space in $(ip netns list | awk '{print $1}' | grep -E "^$pre(br|[0-9]+)\$" || true); do
    # What a job has left behind.
    for pid in $(ip netns pids "$space"); do kill -KILL "$pid" 2>/dev/null || true; done
    ip netns del "$space"
  done
  for group in /sys/fs/cgroup/{freezer,memory,cpuset}/slurm_n*; do
    [ ! -d "$group" ] || find "$group" -depth -type d -exec rmdir {} + 2>/dev/null || true
  done
  rm -rf "$home"
}

spaces() { # one for the controller and the bridge, one for each node
  ip netns add "${pre}br"
  ip -n "${pre}br" link add br0 type bridge
  ip -n "${pre}br" addr add $controller/24 dev br0
  ip -n "${pre}br" link set lo up; ip -n "${pre}br" link set br0 up
  { echo "127.0.0.1 localhost"; for i in $(seq "$nodes"); do echo "$network.$i n$i"; done; echo "$controller $(hostname -s)"; } > "$home/hosts"
  for i in $(seq "$nodes"); do
    ip netns add "$pre$i"
    ip link add "v$pre$i" netns "${pre}br" type veth peer name eth0 netns "$pre$i"
    ip -n "${pre}br" link set "v$pre$i" master br0 up
    ip -n "$pre$i" addr add "$network.$i/24" dev eth0
    ip -n "$pre$i" link set lo up; ip -n "$pre$i" link set eth0 up
  done
}

conf() {
  cat <<CONF
ClusterName=paceline-test
SlurmctldHost=$(hostname -s)($controller)
SlurmctldPort=6817
AuthType=auth/munge
AuthInfo=socket=$home/munge/sock
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation=$home/state
SlurmdSpoolDir=$home/spool/%n
SlurmctldPidFile=$home/run/slurmctld.pid
SlurmdPidFile=$home/run/slurmd-%n.pid
SlurmctldLogFile=$home/log/slurmctld.log
SlurmdLogFile=$home/log/slurmd-%n.log
ProctrackType=proctrack/${PROCTRACK:-linuxproc}
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=5${SCHED:+,$SCHED}
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
InactiveLimit=0
KillWait=5
MinJobAge=300
SlurmctldTimeout=30
SlurmdTimeout=20
JobRequeue=1
${SLURM_EXTRA:-}
NodeName=n[1-$nodes] NodeAddr=$network.[1-$nodes] NodeHostname=n[1-$nodes] Port=6818 CPUs=$cpus Boards=1 Sockets=1 CoresPerSocket=$cpus ThreadsPerCore=1 RealMemory=1000 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
CONF
}

up() {
  for tool in munged slurmctld slurmd sinfo; do
    command -v $tool >/dev/null || { echo "$0: $tool is missing: apt-get install slurmctld slurmd slurm-client munge" >&2; exit 1; }
  done
  [ "$(id -u)" = 0 ] || { echo "$0: only root can make network namespaces" >&2; exit 1; }
  [ ! -e "$home/env" ] || { echo "$0: there is a cluster in $home already" >&2; exit 1; }
  trap 'code=$?; echo "$0: Slurm did not come up" >&2; tail -n 5 "$home"/log/*.log >&2 2>/dev/null; down; exit $code' ERR
  mkdir -p "$home"/{munge,state,spool,log,run}
  # munged refuses a directory that others may write to.
  chmod 755 "$home" "$home"/{munge,spool,log,run}; chmod 700 "$home/state"
  (umask 077; head -c 128 /dev/urandom > "$home/munge/key")
  munged --key-file="$home/munge/key" --socket="$home/munge/sock" --pid-file="$home/run/munged.pid" \
    --log-file="$home/log/munged.log" --seed-file="$home/munge/seed" --num-threads=2
  spaces
  conf > "$home/slurm.conf"
  [ "${PROCTRACK:-}" != cgroup ] || printf 'CgroupPlugin=cgroup/v1\nCgroupAutomount=no\nCgroupMountpoint=/sys/fs/cgroup\n%s\n' "${CGROUP:-}" > "$home/cgroup.conf"
  # Not `ip netns exec`: its fresh /sys would hide control groups.
  local inside="nsenter --net=/run/netns/${pre}br"
  printf 'export SLURM_CONF=%q\nexport IN_CLUSTER=%q\n' "$home/slurm.conf" "$inside" > "$home/env"
  . "$home/env"
  $IN_CLUSTER slurmctld -i
  for i in $(seq "$nodes"); do
    mkdir -p "$home/spool/n$i"
    nsenter --net="/run/netns/$pre$i" unshare --uts --mount sh -c \
      'hostname "$1"; mount --bind "$2" /etc/hosts; exec slurmd -N "$1"' sh "n$i" "$home/hosts"
  done
  local ready=0
  for _ in $(seq 120); do
    ready=$(timeout 5 $IN_CLUSTER sinfo -h -N -o %T 2>/dev/null | grep -c '^idle$' || true)
    [ "$ready" -lt "$nodes" ] || { echo "$nodes nodes; . $home/env"; return; }
    sleep 0.25
  done
  false
}

case $verb in up) up ;; down) down ;; *) usage ;; esac
