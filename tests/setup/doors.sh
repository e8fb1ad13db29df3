#!/usr/bin/env bash
# doors.sh DIRECTORY: a Python environment with what doors.txt names. 40 MB. Idempotent.
set -euo pipefail

requirements=$(cd "$(dirname "$0")" && pwd)/doors.txt
[ $# -eq 1 ] || { echo "usage: $0 DIRECTORY" >&2; exit 64; }
venv=$1
stamp=$venv/requirements.installed

if [ -x "$venv/bin/python" ] && cmp -s "$requirements" "$stamp"; then
    exit 0
fi
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --requirement "$requirements"
"$venv/bin/python" -c 'import opentelemetry.proto, prometheus_client, rotel'
cp "$requirements" "$stamp"
