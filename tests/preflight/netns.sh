#!/usr/bin/env bash
# Real preflights among nodes that are network namespaces on one machine, one of them with a fault.
#
#   tests/preflight/netns.sh NODES REPEATS [FAULT...]     faults: clean half delay loss cpu way; all of them by default
#
# Every link is shaped alike (RATE, 20mbit: what a busy machine of two cores carries sixteen times); half: one node's to half
# of it. delay: 5 ms each way. loss: 1 % each way. cpu: one node may use half of what each other may. way: only what passes
# between two nodes that are a pair is lossy, 5 %. Needs root, iproute2, nftables, ethtool and, for delay, python3.
# PACELINE: the binary. Prints a line for each run and a table; exits 1 when a fault was not named, or a clean run accused
# anybody.
set -euo pipefail
cd "$(dirname "$0")/../.."
nodes=${1:?NODES}; repeats=${2:?REPEATS}; shift 2
faults=("$@"); [ ${#faults[@]} -gt 0 ] || faults=(clean half delay loss way cpu)
paceline=$(realpath "${PACELINE:-target/release/paceline}")
pre=${PRE:-pf$$}; net=10.$((RANDOM % 100 + 100)).0; bridge=${pre}b; rate=${RATE:-20mbit}; half=${HALF:-10mbit}
work=$(mktemp -d); relay=
# Control groups of the first version have a tree for each resource, of the second one tree for all.
groups=; version=
if [ -d /sys/fs/cgroup/cpu ]; then groups=/sys/fs/cgroup/cpu version=1
elif { echo +cpu > /sys/fs/cgroup/cgroup.subtree_control; } 2>/dev/null; then groups=/sys/fs/cgroup version=2
fi
head -c 32 /dev/urandom | base64 > "$work/key"; chmod 600 "$work/key"

cleanup() {
  [ -z "$relay" ] || kill "$relay" 2>/dev/null || true
  for i in $(seq 1 "$nodes"); do ip netns del "$pre$i" 2>/dev/null || true; rm -rf "/etc/netns/$pre$i"; done
  ip netns del "$bridge" 2>/dev/null || true
  [ -z "$groups" ] || rmdir "$groups/$pre"-* 2>/dev/null || true
  rm -rf "$work"
}
trap cleanup EXIT

up() {
  ip netns add "$bridge"
  ip -n "$bridge" link add br0 type bridge; ip -n "$bridge" link set br0 up
  for i in $(seq 1 "$nodes"); do
    ip netns add "$pre$i"; mkdir -p "/etc/netns/$pre$i"
    { echo "127.0.0.1 localhost"; for j in $(seq 1 "$nodes"); do echo "$net.$j n$j"; done; } > "/etc/netns/$pre$i/hosts"
    ip link add "v$pre$i" netns "$bridge" type veth peer name eth0 netns "$pre$i"
    ip -n "$bridge" link set "v$pre$i" master br0 up
    ip -n "$pre$i" addr add "$net.$i/24" dev eth0; ip -n "$pre$i" link set lo up; ip -n "$pre$i" link set eth0 up
    shape "$i" "$rate"
  done
}

shape() { # shape NODE RATE: both ways. The queue is deep enough that TCP does not drop at its end.
  ip netns exec "$pre$1" tc qdisc replace dev eth0 root tbf rate "$2" burst 32k latency 400ms
  ip netns exec "$bridge" tc qdisc replace dev "v$pre$1" root tbf rate "$2" burst 32k latency 400ms
}

# Offloads carry many segments as one packet. Off, each frame is one, as on a wire: it is frames that get lost or late.
offload() { # offload NODE on|off
  ip netns exec "$pre$1" ethtool -K eth0 tx "$2" gso "$2" tso "$2" gro "$2" >/dev/null 2>&1
  ip netns exec "$bridge" ethtool -K "v$pre$1" tx "$2" gso "$2" tso "$2" gro "$2" >/dev/null 2>&1
}

partner() { # partner NODE: with whom a preflight pairs it first. Ways that are in no pair are measured by nobody.
  echo $((($1 - 1 ^ 1) + 1))
}

lose() { # lose NODE [FROM]: 1 % of the frames that arrive (from one other node), both ways
  local from=${2:+ip saddr $net.$2}
  ip netns exec "$pre$1" nft "add table netdev f; add chain netdev f in { type filter hook ingress device eth0 priority 0; }; \
    add rule netdev f in $from numgen random mod 100 < ${LOSS:-1} drop"
  [ -n "${2:-}" ] || ip netns exec "$bridge" nft "add table netdev f$1; \
    add chain netdev f$1 in { type filter hook ingress device \"v$pre$1\" priority 0; }; \
    add rule netdev f$1 in numgen random mod 100 < ${LOSS:-1} drop"
}

inject() { # inject FAULT NODE
  case $1 in
    half) shape "$2" "$half" ;;
    loss) offload "$2" off; lose "$2" ;;
    way) offload "$2" off; LOSS=5 lose "$2" "$(partner "$2")"; LOSS=5 lose "$(partner "$2")" "$2" ;;
    delay)
      offload "$2" off
      ip netns exec "$bridge" python3 tests/transport/rough.py "v$pre$2" br0 5 0 0 > "$work/relay" &
      relay=$!
      for _ in $(seq 1200); do [ -s "$work/relay" ] && break; sleep 0.05; done ;;
  esac
}

