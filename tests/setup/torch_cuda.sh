#!/usr/bin/env bash
# torch_cuda.sh HOME: HOME/torch-cuda, a Python environment in which PyPI's CUDA build of PyTorch runs on the virtual GPU
# of ../virtual-gpu. Idempotent: a second call takes a second. Needs python3 with venv, gcc and binutils.
#
# It holds the packages of HOME/torch (torch.sh) by hard links, so it adds 5 MB to the disk and 2.5 MB to the download.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
[ $# -eq 1 ] || { echo "usage: $0 HOME" >&2; exit 64; }
home=$1
plain=$home/torch
venv=$home/torch-cuda
headers=$home/cuda-headers
sources=$here/../virtual-gpu/src

"$here/torch.sh" "$plain"

stamp() { # what the environment is made of: packages, headers, the virtual GPU's source
    cat "$here/requirements.txt" "$here/cuda_headers.txt"
    (cd "$sources/.." && sha256sum build.py src/*)
}
if [ -x "$venv/bin/torchrun" ] && stamp | cmp -s - "$venv/stamp"; then
    exit 0
fi

if ! cmp -s "$here/cuda_headers.txt" "$headers/stamp"; then
    rm -rf "$headers" && mkdir -p "$headers/wheels"
    "$plain/bin/python" -m pip download --quiet --disable-pip-version-check --no-deps \
        --dest "$headers/wheels" --requirement "$here/cuda_headers.txt"
    for wheel in "$headers"/wheels/*.whl; do
        "$plain/bin/python" -m zipfile --extract "$wheel" "$headers/unpacked"
    done
    mv "$headers/unpacked/nvidia/cu13/include" "$headers/include"
    rm -rf "$headers/wheels" "$headers/unpacked"
    cp "$here/cuda_headers.txt" "$headers/stamp"
fi

rm -rf "$venv"
"$plain/bin/python" -m venv --without-pip "$venv"
site() { "$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }
cp --archive --link "$(site "$plain")/." "$(site "$venv")" 2>/dev/null || cp --archive "$(site "$plain")/." "$(site "$venv")"
printf '#!%s/bin/python\nfrom torch.distributed.run import main\nmain()\n' "$(cd "$venv" && pwd)" >"$venv/bin/torchrun"
chmod +x "$venv/bin/torchrun"

"$venv/bin/python" "$sources/../build.py" --headers "$headers/include" --site "$(site "$venv")"
"$venv/bin/python" - <<'CHECK'
import torch
assert torch.cuda.is_available() and torch.distributed.is_nccl_available()
print("torch", torch.__version__, "on", torch.cuda.device_count(), "x", torch.cuda.get_device_name(0))
CHECK
stamp >"$venv/stamp"
