#!/usr/bin/env bash
# torch_cuda.sh HOME [VERSION]: HOME/torch-cuda, a Python environment in which PyPI's CUDA build of PyTorch runs on the
# virtual GPU of ../virtual-gpu. Idempotent: a second call takes a second. Needs python3 with venv, gcc and binutils.
# With VERSION, HOME/torch-cuda-VERSION with an older PyTorch: those that have a requirements-VERSION.txt.
#
# It holds the packages of HOME/torch (torch.sh) by hard links, so it adds 5 MB to the disk and 2.5 MB to the download. An
# older one has its own HOME/torch-VERSION: of 2.7, 0.8 GB of download and 1.8 GB of disk.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
[ $# -eq 1 ] || [ $# -eq 2 ] || { echo "usage: $0 HOME [VERSION]" >&2; exit 64; }
home=$1
version=${2:+-$2}
plain=$home/torch$version
venv=$home/torch-cuda$version
headers=$home/cuda-headers$version
sources=$here/../virtual-gpu/src
requirements=$here/requirements$version.txt
header_wheels=$here/cuda_headers$version.txt
[ -e "$requirements" ] || { echo "$0: no $requirements" >&2; exit 64; }

"$here/torch.sh" "$plain" "$requirements"

stamp() { # what the environment is made of: packages, headers, the virtual GPU's source
    cat "$requirements" "$header_wheels"
    (cd "$sources/.." && sha256sum build.py src/*)
}
if [ -x "$venv/bin/torchrun" ] && stamp | cmp -s - "$venv/stamp"; then
    exit 0
fi

if ! cmp -s "$header_wheels" "$headers/stamp"; then
    rm -rf "$headers" && mkdir -p "$headers/wheels"
    "$plain/bin/python" -m pip download --quiet --disable-pip-version-check --no-deps \
        --dest "$headers/wheels" --requirement "$header_wheels"
    for wheel in "$headers"/wheels/*.whl; do
        "$plain/bin/python" -m zipfile --extract "$wheel" "$headers/unpacked"
    done
    mkdir "$headers/include" # of CUDA 13 they unpack into one folder, of CUDA 12 into one each
    for include in "$headers"/unpacked/nvidia/*/include; do
        cp --recursive "$include/." "$headers/include"
    done
    rm -rf "$headers/wheels" "$headers/unpacked"
    cp "$header_wheels" "$headers/stamp"
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
