#!/usr/bin/env bash
# venv.sh REQUIREMENTS DIRECTORY [TORCH]: a Python environment with what a file of requirements names. With TORCH, an environment of
# torch.sh, it sees what is in that one too, and leaves it as it is. Idempotent.
set -euo pipefail

[ $# -eq 2 ] || [ $# -eq 3 ] || { echo "usage: $0 REQUIREMENTS DIRECTORY [TORCH]" >&2; exit 64; }
requirements=$1
venv=$2
stamp=$venv/requirements.installed

if [ -x "$venv/bin/python" ] && cmp -s "$requirements" "$stamp"; then
    exit 0
fi
python=${3:+$3/bin/}python3
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
if [ $# -eq 3 ]; then
    site='import sysconfig; print(sysconfig.get_path("purelib"))'
    "$python" -c "$site" >"$("$venv/bin/python" -c "$site")/torch.pth"
fi
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --requirement "$requirements"
cp "$requirements" "$stamp"