heal() { # heal FAULT NODE
  offload "$2" on
  case $1 in
    half) shape "$2" "$rate" ;;
    loss) ip netns exec "$pre$2" nft delete table netdev f; ip netns exec "$bridge" nft delete table netdev "f$2" ;;
    way) ip netns exec "$pre$2" nft delete table netdev f; ip netns exec "$pre$(partner "$2")" nft delete table netdev f ;;
    delay)
      kill "$relay"; wait "$relay" 2>/dev/null || true; relay=
      ip netns exec "$bridge" tc qdisc replace dev "v$pre$2" root tbf rate "$rate" burst 32k latency 400ms ;;
  esac
}

# Every node has a control group of its own. cpu: each may use a share of the machine's time small enough that all have
# theirs at once, and one may use half of it.
limit() { # limit NODE FAULT BAD: prints the file that a process writes its number into
  local group=$groups/$pre-$1 share=$((100000 * $(nproc) * 8 / 10 / nodes))
  mkdir -p "$group"
  if [ "$2" != cpu ]; then share=-1; elif [ "$1" = "$3" ]; then share=$((share / 2)); fi
  # Weights: what else this machine does must not take it away.
  case $version in
    1) echo "$share" > "$group/cpu.cfs_quota_us"; echo 100000 > "$group/cpu.shares" ;;
    2) echo "${share/#-1/max} 100000" > "$group/cpu.max"; echo 10000 > "$group/cpu.weight" ;;
  esac
  echo "$group/cgroup.procs"
}

run() { # run FAULT NODE: a preflight; the first node's report in $work/report
  local list="n[1-$nodes]" pids=() i file
  for i in $(seq 1 "$nodes"); do
    file=/dev/null
    [ "$CPU_LIMITS" = no ] || [ -z "$groups" ] || file=$(limit "$i" "$1" "$2")
    # Into the group first: inside, /sys is another and shows no groups.
    bash -c 'echo $$ > "$0"; exec "$@"' "$file" ip netns exec "$pre$i" "$paceline" preflight quick --nodes "$list" \
      --node "n$i" --job "bench" --key-file "$work/key" --json \
      > "$work/out$i" 2> "$work/err$i" &
    pids+=($!)
  done
  for i in "${!pids[@]}"; do wait "${pids[$i]}" || true; done
}

verdict() { # verdict FAULT NODE: ok or what is wrong, and the seconds
  python3 - "$work/out1" "$1" "$2" "$nodes" <<'PY'
import json, sys
path, fault, bad, nodes = sys.argv[1], sys.argv[2], "n" + sys.argv[3], int(sys.argv[4])
try:
    report = json.load(open(path))
except ValueError:
    print("no report"); sys.exit()
wanted = {"half": "pair_busbw", "delay": "pair_latency", "loss": "pair_loss", "cpu": "cpu_gemm", "way": "pair_loss"}.get(fault)
def place(p):
    return p.get("node") or "-".join(sorted([p["a"], p["b"]])) if p["kind"] != "job" else "all"
told = [(place(f["place"]), f["what"], f["severity"], f["sure"]) for f in report["findings"]]
lost = [p for p in report["problems"] if p["lost"]]
other = f"n{(int(bad[1:]) - 1 ^ 1) + 1}"
target = "-".join(sorted([bad, other])) if fault == "way" else bad
named = [t for t in told if t[0] == target and t[1] == wanted]
others = sorted({f"{t[0]} {t[1]}" for t in told if t[0] != target or not wanted})
wrong = []
if wanted and not named: wrong.append(f"{wanted} of {target} not named")
if others: wrong.append("accused: " + ", ".join(others))
if lost: wrong.append("problems: " + "; ".join(f"{p['node']} {p['what']}" for p in lost)[:300])
if report["seconds"] > 60: wrong.append("over time")
print("ok" if not wrong else "WRONG " + "; ".join(wrong), f"{report['seconds']:.1f}", sep="\t")
PY
}

up
CPU_LIMITS=${CPU_LIMITS:-yes}; failed=0
if [ -z "$groups" ] && [[ " ${faults[*]} " = *" cpu "* ]]; then
  echo "LEFT OUT: cpu: this machine lets nobody make control groups" >&2
  read -ra faults <<< "$(printf '%s ' "${faults[@]}" | sed 's/\bcpu //')"
fi
declare -A right slowest
for repeat in $(seq 1 "$repeats"); do
  for fault in "${faults[@]}"; do # interleaved: what else the machine does hits all faults alike
    bad=$((repeat % nodes + 1))
    inject "$fault" "$bad"; run "$fault" "$bad"; heal "$fault" "$bad"
    IFS=$'\t' read -r what seconds < <(verdict "$fault" "$bad") || true
    printf '%s nodes, %s %s, n%s: %s (%s s)\n' "$nodes" "$fault" "$repeat" "$bad" "$what" "${seconds:-?}"
    if [ "$what" = ok ]; then
      right[$fault]=$((${right[$fault]:-0} + 1))
    else
      failed=1; [ -s "$work/out1" ] || head -3 "$work/err1"
      [ -z "${KEEP:-}" ] || cp "$work/out1" "$KEEP/$nodes-$fault-$repeat.json"
    fi
    slowest[$fault]=$(printf '%s\n%s\n' "${slowest[$fault]:-0}" "${seconds:-0}" | sort -g | tail -1)
  done
done
printf '\n| nodes | fault | right | slowest |\n|---|---|---|---|\n'
for fault in "${faults[@]}"; do
  printf '| %s | %s | %s of %s | %s s |\n' "$nodes" "$fault" "${right[$fault]:-0}" "$repeats" "${slowest[$fault]}"
done
exit $failed
