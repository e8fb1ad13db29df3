#!/usr/bin/env bash
# torch.sh DIR: a virtual environment in DIR with PyTorch for the CPU and the libraries that the training scripts of the
# tests use (requirements.txt). Idempotent.
#
# PyPI's torch is built for CUDA and brings 3 GB of NVIDIA libraries that a machine without a GPU never calls. It is
# installed without them, and cuda_stubs.py puts empty ones in their place: for tests only.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
dir=$1
stamp=$dir/.ready
wanted=$(cat "$here/requirements.txt" "$here/cuda_stubs.py" | cksum)
[ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ] && exit 0
version() { sed -n "s/^$1==//p" "$here/requirements.txt"; }
mkdir -p "$(dirname "$dir")"
[ -x "$dir/bin/python" ] || python3 -m venv "$dir"
pip() { "$dir/bin/python" -m pip --disable-pip-version-check "$@"; }
site=$("$dir/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
pip install -q --no-deps "torch==$(version torch)"
# So that pip does not fetch them for what depends on torch.
sed -i -E '/^Requires-Dist: (cuda-|nvidia-|triton)/d' "$site/torch-$(version torch)"*.dist-info/METADATA
pip install -q -r "$here/requirements.txt"
"$dir/bin/python" "$here/cuda_stubs.py" "$site"
"$dir/bin/python" -c 'import torch, torch.distributed as d; assert d.is_gloo_available(); print("torch", torch.__version__)'
echo "$wanted" >"$stamp"
