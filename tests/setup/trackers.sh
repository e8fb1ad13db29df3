#!/usr/bin/env bash
# trackers.sh DIRECTORY TORCH: a Python environment with W&B, MLflow and TensorBoard at the versions of trackers.txt, which
# sees what is in TORCH, an environment of torch.sh, and leaves that one as it is. 270 MB. Idempotent.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
[ $# -eq 2 ] || { echo "usage: $0 DIRECTORY TORCH" >&2; exit 64; }
venv=$1
requirements=$here/trackers.txt
stamp=$venv/requirements.installed

if [ -x "$venv/bin/python" ] && cmp -s "$requirements" "$stamp"; then
    exit 0
fi
torch=$("$2/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
[ -x "$venv/bin/python" ] || "$2/bin/python" -m venv "$venv"
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
echo "$torch" >"$site/torch.pth"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --requirement "$requirements"
"$venv/bin/python" -c 'import mlflow, tensorboard, torch, wandb; print("wandb", wandb.__version__, "mlflow", mlflow.__version__)'
cp "$requirements" "$stamp"
