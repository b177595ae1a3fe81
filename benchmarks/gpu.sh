#!/usr/bin/env bash
# Measures on a machine that has a GPU, python3, torch and Triton, and reaches nothing:
#
#   benchmarks/gpu.sh --out FOLDER [--rehearse] [PART …]
#
# What runs is the tree that `make gpu-pack` packed. In a checkout, this script unpacks it, once, and starts the script in it.
# PYTHON: the interpreter. PENSTOCK_GPU_TREE: where to unpack; there is also Triton's cache.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=$(command -v "${PYTHON:-python3}")
# From any directory; a link stays one, because a virtual environment is found by it.
python=$(cd "$(dirname "$python")" && pwd)/$(basename "$python")

if [ ! -e "$root/carried/manifest.json" ]; then
	archive=$root/target/penstock-gpu.tar.gz
	[ -e "$archive" ] || { echo "$archive is missing: make it with \`make gpu-pack\` and carry it here" >&2; exit 2; }
	read -r sum _ < <(cksum "$archive")
	folder=${PENSTOCK_GPU_TREE:-${TMPDIR:-/tmp}/penstock-gpu-$(id -u)}/$sum
	if [ ! -e "$folder/unpacked" ]; then
		mkdir -p "$folder"
		"$python" -m tarfile -e "$archive" "$folder"
		touch "$folder/unpacked"
	fi
	PYTHON=$python exec bash "$folder/penstock/benchmarks/gpu.sh" "$@"
fi

version=$("$python" -c 'import sys; print("cp%d%d" % sys.version_info[:2])')
case $version in
	cp311 | cp312 | cp313) ;;
	*) echo "Python 3.11 to 3.13 is needed, this is $version: set PYTHON" >&2; exit 2 ;;
esac
export PYTHONPATH=$root:$root/server:$root/kernels:$root/carried/any:$root/carried/$version${PYTHONPATH:+:$PYTHONPATH}
export TRITON_CACHE_DIR=${TRITON_CACHE_DIR:-$root/carried/triton-cache} PYTHONDONTWRITEBYTECODE=1
# This tree, and not the directory that this is called in, where there may be another.
export PYTHONSAFEPATH=1
if [ -d "$root/carried/bin" ]; then
	# The launcher starts the Python of its own folder.
	printf '#!/bin/sh\nexec "%s" "$@"\n' "$python" > "$root/carried/bin/python"
	chmod +x "$root/carried/bin/python"
fi
exec "$python" -m benchmarks.gpu "$@"
