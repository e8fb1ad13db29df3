#!/usr/bin/env bash
# torch.sh DIRECTORY [REQUIREMENTS]: a Python environment with PyTorch for CPU, transformers, accelerate and lightning, at
# the versions of requirements.txt, or with what another such file names. Idempotent: a second call takes a second. Needs
# python3 with venv, gcc and binutils; PYTHON names another interpreter.
#
# PyPI's torch is built for CUDA and wants 4 GB of libraries that a machine without a GPU never calls. They are left
# out, and cuda_stubs.py puts empty ones in their place: 1.3 GB instead of 5.3 GB, for tests only.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
[ $# -eq 1 ] || [ $# -eq 2 ] || { echo "usage: $0 DIRECTORY [REQUIREMENTS]" >&2; exit 64; }
venv=$1
requirements=${2-$here/requirements.txt}
stamp=$venv/requirements.installed

if [ -x "$venv/bin/python" ] && cmp -s "$requirements" "$stamp"; then
    exit 0
fi
for tool in gcc nm readelf; do
    command -v "$tool" >/dev/null || { echo "$0: $tool is missing (packages gcc, binutils)" >&2; exit 1; }
done

[ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"
pip=("$venv/bin/python" -m pip install --quiet --disable-pip-version-check)
torch=$(grep '^torch==' "$requirements")

"${pip[@]}" --no-deps "$torch"
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
# So that nothing that depends on torch fetches the libraries after all.
sed -i -E '/^Requires-Dist: (cuda-|nvidia-|triton)/d' "$site/torch-${torch#torch==}"*.dist-info/METADATA
"${pip[@]}" --requirement "$requirements"
"$venv/bin/python" "$here/cuda_stubs.py" "$site"

trainers=$(sed -nE 's/^(accelerate|lightning|transformers)==.*/\1/p' "$requirements")
# shellcheck disable=SC2086 # words
"$venv/bin/python" - torch $trainers <<'CHECK'
import importlib, sys
modules = [importlib.import_module(name) for name in sys.argv[1:]]
assert modules[0].distributed.is_gloo_available()
print(*("%s %s" % (module.__name__, module.__version__) for module in modules))
CHECK
cp "$requirements" "$stamp"
