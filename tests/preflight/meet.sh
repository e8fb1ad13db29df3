#!/usr/bin/env bash
# Preflights of nodes that know a name and how many they are: three network namespaces on one machine, with a name server.
#
#   tests/preflight/meet.sh
#
# service: a name with an address for each pod, as Kubernetes gives a headless service; pods come up one after the other.
# torchrun: what torchrun itself is told, --rdzv-endpoint and --nnodes; it then meets there, by a port of its own (TORCHRUN:
# where it is; without one, a shell stands in for it). Needs root, iproute2 and python3. PACELINE: the binary. Prints a line
# for each, and exits 1 when not all met.
set -euo pipefail
cd "$(dirname "$0")/../.."
paceline=$(realpath "${PACELINE:-target/release/paceline}")
torchrun=${TORCHRUN:-target/realenv/torch/bin/torchrun}
pre=${PRE:-pm$$}; net=10.$((RANDOM % 100 + 100)).1; bridge=${pre}b; nodes=3
work=$(mktemp -d); server=
head -c 32 /dev/urandom | base64 > "$work/key"; chmod 600 "$work/key"

cleanup() {
  [ -z "$server" ] || kill "$server" 2>/dev/null || true
  for i in $(seq 1 "$nodes"); do ip netns del "$pre$i" 2>/dev/null || true; rm -rf "/etc/netns/$pre$i"; done
  ip netns del "$bridge" 2>/dev/null || true
  rm -rf "$work"
}
trap cleanup EXIT

up() {
  ip netns add "$bridge"
  ip -n "$bridge" link add br0 type bridge; ip -n "$bridge" link set br0 up; ip -n "$bridge" addr add "$net.254/24" dev br0
  for i in $(seq 1 "$nodes"); do
    ip netns add "$pre$i"; mkdir -p "/etc/netns/$pre$i"
    # As in a pod: only itself is in its file. What nodes know of each other, they ask for.
    printf '127.0.0.1 localhost\n%s pod-%s\n' "$net.$i" "$i" > "/etc/netns/$pre$i/hosts"
    printf 'nameserver %s.254\noptions timeout:1 attempts:5\n' "$net" > "/etc/netns/$pre$i/resolv.conf"
    ip link add "v$pre$i" netns "$bridge" type veth peer name eth0 netns "$pre$i"
    ip -n "$bridge" link set "v$pre$i" master br0 up
    ip -n "$pre$i" addr add "$net.$i/24" dev eth0; ip -n "$pre$i" link set lo up; ip -n "$pre$i" link set eth0 up
  done
}

serve() { # serve NAME=IP,IP...
  [ -z "$server" ] || { kill "$server"; wait "$server" 2>/dev/null || true; }
  ip netns exec "$bridge" python3 tests/preflight/names.py "$net.254" "$@" > "$work/server" &
  server=$!
  for _ in $(seq 200); do [ -s "$work/server" ] && return; sleep 0.05; done
  echo "the name server does not start" >&2; exit 1
}

everywhere() { # everywhere COMMAND...: on all nodes, @ is the node's number; prints nothing, keeps out1, err1...
  local pids=() i
  for i in $(seq 1 "$nodes"); do
    ip netns exec "$pre$i" unshare --uts sh -c 'hostname "$0"; exec "$@"' "pod-$i" "${@//@/$i}" > "$work/out$i" 2> "$work/err$i" &
    pids+=($!)
  done
  # What it comes to is another test's: a machine that does other things may have slow nodes.
  for i in "${pids[@]}"; do wait "$i" || true; done
}

met() { # met WHAT FILE...: whether each file is the report of a preflight of all nodes
  python3 - "$nodes" "$@" <<'PY' || { tail -n 5 "$work"/err*; return 1; }
import json, sys
nodes, what, files = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
wanted = [f"pod-{i}" for i in range(1, nodes + 1)]
wrong = []
for path in files:
    try:
        report = json.load(open(path))
    except (OSError, ValueError) as problem:
        wrong.append(f"{path}: {problem}")
        continue
    if sorted(report["nodes"]) != wanted:
        wrong.append(f"{path}: met {sorted(report['nodes'])}")
    wrong += [f"{path}: {p['node']} {p['what']}" for p in report["problems"] if p["lost"]]
print(f"{what}: " + ("; ".join(wrong) if wrong else f"{nodes} nodes met, {report['seconds']:.1f} s"))
sys.exit(bool(wrong))
PY
}

service() {
  serve "trainer.job.svc=$net.3,$net.1,$net.2"
  everywhere "$paceline" preflight quick --service trainer.job.svc --nnodes "$nodes" --job meet \
    --key-file "$work/key" --json
  met "service" "$work"/out{1..3}
}

torchrun() {
  serve "master.job.svc=$net.2"
  if [ ! -x "$torchrun" ]; then
    # By its name it is known whose options these are.
    torchrun=$work/torchrun
    printf '#!/bin/sh\nwhile [ "$1" != sh ]; do shift; done\nexec "$@"\n' > "$torchrun"; chmod +x "$torchrun"
  fi
  everywhere "$paceline" run --preflight quick --job meet --key-file "$work/key" --run-dir "$work/run@" -- \
    "$torchrun" --nnodes "$nodes" --nproc-per-node 1 --rdzv-backend c10d --rdzv-id meet \
    --rdzv-endpoint master.job.svc:29400 --no-python sh -c 'echo trains'
  met "torchrun's endpoint" "$work"/run{1..3}/preflight.json || return 1
  # Training met there as well.
  [ "$(cat "$work"/out* | grep -c trains)" = "$nodes" ] || { echo "not all train"; tail "$work"/out* "$work"/err*; return 1; }
}

up
failed=0
service || failed=1
torchrun || failed=1
exit $failed
